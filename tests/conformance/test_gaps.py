"""The table of gaps says what the code does: the registry, the C exporter, the CUDA kernels' tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from capsedge.spec.operators import OPERATORS
from tests.native import cuda_library

from . import inputs
from .cases import CASES, Case
from .gaps import FEATURES, GAPS, TITLES, gap, gaps_of
from .selection import selected

OF_OPERATOR = {name: [c for c in CASES if c.operator == name and not c.heavy] for name in OPERATORS}


def shapes_of(case: Case) -> Sequence[tuple[int, ...]]:
    settings = {**case.attributes, **case.options}
    made = inputs.build(case.operator, case.dims, settings, case.kind, str(case), "float32")
    return [array.shape for array in made.values()]


def test_the_words_are_those_of_the_table() -> None:
    assert {backend for each in GAPS for backend in each.backends} <= set(TITLES)
    assert {feature for each in GAPS for feature in each.features} <= set(FEATURES)
    assert {name for each in GAPS for name in each.operators} <= set(OPERATORS)
    assert all(each.operators and each.why and each.instead for each in GAPS)
    assert {feature for case in CASES for feature in case.features} <= set(FEATURES)


def test_the_kernels_of_the_table_are_those_that_the_tests_call() -> None:
    taken = {name for name in OPERATORS if gap("cuda", name, "float32") is None}
    assert taken == set(cuda_library.OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_cuda_and_plugins_lack_what_the_registry_says(operator: str) -> None:
    """By the shapes of inputs, as exporter and library decide."""
    spec = OPERATORS[operator]
    for case in selected(OF_OPERATOR[operator]):
        kernel = spec.has_cuda_kernel and not spec.plugin_lacks(shapes_of(case))
        assert (gap("cuda", operator, "float32", case.features) is None) == kernel, (
            f"gaps.py on {case}"
        )
        plugin = kernel and spec.plugin
        found = gap("tensorrt", operator, "float32", case.features)
        assert (found is None) == plugin, f"gaps.py on {case}"


def test_a_shared_row_of_logits_is_written_out_for_tensorrt_alone() -> None:
    u, weight, bias = (2, 6, 8), (6, 3, 4, 8), (3, 4)
    shared = OPERATORS["DynamicRouting"].plugin_lacks([u, weight, (1, 3), bias])
    assert shared
    assert gap("cuda", "DynamicRouting", "float32", {"shared prior"}) is not None
    assert gap("tensorrt", "DynamicRouting", "float32", {"shared prior"}) is None


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_c_source_has_the_kernels_of_the_table(operator: str) -> None:
    pytest.importorskip("onnx", reason="pip install 'capsedge[build]'")
    from capsedge.exporters.c import capsules, convolutions, layer_steps

    others = {**convolutions.TRANSLATORS, **layer_steps.TRANSLATORS}
    outputs = len(OPERATORS[operator].outputs)
    for case in selected(OF_OPERATOR[operator]):
        count = len(shapes_of(case))
        taken = capsules.has_kernel(operator, dict(case.attributes), count, outputs)
        taken = taken or operator in others
        assert (gap("c", operator, "float32", case.features) is None) == taken, f"gaps.py on {case}"
    if OPERATORS[operator].couplings:
        assert gap("c", operator, "float32", {"couplings"}) is not None
        assert not capsules.has_kernel(operator, {}, len(OPERATORS[operator].inputs), outputs + 1)


def test_whole_operators_come_alone() -> None:
    found = [g for backend, g in gaps_of("UniformRouting") if backend == "cuda"]
    assert len(found) == 1
    assert not found[0].features
