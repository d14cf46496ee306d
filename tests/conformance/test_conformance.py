"""Every backend that this machine has, on every case and in every storage type, against the oracle.

The same as ``python -m tests.conformance test`` and ``gradient``, which filter and tabulate.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.schema.operators import OPERATORS
from tests.conftest import ROOT

from . import modes, oracle
from .backends import BACKENDS, Arrays
from .cases import BY_NAME, CASES, OUTPUTS, Case, evaluate, make
from .dump import decode, encode
from .tolerance import tolerance

# What no machine can run is not collected; `python -m tests.conformance support` lists it with the reasons.
# One test for all cases of an operator: a test each would take longer than what it tests.
GROUPS: dict[tuple[str, str, str, bool], list[Case]] = {}
for name, kernels in BACKENDS.items():
    for each in CASES:
        for dtype in each.dtypes:
            if not kernels.unsupported(each, dtype):
                GROUPS.setdefault((name, each.operator, dtype, each.heavy), []).append(each)
# First input value of the first case.
FIRST = -0.9436763096825815


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("backend", "operator", "dtype", "heavy"),
    [
        pytest.param(
            *key,
            id="-".join((*key[:3], *["heavy"] * key[3])),
            marks=[pytest.mark.slow] if key[3] else [],
        )
        for key in GROUPS
    ],
)
def test_operator(backend: str, operator: str, dtype: str, heavy: bool) -> None:
    """`python -m tests.conformance test` runs a single case."""
    cases = GROUPS[backend, operator, dtype, heavy]
    rows = [modes.check(BACKENDS[backend], case, dtype) for case in cases]
    failed = [
        f"{row.case}: {row.detail}\n  {alone('test', backend, case, dtype)}"
        for row, case in zip(rows, cases, strict=True)
        if row.verdict not in ("ok", "skipped")
    ]
    assert not failed, "\n".join(failed[:20])
    if all(row.verdict == "skipped" for row in rows):
        pytest.skip(rows[0].detail)


def alone(mode: str, backend: str, case: Case, dtype: str = "") -> str:
    """The command that runs one case."""
    words = ["python", "-m", "tests.conformance", mode, "--backend", backend]
    words += ["--dtype", dtype] * bool(dtype) + ["--filter", f"^{re.escape(str(case))}$"]
    return shlex.join(words)


def _big(case: Case) -> bool:
    """Differences of the oracle take 20 evaluations: seconds for these."""
    parents = case.dims.get("J", case.dims.get("M", 1))
    children = case.dims.get("I") or case.dims.get("C", 1) * case.dims.get("Kh", 1)
    return bool(case.dims.get("N", 1) * parents * children > 30)


@pytest.mark.sample(67)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[pytest.mark.slow] if _big(case) else [])
        for case in CASES
        if not case.heavy
        and modes.is_smooth(case)
        and not BACKENDS["torch"].unsupported(case, "float64")
    ],
)
def test_gradient(case: Case) -> None:
    row = modes.check_gradient(BACKENDS["torch"], case)
    if row.verdict == "skipped":
        pytest.skip(row.detail)
    assert row.verdict == "ok", f"{row.detail}\n  {alone('gradient', 'torch', case)}"


def test_the_command_for_one_case_selects_it() -> None:
    for case in (CASES[0], CASES[-1], *(c for c in CASES if c.heavy)):
        words = shlex.split(alone("test", "torch", case))
        pattern = words[words.index("--filter") + 1]
        assert [c for c in CASES if re.search(pattern, str(c))] == [case]


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


@pytest.mark.parametrize("operator", [o.name for o in OPERATORS.values() if not o.in_8_bits])
def test_the_specification_states_the_tolerances(operator: str) -> None:
    text = (ROOT / "docs" / "reference" / "operators.md").read_text()
    row = re.search(rf"^\| {operator} \| ([^|]+) \| ([^|]+) \|", text, re.M)
    assert row is not None
    for dtype, stated in zip(("float64", "float32"), row.groups(), strict=True):
        limit = tolerance(operator, OUTPUTS[operator][0], "normal", dtype, 1.0)
        assert [float(figure) for figure in stated.split(", ")] == [limit.atol, limit.rtol]


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
    v, couplings = oracle.dynamic_routing(u, weight, *none, 1, False, 1e-12)
    np.testing.assert_allclose(couplings, [[[0.5, 0.5]]])
    np.testing.assert_allclose(v, [[[0.5, 0.0], [0.5, 0.0]]])
    _, leaky = oracle.dynamic_routing(u, weight, *none, 1, True, 1e-12)
    np.testing.assert_allclose(leaky, [[[1 / 3, 1 / 3]]])
    # Two children voting 1 and 3 with activation 1 for one parent: mean 2, variance 1 (+ epsilon).
    mean, a, r = oracle.em_routing(
        np.array([1.0, 3.0]).reshape(1, 1, 1, 2, 1), np.ones((1, 1, 1, 2)),
        np.ones((1, 1, 2, 1, 1, 1)), [0.25], [1.0], 1, (1, 1), (1.0,), False, False, 1e-12,
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
