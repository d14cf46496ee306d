"""The four modes over backends, cases and storage types; each yields rows."""

from __future__ import annotations

import re
import shlex
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .backends import Backend, missing_outputs
from .cases import Case, evaluate, make


@dataclass(frozen=True)
class Row:
    """One result. ``value`` is the error over its tolerance, or milliseconds in `performance`."""

    backend: str
    case: str
    dtype: str
    verdict: str  # ok, FAILED, skipped, supported
    value: float | None = None
    detail: str = ""

    FIELDS: ClassVar[tuple[str, ...]] = ("backend", "case", "dtype", "verdict", "value", "detail")

    def fields(self) -> dict[str, object]:
        """As a line of the comma-separated output."""
        return {name: getattr(self, name) for name in self.FIELDS}

    def __str__(self) -> str:
        value = "" if self.value is None else f" {self.value:.3g}"
        text = f"{self.backend} {self.dtype} {self.case}: {self.verdict}{value} {self.detail}"
        return text.rstrip()


def _reason(backend: Backend, case: Case, dtype: str) -> str:
    return backend.unsupported(case, dtype) or backend.unavailable(case.operator)


def check(backend: Backend, case: Case, dtype: str) -> Row:
    """Run one case and compare it with the oracle."""
    if reason := _reason(backend, case, dtype):
        return Row(backend.name, str(case), dtype, "skipped", detail=reason)
    example = make(case, dtype)
    before = {name: array.copy() for name, array in example.inputs.items()}
    try:
        outputs = backend.prepare(case, example.inputs, dtype)()
    except Exception as error:  # whatever a backend raises is a result of its own in the table
        detail = f"{type(error).__name__}: {error}"
        return Row(backend.name, str(case), dtype, "FAILED", float("inf"), detail)
    problems = [f"output '{name}' is missing" for name in missing_outputs(case, outputs)]
    worst = 0.0
    for name, found in outputs.items():
        wanted, limit = example.wanted[name], example.tolerances[name]
        if found.shape != wanted.shape or found.dtype != np.dtype(dtype):
            problems.append(
                f"output '{name}' is {found.dtype} {list(found.shape)},"
                f" wanted {dtype} {list(wanted.shape)}"
            )
            continue
        if any(np.shares_memory(found, array) for array in example.inputs.values()):
            problems.append(f"output '{name}' shares memory with an input")
        excess = limit.excess(found, wanted)
        worst = max(worst, excess)
        if excess > 1:
            difference = np.abs(found.astype(np.float64) - wanted)
            problems.append(
                f"output '{name}': largest error {difference.max():.3g} is {excess:.3g} times the"
                f" tolerance (atol {limit.atol:.2g}, rtol {limit.rtol:.2g}: {limit.reason})"
            )
    problems += [
        f"input '{name}' was changed"
        for name, array in before.items()
        if array.tobytes() != example.inputs[name].tobytes()
    ]
    verdict = "FAILED" if problems else "ok"
    return Row(backend.name, str(case), dtype, verdict, worst, "; ".join(problems))


def alone(mode: str, backend: str, case: Case, dtype: str = "") -> str:
    """The command that runs one case."""
    words = ["python", "-m", "tests.conformance", mode, "--backend", backend]
    words += ["--dtype", dtype] * bool(dtype) + ["--filter", f"^{re.escape(str(case))}$"]
    return shlex.join(words)


def failures(backend: Backend, cases: Sequence[Case], dtype: str) -> list[str]:
    """Each case that fails, with the command that runs it alone."""
    rows = [(case, check(backend, case, dtype)) for case in cases]
    return [
        f"{row}\n  {alone('test', backend.name, case, dtype)}"
        for case, row in rows
        if row.verdict == "FAILED"
    ]


def is_smooth(case: Case) -> bool:
    """Whether finite differences of the case say anything: its inputs are of ordinary size.

    What a mask of 0 takes out is not looked at, so that the gradient by it is 0.
    """
    if case.options.get("history") in ("masked", "nan", "where"):
        return False
    return case.kind in ("normal", "ties", "a-one")


def check_gradient(backend: Backend, case: Case) -> Row:
    """Compare directional derivatives in float64 with the oracle's central differences.

    Five points instead of two, so that the step can be wide enough for the oracle's rounding.
    """
    name, dtype = str(case), "float64"
    gradient = getattr(backend, "gradient", None)
    reason = "no gradients" if gradient is None else _reason(backend, case, dtype)
    if not reason and not is_smooth(case):
        reason = "finite differences need inputs of ordinary size"
    if reason:
        return Row(backend.name, name, dtype, "skipped", detail=reason)
    assert gradient is not None
    example = make(case, dtype)
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    cotangents = {key: rng.standard_normal(x.shape) for key, x in example.wanted.items()}
    try:
        found = gradient(case, example.inputs, cotangents)
    except Exception as error:  # as in `check`
        detail = f"{type(error).__name__}: {error}"
        return Row(backend.name, name, dtype, "FAILED", float("inf"), detail)
    problems, worst, step = [], 0.0, 3e-5
    for key, x in example.inputs.items():
        direction = rng.standard_normal(x.shape)

        def along(distance: float, key: str = key, direction: np.ndarray = direction) -> float:
            moved = {**example.inputs, key: example.inputs[key] + distance * direction}
            outputs = evaluate(case, moved)
            return float(sum((outputs[o] * cotangents[o]).sum() for o in outputs))

        wanted = (8 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))) / (
            12 * step
        )
        got = float((found[key] * direction).sum())
        scale = float(np.abs(found[key] * direction).sum()) + 1e-3
        excess = abs(got - wanted) / (1e-5 * scale)
        worst = max(worst, excess)
        if not excess <= 1:
            problems.append(f"by '{key}': {got:.9g}, finite differences say {wanted:.9g}")
    verdict = "FAILED" if problems else "ok"
    return Row(backend.name, name, dtype, verdict, worst, "; ".join(problems))


def wrong_gradients(backend: Backend, cases: Sequence[Case]) -> list[str]:
    """Each case whose gradient is wrong, with the command that runs it alone."""
    rows = [(case, check_gradient(backend, case)) for case in cases]
    return [
        f"{row}\n  {alone('gradient', backend.name, case)}"
        for case, row in rows
        if row.verdict == "FAILED"
    ]


def test(
    backends: Sequence[Backend], cases: Sequence[Case], dtypes: Sequence[str]
) -> Iterator[Row]:
    """Every case in every type on every backend, against the oracle."""
    for case in cases:
        for dtype in [d for d in dtypes if d in case.dtypes]:
            for backend in backends:
                yield check(backend, case, dtype)


def gradient(
    backends: Sequence[Backend], cases: Sequence[Case], dtypes: Sequence[str]
) -> Iterator[Row]:
    """Gradients in float64 against finite differences of the oracle."""
    for case in cases:
        for backend in backends:
            yield check_gradient(backend, case)


def performance(
    backends: Sequence[Backend], cases: Sequence[Case], dtypes: Sequence[str]
) -> Iterator[Row]:
    """Median milliseconds of a call, after two calls that do not count, for at least 0.2 s."""
    for case in cases:
        for dtype in [d for d in dtypes if d in case.dtypes]:
            for backend in backends:
                if reason := _reason(backend, case, dtype):
                    yield Row(backend.name, str(case), dtype, "skipped", detail=reason)
                    continue
                run = backend.prepare(case, make(case, dtype).inputs, dtype)
                run()
                run()
                times: list[float] = []
                while len(times) < 5 or (sum(times) < 0.2 and len(times) < 1000):
                    start = time.perf_counter()
                    run()
                    times.append(time.perf_counter() - start)
                low, median, high = np.percentile(times, (10, 50, 90)) * 1e3
                detail = f"ms, 10th to 90th percentile {low:.3g} to {high:.3g}, {len(times)} calls"
                yield Row(backend.name, str(case), dtype, "ok", float(median), detail)


def support(
    backends: Sequence[Backend], cases: Sequence[Case], dtypes: Sequence[str]
) -> Iterator[Row]:
    """What each backend takes, and why it does not take the rest."""
    for case in cases:
        for dtype in [d for d in dtypes if d in case.dtypes]:
            for backend in backends:
                reason = _reason(backend, case, dtype)
                verdict = "skipped" if reason else "supported"
                yield Row(backend.name, str(case), dtype, verdict, detail=reason)


MODES: dict[str, Callable[[Sequence[Backend], Sequence[Case], Sequence[str]], Iterator[Row]]] = {
    "test": test,
    "gradient": gradient,
    "performance": performance,
    "support": support,
}
