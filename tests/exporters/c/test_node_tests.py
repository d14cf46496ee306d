"""ONNX's own tests of nodes as C, with sanitizers: each is right or refused, and nothing else."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.c.write_c import generate
from tests.exporters.c.sanitized import Case, extreme_inputs, run_sanitized

GROUP = 40  # networks of one program
LEAST_RIGHT = 560  # if fewer are right, something that had a translation lost it
Expected = dict[str, np.ndarray]


def _tests() -> Iterator[tuple[str, onnx.ModelProto, np.ndarray, Expected, float, float]]:
    """Tests whose first input is of float32 and not empty; the other inputs are weights."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for test in found:
        if test.model is None or not test.data_sets:
            continue
        inputs, outputs = test.data_sets[0]
        given = list(test.model.graph.input)
        if not inputs or not all(isinstance(v, np.ndarray) for v in (*inputs, *outputs)):
            continue
        if inputs[0].dtype != np.float32 or not inputs[0].ndim or not inputs[0].size:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(test.model)
        for info, value in zip(given[1:], inputs[1:], strict=True):
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
        del model.graph.input[1:]
        names = [o.name for o in model.graph.output]
        expected = dict(zip(names, map(np.asarray, outputs), strict=True))
        yield test.name, model, inputs[0], expected, test.rtol, test.atol


@pytest.mark.thorough
def test_node_tests_of_onnx(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    cases: list[tuple[Case, str, Expected, float, float]] = []
    wrong: list[str] = []
    for number, (name, model, x, expected, rtol, atol) in enumerate(_tests()):
        try:
            files, description = generate(
                model.SerializeToString(), Path(f"{name}.onnx"), f"n{number}", x.shape[0]
            )
        except UnsupportedModelError:
            counts["refused"] += 1
            continue
        except CapsedgeError as error:
            counts[f"refused: {type(error).__name__}"] += 1
            continue
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        inputs = [x, *extreme_inputs(x.shape)]
        cases.append((Case(files, description, inputs), name, expected, rtol, atol))
    for first in range(0, len(cases), GROUP):
        group = cases[first : first + GROUP]
        finding = run_sanitized([case for case, *_ in group], tmp_path / str(first))
        if finding:
            wrong.append(finding)
            continue
        for case, name, expected, rtol, atol in group:
            try:
                for output, value in case.results[0].items():
                    assert value.shape == expected[output].shape
                    np.testing.assert_allclose(
                        value, expected[output], max(rtol, 1e-4), max(atol, 1e-5)
                    )
                counts["right"] += 1
            except AssertionError as error:
                wrong.append(f"{name}: {' '.join(str(error).split())[:150]}")
    print(dict(counts), len(wrong))
    assert not wrong, "\n".join(wrong)
    assert counts["right"] >= LEAST_RIGHT
