"""Checks of a file before it is written: loading in ONNX Runtime, parity with PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from capsedge.errors import CapsedgeError
from capsedge.exporters.export_report import CaseParity
from capsedge.exporters.own_modules import in_double, run_double
from capsedge.judging.tolerance import TRACE, Tolerance, excess, undefined
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.routing_trace import PREFIX

if TYPE_CHECKING:
    import onnxruntime


def session_of(model: onnx.ModelProto, threads: int = 0) -> onnxruntime.InferenceSession:
    """Load a model in ONNX Runtime on the CPU.

    Raises:
        CapsedgeError: ONNX Runtime refuses it.
        EnvironmentProblem: it is missing.
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime's errors have no common public base
        why, *more = str(error).strip().split("\n")
        raise CapsedgeError(
            "ONNX Runtime cannot load the exported model.", why, details=more
        ) from error


Case = tuple[str, list[Tensor]]
MOST_GIVEN = 64  # of the user's inputs that are compared


def input_cases(example: Sequence[Tensor], batches: Sequence[int]) -> list[Case]:
    """Random and hard inputs of the shapes and types of the example, one list of tensors per case.

    Zeros; values of 1e-6 and 1e3 times the usual; all equal (every child ties); one spike. Integers, which
    may be indices, are the example's, or lie between the example's at the same position.
    """
    generator, indices = (torch.Generator().manual_seed(seed) for seed in (0, 4))

    def fill(kind: str, batch: int) -> list[Tensor]:
        inputs = []
        for x in example:
            shape = (batch, *x.shape[1:])
            if not x.dtype.is_floating_point:
                rows = x[torch.arange(batch) % len(x)]
                inputs.append(rows if kind == "uniform" else drawn_within(x, batch, indices))
                continue
            value = torch.rand(shape, generator=generator)
            if kind == "normal":
                value = torch.randn(shape, generator=generator)
            elif kind == "zero":
                value = torch.zeros(shape)
            elif kind == "tiny":
                value *= 1e-6
            elif kind == "huge":
                value *= 1e3
            elif kind == "equal":
                value = torch.full(shape, 0.5)
            elif kind == "spike":
                value = torch.zeros(shape)
                value.flatten(1)[:, value[0].numel() // 2] = 1.0
            inputs.append(value.to(x.dtype))
        return inputs

    kinds = ("uniform", "normal", "zero", "tiny", "huge", "equal", "spike")
    return [(f"{kind}, batch {n}", fill(kind, n)) for n in batches for kind in kinds]


def drawn_within(example: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """Rows drawn between the least and the largest of the example at each position; whole where it is."""
    least, most = (v.double() for v in (example.amin(0), example.amax(0)))
    drawn = torch.rand((batch, *least.shape), generator=generator, dtype=torch.float64)
    whole = bool((example.double() == example.double().round()).all())
    wanted = (
        least + torch.floor(drawn * (most - least + 1)) if whole else least + drawn * (most - least)
    )
    return wanted.clamp(least, most).to(example.dtype)


def given_cases(inputs: Sequence[Tensor], batches: Sequence[int]) -> list[Case]:
    """The user's own inputs in batches of these sizes, the first of them."""
    cases: list[Case] = []
    at, count = 0, len(inputs[0])
    for n in itertools.cycle(batches):
        if at + n > min(count, MOST_GIVEN):
            break
        cases.append((f"your inputs {at} to {at + n - 1}", [x[at : at + n] for x in inputs]))
        at += n
    if not cases:  # fewer than the least batch: repeated
        n = batches[0]
        rows = torch.arange(n) % count
        cases.append((f"your inputs, repeated to batch {n}", [x[rows] for x in inputs]))
    return cases


def compare(
    session: onnxruntime.InferenceSession,
    module: nn.Module,
    names: Sequence[str],
    cases: Sequence[Case],
    atol: float,
    rtol: float,
    own: Sequence[Tensor] = (),
) -> tuple[CaseParity, ...]:
    """Compare a loaded file with the eager module on every case.

    An element passes by ``judging.tolerance.excess``, where the noise is the difference of the FP32 module
    from itself in FP64 along the last axis, in a trace over an iteration of an image. The FP64 run is made
    only for a case that fails without it.

    Args:
        module: returns a tuple of tensors, one per name.
        own: the user's own inputs; cases outside their range are marked.

    Returns:
        One result per case and output; an output that is not finite does not pass.
    """
    results = []
    feeds = [i.name for i in session.get_inputs()]
    for case, tensors in cases:
        with torch.no_grad():
            wanted = [t.numpy() for t in module(*tensors)]
        arrays = dict(zip(feeds, [t.numpy() for t in tensors], strict=True))
        found = session.run(list(names), arrays)
        rows = [
            _compare(case, *each, None, atol, rtol)
            for each in zip(names, found, wanted, strict=True)
        ]
        if not all(r.passed for r in rows):
            precise = _run_exact(module, tensors, wanted)
            rows = [
                _compare(case, *each, atol, rtol)
                for each in zip(names, found, wanted, precise, strict=True)
            ]
        results.extend(rows)
    beyond = outside(cases, own) if own else set[str]()
    return tuple(replace(r, outside=r.case in beyond) for r in results)


def outside(cases: Sequence[Case], inputs: Sequence[Tensor]) -> set[str]:
    """The cases with values below the least or above the largest of the user's inputs."""
    found = set()
    for name, tensors in cases:
        for x, own in zip(tensors, inputs, strict=True):
            if x.dtype.is_floating_point and (x.min() < own.min() or x.max() > own.max()):
                found.add(name)
    return found


def _run_exact(
    module: nn.Module, tensors: Sequence[Tensor], wanted: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The module's outputs in FP64; in FP32 if its code fixes a type and it cannot run in FP64."""
    try:
        with torch.no_grad():
            return [t.numpy() for t in run_double(in_double(module), tensors)]
    except Exception:  # of the user's code: any kind
        return list(wanted)


def _shared_axes(name: str, rank: int) -> tuple[int, ...]:
    """The axes along which rounding is shared: a pose; in a trace, all that an iteration makes of an image,
    because every vote has a part in every parent, and each parent in all couplings."""
    return tuple(range(2, rank)) if name.startswith(PREFIX) else (-1,)


def _compare(
    case: str,
    name: str,
    found: np.ndarray,
    wanted: np.ndarray,
    precise: np.ndarray | None,
    atol: float,
    rtol: float,
) -> CaseParity:
    if found.shape != wanted.shape or not np.isfinite(found.astype(np.float64)).all():
        infinite = float("inf")
        return CaseParity(case, name, infinite, infinite, 0.0, infinite, False)
    reference = wanted.astype(np.float64)
    difference = np.abs(found.astype(np.float64) - reference)
    own = np.zeros_like(reference) if precise is None else reference - precise
    size = np.abs(reference).max(axis=-1, keepdims=True, initial=0.0)
    error = np.abs(own).max(axis=_shared_axes(name, own.ndim), keepdims=True, initial=0.0)
    tolerance = Tolerance(max(atol, TRACE.atol) if name.startswith(PREFIX) else atol, rtol)
    ratio = excess(difference, reference, tolerance, error)
    worst = float(ratio.max(initial=0.0))
    relative = float((difference / np.maximum(size, atol)).max(initial=0.0))
    return CaseParity(
        case,
        name,
        float(difference.max(initial=0.0)),
        relative,
        float(error.max(initial=0.0)),
        worst,
        worst <= 1.0,
        ill_conditioned=bool((undefined(reference, error) & (ratio > 1)).any()),
    )
