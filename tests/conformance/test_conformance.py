"""Every backend that this machine has, on every case and in every storage type, against the oracle.

The same as ``python -m tests.conformance test`` and ``gradient``, which filter and tabulate.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import modes, oracle
from .backends import BACKENDS, Arrays
from .cases import BY_NAME, CASES, OUTPUTS, Case, evaluate, make
from .dump import decode, encode
from .selection import selected

# What no machine can run is not collected; `python -m tests.conformance support` lists it with the reasons.
# One test for all cases of an operator: a test each would take longer than what it tests.
LIGHT: dict[tuple[str, str], list[Case]] = {}
GROUPS: dict[tuple[str, str, bool, str], list[Case]] = {}
for each in CASES:
    for dtype in each.dtypes:
        if not each.heavy:
            LIGHT.setdefault((each.operator, dtype), []).append(each)
        for name, kernels in BACKENDS.items():
            if not kernels.unsupported(each, dtype):
                GROUPS.setdefault((each.operator, dtype, each.heavy, name), []).append(each)
SMOOTH: dict[str, list[Case]] = {}
for each in CASES:
    differentiable = not BACKENDS["torch"].unsupported(each, "float64")
    if differentiable and modes.is_smooth(each) and not each.heavy:
        SMOOTH.setdefault(each.operator, []).append(each)
# The fast tier: PyTorch, function bodies, the library in ONNX Runtime, the first and the best CPU level.
FAST = tuple(
    dict.fromkeys(["torch", "ort-functions", "ort-fused", "cpu-kernels-plain", list(BACKENDS)[-1]])
)
# First input value of the first case.
FIRST = -0.9436763096825815


def few(backend: str, cases: Sequence[Case], dtype: str) -> Sequence[Case]:
    """The first two where ONNX Runtime repeats what is tested elsewhere: making its sessions is dear."""
    bodies = backend == "ort-functions" and dtype in ("float32", "uint8")
    return cases if bodies or not backend.startswith("ort") else cases[:2]


@pytest.mark.parametrize("backend", FAST)
def test_the_backend_runs_here(backend: str) -> None:
    """Skips where `test_selected_cases` leaves it out in silence."""
    for operator in OUTPUTS:
        if reason := BACKENDS[backend].unavailable(operator):
            pytest.skip(reason)


@pytest.mark.parametrize(("operator", "dtype"), LIGHT)
def test_selected_cases(operator: str, dtype: str) -> None:
    """Every kind of input, every setting and every class of sizes of an operator."""
    failed = []
    for backend in FAST:
        supported = GROUPS.get((operator, dtype, False, backend), [])
        failed += modes.failures(BACKENDS[backend], few(backend, selected(supported), dtype), dtype)
    assert not failed, "\n".join(failed[:20])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("operator", "dtype", "heavy", "backend"),
    [
        pytest.param(
            *key,
            id="-".join((key[3], *key[:2], *["heavy"] * key[2])),
            marks=[pytest.mark.slow] if key[2] else [],
        )
        # Backends next to each other share what the oracle wants.
        for key in sorted(GROUPS, key=lambda key: key[:3])
    ],
)
def test_operator(operator: str, dtype: str, heavy: bool, backend: str) -> None:
    cases = GROUPS[operator, dtype, heavy, backend]
    failed = modes.failures(BACKENDS[backend], cases, dtype)
    assert not failed, "\n".join(failed[:20])
    if reason := BACKENDS[backend].unavailable(operator):
        pytest.skip(reason)


def _big(case: Case) -> bool:
    """Differences of the oracle take 20 evaluations: seconds for these."""
    parents = case.dims.get("J", case.dims.get("M", 1))
    children = case.dims.get("I") or case.dims.get("C", 1) * case.dims.get("Kh", 1)
    return bool(case.dims.get("N", 1) * parents * children > 30)


@pytest.mark.parametrize("operator", SMOOTH)
def test_selected_gradients(operator: str) -> None:
    small = [case for case in SMOOTH[operator] if not _big(case)]
    failed = modes.wrong_gradients(BACKENDS["torch"], selected(small)[:2])
    assert not failed, "\n".join(failed)


@pytest.mark.thorough
@pytest.mark.parametrize("operator", SMOOTH)
def test_gradients(operator: str) -> None:
    failed = modes.wrong_gradients(
        BACKENDS["torch"], [case for case in SMOOTH[operator] if not _big(case)]
    )
    assert not failed, "\n".join(failed[:20])


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c for cases in SMOOTH.values() for c in cases if _big(c)], ids=str
)
def test_gradient_of_a_big_case(case: Case) -> None:
    failed = modes.wrong_gradients(BACKENDS["torch"], [case])
    assert not failed, failed[0]


def test_the_selection_has_every_kind_and_setting() -> None:
    for (operator, dtype), cases in LIGHT.items():
        chosen = selected(cases)
        assert {case.kind for case in chosen} == {case.kind for case in cases}, operator
        for name in cases[0].attributes:
            settings = {case.attributes[name] for case in cases}
            assert {case.attributes[name] for case in chosen} == settings, (operator, dtype, name)


def test_the_command_for_one_case_selects_it() -> None:
    for case in (CASES[0], CASES[-1], *(c for c in CASES if c.heavy)):
        words = shlex.split(modes.alone("test", "torch", case))
        pattern = words[words.index("--filter") + 1]
        assert [name for name in BY_NAME if re.search(pattern, name)] == [str(case)]


def test_cases_have_different_names() -> None:
    assert len(BY_NAME) == len(CASES)


def test_a_wrong_answer_fails() -> None:
    """The gate itself: an error of twice the tolerance, a NaN and a wrong type are found."""

    class Broken:
        name = "broken"

        def __init__(self, break_it: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
            self.break_it = break_it

        def unavailable(self, operator: str) -> str:
            return ""

        def unsupported(self, case: Case, dtype: str) -> str:
            return ""

        def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
            wanted = make(case, dtype).wanted
            return lambda: {k: self.break_it(x.copy()).astype(dtype) for k, x in wanted.items()}

    def off(x: NDArray[Any]) -> NDArray[Any]:
        x.flat[0] += 2 * (2e-6 + 2e-5 * abs(x.flat[0]))
        return x

    def nan(x: NDArray[Any]) -> NDArray[Any]:
        x.flat[-1] = np.nan
        return x

    case = next(c for c in CASES if c.operator == "DynamicRouting")
    assert modes.check(Broken(lambda x: x), case, "float32").verdict == "ok"
    assert modes.check(Broken(off), case, "float32").verdict == "FAILED"
    assert modes.check(Broken(nan), case, "float32").verdict == "FAILED"
    row = modes.check(Broken(lambda x: x[..., :1]), case, "float32")
    assert "wanted float32 [2, 3, 4]" in row.detail


@pytest.mark.parametrize("operator", [*OUTPUTS])
def test_files_hold_the_case(operator: str) -> None:
    case = next(c for c in CASES if c.operator == operator)
    for dtype in case.dtypes:
        header, inputs, outputs = decode(encode(case, dtype))
        example = make(case, dtype)
        assert header["case"] == str(case)
        assert header["attributes"].keys() == case.attributes.keys()
        assert all(entry["offset"] % 64 == 0 for entry in header["inputs"] + header["outputs"])
        for name, array in example.inputs.items():
            assert inputs[name].dtype == array.dtype
            np.testing.assert_array_equal(inputs[name], array)
        for name, array in example.wanted.items():
            np.testing.assert_array_equal(outputs[name], array)


def test_inputs_are_the_same_in_every_process() -> None:
    """Files written once and cases built later agree: seeds come from names, not from order."""
    example = make(next(c for c in CASES if c.operator == "Squash"), "float64")
    assert example.inputs["x"].shape == (5, 16)
    np.testing.assert_allclose(example.inputs["x"][0, 0], FIRST, rtol=1e-15)


def test_oracle_on_numbers_worked_by_hand() -> None:
    """The oracle itself: figures that need no program."""
    np.testing.assert_allclose(oracle.squash([[3.0, 4.0]], -1, 1e-12), [[15 / 26, 20 / 26]])
    # One child, two parents, identity weights, one sum: each parent gets half of it.
    u, weight = np.array([[[2.0, 0.0]]]), np.stack([np.eye(2), np.eye(2)])[None]
    none = np.zeros((1, 2)), np.zeros((2, 2))
    bias = np.full((1, 2), 0.25)  # to the half that each parent gets
    v, couplings = oracle.self_attention_routing(u, weight, bias, 1e-20)
    np.testing.assert_allclose(couplings, np.full((1, 1, 2), 0.75))
    np.testing.assert_allclose(v, [[[1 - np.exp(-1.5), 0.0]] * 2])
    once = {"iterations": 1, "over_children": False, "replace": False, "normalize": False,
            "elementwise": False, "agreement_scale": 1.0, "epsilon": 1e-12}  # fmt: skip
    v, couplings = oracle.dynamic_routing(u, weight, *none, leaky=False, **once)
    np.testing.assert_allclose(couplings, [[[0.5, 0.5]]])
    np.testing.assert_allclose(v, [[[0.5, 0.0], [0.5, 0.0]]])
    _, leaky = oracle.dynamic_routing(u, weight, *none, leaky=True, **once)
    np.testing.assert_allclose(leaky, [[[1 / 3, 1 / 3]]])
    # Two children voting 1 and 3 with activation 1 for one parent: mean 2, variance 1 (+ epsilon).
    mean, a, r = oracle.em_routing(
        np.array([1.0, 3.0]).reshape(1, 1, 1, 2, 1), np.ones((1, 1, 1, 2)),
        np.ones((1, 1, 2, 1, 1, 1)), [0.25], [1.0], iterations=1, strides=(1, 1),
        inverse_temperatures=(1.0,), coordinate_addition=False, shared=False,
        normalize_activations=False, ones_first=False, epsilon=1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(mean.ravel(), [2.0])
    np.testing.assert_allclose(r.ravel(), [1.0, 1.0])
    np.testing.assert_allclose(a.ravel(), [1 / (1 + np.exp(-(1.0 - 2 * 0.25)))])
    # One child: its vote (1, 3) normalized is (-1, 1).
    pose, couplings = oracle.attention_routing(
        np.array([1.0, 3.0]).reshape(1, 1, 1, 1, 2), np.zeros((1, 1, 1, 1, 2)),
        np.eye(2).reshape(1, 1, 1, 1, 2, 2), [1.0, 2.0], [0.0, 0.5], (1, 1), False, 1.0, 1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(pose.ravel(), [-1.0, 2.5])
    np.testing.assert_allclose(couplings.ravel(), [1.0])


def test_oracle_keeps_children_apart_by_row_column_type() -> None:
    """A window of 2x2 cells over 3x3, stride 1: the couplings' order is the specification's."""
    case = next(
        c for c in CASES
        if c.operator == "AttentionRouting" and [c.dims[k] for k in ("Kh", "Kw", "C")] == [3, 2, 2]
    )  # fmt: skip
    example = make(case, "float64")
    # Moving the parent's pose at one place by a vote of child i raises that child's agreement most.
    arrays = {k: x.copy() for k, x in example.inputs.items()}
    arrays["parent"][:] = 0
    dy, dx, type_ = 2, 1, 1
    side = 4
    vote = arrays["pose"][0, dy, dx, type_].reshape(side, side) @ arrays["weight"][dy, dx, type_, 0]
    arrays["parent"][0, 0, 0, 0] = 10 * vote.ravel()
    couplings = evaluate(case, arrays)["couplings"][0, 0, 0, :, 0]
    assert int(np.argmax(couplings)) == (dy * 2 + dx) * 2 + type_
