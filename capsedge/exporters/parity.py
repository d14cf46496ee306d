"""Check a file before it is written: it loads in ONNX Runtime and agrees with PyTorch."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.export_report import CaseParity, ExportReport
from capsedge.exporters.flat_module import resize_free_axes, run_fp64, to_fp64
from capsedge.exporters.subject import Subject
from capsedge.graph import Rewrites
from capsedge.graph.ir import Graph
from capsedge.models.user.code import first_message_line, line_of, node_lines
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.backends.onnxruntime_session import without_spinning
from capsedge.runtime.session.routing_trace import PREFIX
from capsedge.tolerance import TRACE, Tolerance, excess, undefined

if TYPE_CHECKING:
    import onnxruntime


# --- Loading and parity ---


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
    without_spinning(options)
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
MAX_USER_CASES = 64  # how many of the user's inputs are compared


def input_cases(example: Sequence[Tensor], batches: Sequence[int]) -> list[Case]:
    """Random and hard inputs of the shapes and types of the example, one list of tensors per case.

    Zeros; values of 1e-6 and 1e3 times the usual; all equal (every child ties); one spike; zeros and ones
    among other values, as in masks. Integers, which may be indices, are the example's, or lie between the
    example's at the same position.
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
            elif kind == "mixed":
                exact = torch.randint(3, shape, generator=generator)
                value = torch.where(exact < 2, exact.to(value.dtype), value)
            inputs.append(value.to(x.dtype))
        return inputs

    kinds = ("uniform", "normal", "zero", "tiny", "huge", "equal", "spike", "mixed")
    return [(f"{kind}, batch {n}", fill(kind, n)) for n in batches for kind in kinds]


LENGTHS = (1, 2, 7)  # of free axes, besides the example's length and twice that


def length_cases(
    example: Sequence[Tensor],
    free_axes: Sequence[Sequence[int]],
    batches: Sequence[int],
    most: Sequence[Sequence[int]] = (),
) -> list[Case]:
    """Inputs of other lengths: the example, cut or repeated from the start.

    Several lengths differ from each other in all cases that their limits permit.

    Args:
        free_axes: free axes of each input; those of one size have one length.
        most: for each input, the largest size of each axis (0: any), which no case exceeds; empty without
            limits.
    """
    limits: dict[int, int] = {}  # of each length, by its size in the example
    for n, (x, axes) in enumerate(zip(example, free_axes, strict=True)):
        for k in axes:
            size, largest = int(x.shape[k]), most[n][k] if most else 0
            known = limits.get(size, 0)
            limits[size] = min(known, largest) if known and largest else known or largest
    tried = {size: (*LENGTHS, 2 * size) for size in limits}
    combinations = {
        tuple(
            min(tried[size][(k + n) % len(tried[size])], limit or sys.maxsize)
            for n, (size, limit) in enumerate(limits.items())
        ): None
        for k in range(len(LENGTHS) + 1)
    }
    cases: list[Case] = []
    for sizes in combinations:
        other = resize_free_axes(example, free_axes, dict(zip(limits, sizes, strict=True)))
        for name, tensors in input_cases(other, batches):
            kind, _, batch = name.partition(",")
            if kind in ("uniform", "normal"):
                cases.append((f"{kind} of length {'x'.join(map(str, sizes))},{batch}", tensors))
    return cases


def drawn_within(example: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """Rows drawn within the example's range at each position; integers stay integers."""
    least, most = (v.double() for v in (example.amin(0), example.amax(0)))
    drawn = torch.rand((batch, *least.shape), generator=generator, dtype=torch.float64)
    whole = bool((example.double() == example.double().round()).all())
    wanted = (
        least + torch.floor(drawn * (most - least + 1)) if whole else least + drawn * (most - least)
    )
    return wanted.clamp(least, most).to(example.dtype)


def user_cases(inputs: Sequence[Tensor], batches: Sequence[int]) -> list[Case]:
    """The user's own inputs in batches of these sizes, the first of them."""
    cases: list[Case] = []
    at, count = 0, len(inputs[0])
    for n in itertools.cycle(batches):
        if at + n > min(count, MAX_USER_CASES):
            break
        cases.append((f"your inputs {at} to {at + n - 1}", [x[at : at + n] for x in inputs]))
        at += n
    if not cases:  # fewer than the smallest batch: repeat them
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

    An element passes by ``tolerance.excess``, where the noise is the difference between the module in FP32
    and in FP64, along the last axis or, in a trace, over one iteration of an image. The FP64
    run is made only for a case that fails without it.

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
    beyond = out_of_range_cases(cases, own) if own else set[str]()
    return tuple(replace(r, outside=r.case in beyond) for r in results)


def out_of_range_cases(cases: Sequence[Case], inputs: Sequence[Tensor]) -> set[str]:
    """The cases with values outside the range of the user's inputs."""
    found = set()
    for name, tensors in cases:
        for x, own in zip(tensors, inputs, strict=True):
            if x.dtype.is_floating_point and (x.min() < own.min() or x.max() > own.max()):
                found.add(name)
    return found


def _run_exact(
    module: nn.Module, tensors: Sequence[Tensor], expected: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The module's outputs in FP64; in FP32 if its code fixes a type and it cannot run in FP64."""
    try:
        with torch.no_grad():
            return [t.numpy() for t in run_fp64(to_fp64(module), tensors)]
    except Exception:  # any kind, from the user's code
        return list(expected)


def _shared_axes(name: str, rank: int) -> tuple[int, ...]:
    """The axes along which rounding is shared: a pose or, in a trace, an iteration's results for an image.

    In a trace, every vote contributes to every parent, and every parent to all couplings.
    """
    return tuple(range(2, rank)) if name.startswith(PREFIX) else (-1,)


def _compare(
    case: str,
    name: str,
    actual: np.ndarray,
    expected: np.ndarray,
    precise: np.ndarray | None,
    atol: float,
    rtol: float,
) -> CaseParity:
    if actual.shape != expected.shape or not np.isfinite(actual.astype(np.float64)).all():
        infinite = float("inf")
        return CaseParity(case, name, infinite, infinite, 0.0, infinite, False)
    reference = expected.astype(np.float64)
    difference = np.abs(actual.astype(np.float64) - reference)
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


# --- Diagnosis: whether rewrites are involved, and the first node that differs ---

Make = Callable[[int | None, Rewrites, bool], tuple[onnx.ModelProto, torch.export.ExportedProgram]]
"""From the batch, the rewrites and whether to fuse, makes a runnable graph and its captured program."""


def diagnose(
    subject: Subject,
    make: Make,
    batch: int | None,
    rewrites: Rewrites,
    cases: Sequence[Case],
    report: ExportReport,
) -> str:
    """The origin of the worst required difference, in a sentence or two; empty if it cannot be determined."""
    failed = [p for p in report.parity if not p.passed and not p.outside]
    worst = max(failed, key=lambda p: p.excess)
    case = next(c for c in cases if c[0] == worst.case)

    def agrees(rewrites: Rewrites, fuse: bool) -> bool:
        session = session_of(make(batch, rewrites, fuse)[0])
        found = compare(
            session, subject.reference, subject.compared, [case], report.atol, report.rtol
        )
        return all(p.passed for p in found)

    try:
        if agrees(Rewrites.none(), fuse=False):
            return f"The plain export agrees: {_part(agrees, rewrites, bool(report.fusion.fused))}."
        model, program = make(len(case[1][0]), Rewrites.none(), False)
        node = _first_node(model, program, case[1], Tolerance(report.atol, report.rtol))
    except CapsedgeError as error:
        return f"The cause could not be found: {error.what}"
    except Exception as error:  # from torch or ONNX Runtime; the comparison must still be reported
        return f"The cause could not be found: {first_message_line(error)}"
    plain = "Rewrites have no part in it: the plain export differs too."
    return f"{plain} {node}"


def _part(agrees: Callable[[Rewrites, bool], bool], rewrites: Rewrites, fused: bool) -> str:
    if fused and agrees(rewrites, False):
        return "the difference comes from the operators that replaced its routing"
    for each in fields(rewrites):
        if getattr(rewrites, each.name) and agrees(replace(rewrites, **{each.name: False}), True):
            return f"the rewrite '{each.name}' makes the difference; leave it out"
    return "several rewrites together make the difference; leave all of them out"


def _first_node(
    model: onnx.ModelProto,
    program: torch.export.ExportedProgram,
    tensors: Sequence[Tensor],
    tolerance: Tolerance,
) -> str:
    """The first value of the program that the file computes differently."""
    recorded = _NodeRecorder(program.module())
    with torch.no_grad():
        recorded.run(*tensors)
    graph = Graph.of(model.graph)
    names = [n for n in recorded.values if n in graph.produced]
    wanted = (n for n in names if n not in graph.outputs)
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
    session = session_of(model)
    feeds = {i.name: t.numpy() for i, t in zip(session.get_inputs(), tensors, strict=True)}
    found = session.run(names, feeds)
    for name, array in zip(names, found, strict=True):
        expected, line = recorded.values[name]
        if _differs(array, expected, tolerance):
            producer = graph.producer(name)
            assert producer is not None
            kind = producer.op_type
            return f"First to differ: '{name}' ({kind})" + (f", {line}." if line else ".")
    return "No node differs by itself: rounding grows on the way."


def _differs(actual: np.ndarray, expected: np.ndarray, tolerance: Tolerance) -> bool:
    if actual.shape != expected.shape:
        return True
    if expected.dtype.kind != "f":
        return not np.array_equal(actual, expected)
    reference = np.atleast_1d(expected.astype(np.float64))
    finite = np.isfinite(reference)
    off = np.abs(np.atleast_1d(actual.astype(np.float64)) - np.where(finite, reference, 0))[finite]
    size = np.abs(reference[finite]).max(initial=0.0)
    whole = np.full((len(off), 1), size)
    return bool(len(off)) and not excess(off[:, None], whole, tolerance, 0.0).max() <= 1


class _NodeRecorder(torch.fx.Interpreter):
    """Runs a program and records every tensor with the user's line that produced it."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.values: dict[str, tuple[np.ndarray, str]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op == "call_function":
            self.values[n.name] = (value.detach().numpy().copy(), next(node_lines(n), ""))
        return value


# --- Hard inputs that a user's module accepts; a failure on one says nothing about the file ---

_NOT_FINITE = "it gives values that are NaN or infinite"


def accepted_inputs(
    module: nn.Module, cases: Sequence[Case], example: Sequence[Tensor], batches: Sequence[int]
) -> tuple[list[Case], tuple[str, ...]]:
    """The cases that the module accepts, and notes on the others.

    Each kind is tried at the smallest batch; if one is refused, every case is tried. Inputs within the
    example's range at each position replace the refused ones.

    Args:
        cases: of `input_cases`, named ``kind, batch n``.
        example: the user's.

    Raises:
        UnsupportedModelError: it takes none of them.
    """
    smallest = min(len(tensors[0]) for _, tensors in cases)
    refused = {n: w for n, t in cases if len(t[0]) == smallest and (w := _refusal(module, t))}
    if not refused:
        return list(cases), ()
    refused = {name: why for name, tensors in cases if (why := _refusal(module, tensors))}
    generator = torch.Generator().manual_seed(3)
    standing_in: list[Case] = [
        (f"within your example, batch {n}", [drawn_within(x, n, generator) for x in example])
        for n in batches
    ]
    kept = [(name, tensors) for name, tensors in cases if name not in refused]
    for name, tensors in standing_in:
        why = _refusal(module, tensors)
        if not why:
            kept.append((name, tensors))
        elif not kept:
            raise UnsupportedModelError(
                "There is no input on which to compare the file with PyTorch.",
                "The module fails on every input that was tried, including inputs in the example's "
                f"range: {why}",
                "Pass inputs that it accepts: --example inputs.npz, with one array per input, batch first.",
            )
    kinds = ", ".join(dict.fromkeys(name.partition(",")[0] for name in refused))
    why = next(iter(refused.values()))
    return kept, (
        f"the module itself does not take these hard inputs, which were left out: {kinds} ({why})",
    )


def _refusal(module: nn.Module, tensors: Sequence[Tensor]) -> str:
    """Why the module refuses an input, with the user's line; empty if it accepts it."""
    try:
        with torch.no_grad():
            outputs = module(*tensors)
    except Exception as error:  # any kind, from the user's code
        where = line_of(error)
        text = f"{type(error).__name__}: {first_message_line(error)}"
        return f"{text}; {where}" if where else text
    finite = all(torch.isfinite(v).all() for v in outputs if v.is_floating_point())
    return "" if finite else _NOT_FINITE
