"""ONNX's own tests of nodes as C, with sanitizers: each is right or refused, and nothing else."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.c.write_c import generate_c_folder
from tests.exporters.c.sanitized import Case, extreme_inputs, run_sanitized

GROUP = 40  # networks of one program
# By whether there are several inputs, and of how many tests one is run. With fewer, a translation was lost.
LEAST_RIGHT = {(False, 1): 560, (True, 1): 100, (False, 4): 118, (True, 4): 16}
TYPES = (np.float32, np.int8, np.uint8)  # of inputs
Inputs = tuple[np.ndarray, ...]
Expected = dict[str, np.ndarray]


def _tests(several: bool) -> Iterator[tuple[str, onnx.ModelProto, Inputs, Expected, float, float]]:
    """Tests whose first input is of float32 and not empty; the other inputs are weights.

    Args:
        several: instead, tests whose inputs are all of a type that C takes, and not empty; several, or one of
            integers.
    """
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
        kept = len(inputs) if several else 1
        fits = [v.dtype in (TYPES if several else TYPES[:1]) and v.size for v in inputs[:kept]]
        if not all(fits) or not inputs[0].ndim or (several and not _new(inputs)):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(test.model)
        for info, value in zip(given[kept:], inputs[kept:], strict=True):
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
        del model.graph.input[kept:]
        names = [o.name for o in model.graph.output]
        expected = dict(zip(names, map(np.asarray, outputs), strict=True))
        yield test.name, model, tuple(inputs[:kept]), expected, test.rtol, test.atol


def _new(inputs: Inputs) -> bool:
    """Whether these are not the inputs of the other tests."""
    return len(inputs) > 1 or inputs[0].dtype != np.float32


def _extreme(inputs: Inputs) -> list[Inputs]:
    """Extreme floats; integers over their range."""
    rng = np.random.default_rng(0)
    columns = [
        extreme_inputs(x.shape, k)
        if x.dtype == np.float32
        else [rng.integers(np.iinfo(x.dtype).min, 1 + np.iinfo(x.dtype).max, x.shape)] * 11
        for k, x in enumerate(inputs)
    ]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(
    "every", [pytest.param(4, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("several", [False, True])
def test_node_tests_of_onnx(several: bool, every: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    cases: list[tuple[Case, str, Expected, float, float]] = []
    wrong: list[str] = []
    tests = islice(_tests(several), 0, None, every)
    for number, (name, model, given, expected, rtol, atol) in enumerate(tests):
        try:
            batch = None if several else given[0].shape[0]
            files, description = generate_c_folder(
                model.SerializeToString(), Path(f"{name}.onnx"), f"n{number}", batch
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
        inputs = [given, *_extreme(given)]
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
    assert counts["right"] >= LEAST_RIGHT[several, every]
