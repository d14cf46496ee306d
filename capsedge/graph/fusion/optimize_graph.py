"""Turn the bytes of another tool's file into an optimized one: convert, clean up, fuse, compare.

Calls go one way: from here to the batch (``free_axes``), to the matcher (``matcher``), which has each
hypothesis checked (``equivalence``), and to the final comparison (``proof``).

Run as ``python -m capsedge.graph.fusion.optimize_graph`` in a sandbox, it reads the file from standard input
and writes a line of JSON and the new file to standard output. Each step is named on a line of standard error,
so that the caller can report progress.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_field
from functools import partial
from typing import Any, Literal

import onnx
import onnx.helper
import onnx.inliner
import onnx.version_converter

from capsedge.errors import ParityError, UnsupportedModelError
from capsedge.graph.cleanup import remove_dead_nodes, simplify
from capsedge.graph.functions import attach_functions
from capsedge.graph.fusion import FusedOperator, FusionReport, NoMatch, NotFused
from capsedge.graph.fusion.constant_shapes import constant_shapes, without_single_softmaxes
from capsedge.graph.fusion.edit import between_casts, has_halves, widened, widened_as
from capsedge.graph.fusion.execution import one_line_message
from capsedge.graph.fusion.free_axes import (
    PROVED_AT,
    TYPICAL,
    NotFree,
    at_length,
    free_lengths,
    free_note,
    kept_note,
    optimized_at_sizes,
    prove_lengths,
    with_batch,
)
from capsedge.graph.fusion.matcher import (
    Replacement,
    apply_replacements,
    find_replacements,
    fusion_report,
)
from capsedge.graph.fusion.proof import (
    NOWHERE,
    TOLERANCE,
    Comparison,
    Finished,
    Original,
    all_within_tolerance,
    finish_and_compare,
    prove,
)
from capsedge.graph.fusion.unroll import unroll
from capsedge.graph.fusion.values import Values
from capsedge.graph.ir import copy_of, opset_of, replace_repeated
from capsedge.graph.merge import GraphsDiffer
from capsedge.graph.rewrites import write_exact_sigmoids, write_fast_convolutions
from capsedge.graph.write_shapes import write_shapes
from capsedge.runtime.files.sandbox import enter_sandbox

OLDEST, LEAST, WANTED = 8, 18, 20
Stage = Callable[[str], None]


@dataclass(frozen=True)
class OptimizedGraph:
    """An optimized file.

    Attributes:
        model: the file.
        fusion: what was fused, and what was not.
        notes: remarks on the cleanup and the file.
        opset_before, opset: opset of the standard operators, before and after.
        nodes_before, nodes: number of nodes in the graph, before and after.
        batch: ``free``, or the file's fixed batch size.
        inputs: sizes (0 for a free batch, a typical size for a free length) and numpy type of each, and the
            entries of the smallest table that it indexes, or 0.
        comparisons: comparisons with the original file.
    """

    model: bytes
    fusion: FusionReport
    notes: tuple[str, ...]
    opset_before: int
    opset: int
    nodes_before: int
    nodes: int
    batch: str
    inputs: dict[str, tuple[list[int], str, int]]
    comparisons: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only, without the model."""
        document = {
            k: v for k, v in vars(self).items() if k not in ("model", "fusion", "comparisons")
        }
        worst = max(self.comparisons, key=lambda c: c.excess, default=None)
        return document | {
            **self.fusion.to_dict(),
            "notes": list(self.notes),
            "comparisons": len(self.comparisons),
            "atol": TOLERANCE.atol,
            "rtol": TOLERANCE.rtol,
            "worst": None if worst is None else asdict(worst),
            "largest_difference": max((c.difference for c in self.comparisons), default=None),
        }


def optimize_model(
    data: bytes,
    stage: Stage = lambda _: None,
    batch: int | Literal["free", "keep"] = "free",
    products: bool = True,
) -> OptimizedGraph:
    """Convert, clean up, fuse and compare.

    Args:
        data: bytes of a file that ``graph.check`` accepted.
        stage: called with a description of each step.
        batch: ``free`` for a free batch if results stay the same, ``keep`` for the file's own, or a number.
        products: whether sums of products become matrix products.

    Raises:
        UnsupportedModelError: its opset is too old, or it cannot be converted, run, or given that batch.
        ParityError: even the cleaned-up file would not compute what the original does.
    """
    stage("loading")
    source = onnx.load_model_from_string(data)
    _check_opset(source)
    if free_lengths(source):
        return _of_every_length(source, stage, batch)
    original, sigmoids = _original(data, source)
    plain = _prepared(source)
    before = opset_of(plain)
    if before < LEAST:
        stage(f"converting from opset {before}")
    converted = _converted(plain, before)
    stage("cleaning")
    graph, notes = _cleaned(converted)
    cleaned = graph.model
    notes += sigmoids
    wide = widened(converted) if has_halves(converted) else None
    original.batch = 0 if graph.free else graph.batch
    if wide is not None:
        truth, _ = _with_exact_sigmoids(wide)
        original.truth = Original(truth.SerializeToString(), original.batch)
    stage("looking for a free batch")
    as_it_is = graph
    cleaned, graph, note = with_batch(cleaned, graph, original, batch)
    notes += note
    stage("fusing")
    made, not_fused = find_replacements(cleaned if wide is None else widened_as(cleaned, wide))
    if wide is not None:
        for edit, _ in (each for one in made for each in (one, *one[0].instead)):
            between_casts(edit, graph.kinds)
    stage("proving")
    finished, fusion = _borne(original, cleaned, made, not_fused, graph, products)
    better, comparisons = finished.model, finished.comparisons
    notes += finished.notes
    notes += _unrouted(fusion, not_fused)
    if not all_within_tolerance(comparisons):
        wanted = batch if as_it_is.free else "keep"
        better, graph, note = with_batch(
            _with_exact_sigmoids(converted)[0], as_it_is, original, wanted
        )
        comparisons = prove(original, better, graph)
        notes = ["the clean-up changed the numbers and was not kept", *note]
        if not all_within_tolerance(comparisons):
            raise _unprovable(comparisons)
    write_shapes(better)
    if fusion.fused and (fast := write_fast_convolutions(better)):
        attach_functions(better)  # the same Conv, so the proof stands
        notes.append(f"FastConv computes {fast} large convolution{'s' * (fast > 1)} on CPUs")
    if original.refused:
        case, why = next(iter(original.refused.items()))
        count = len(original.refused)
        notes.append(
            f"{count} of the inputs tried do not suit this file, which fails on them: {case}: {why}"
        )
    return _described(source, before, better, fusion, notes, graph, comparisons)


def _of_every_length(
    source: onnx.ModelProto, stage: Stage, batch: int | Literal["free", "keep"]
) -> OptimizedGraph:
    """Like ``optimize_model``, for a file with free axes besides the batch, which stay free.

    If that is impossible, the file is only converted to a newer opset.
    """
    plain = _prepared(source)
    before = opset_of(plain)
    converted = _converted(plain, before)
    parts: list[OptimizedGraph] = []

    def optimized(data: bytes, products: bool = True) -> tuple[bytes, FusionReport]:
        parts.append(optimize_model(data, stage, batch, products))
        return parts[-1].model, parts[-1].fusion

    try:
        try:
            better, fusion = optimized_at_sizes(source, converted, optimized)
        except NotFree as error:
            if not isinstance(error.__cause__, GraphsDiffer):
                raise
            # Values stored for one length, such as equal couplings.
            plain_sums = partial(optimized, products=False)
            better, fusion = optimized_at_sizes(source, converted, plain_sums)
        stage("proving")
        comparisons, lengths = prove_lengths(source, plain, better)
        if not all_within_tolerance(comparisons):
            raise NotFree(_differing(comparisons))
        notes = [*parts[-1].notes, free_note(source, lengths)]
    except NotFree as error:
        better, fusion = converted, FusionReport()
        stage("proving")
        comparisons, lengths = prove_lengths(source, plain, better)
        if not lengths:
            raise UnsupportedModelError(
                "The file has a free length, but it runs at none of the lengths tried.",
                f"Tried: {', '.join(map(str, PROVED_AT))}.",
                "Export it again with the length that it needs.",
            ) from error
        if not all_within_tolerance(comparisons):
            raise _unprovable(comparisons) from error
        notes = [kept_note(source, lengths, error)]
        if better.opset_import != source.opset_import:
            write_shapes(better)
    typical = next((sizes for sizes in lengths if {*sizes} == {TYPICAL}), lengths[-1])
    graph = _values(at_length(plain, *typical))
    fixed = str(batch) if isinstance(batch, int) else ""
    return _described(source, before, better, fusion, notes, graph, comparisons, fixed)


def _described(
    source: onnx.ModelProto,
    before: int,
    better: onnx.ModelProto,
    fusion: FusionReport,
    notes: Sequence[str],
    graph: Values,
    comparisons: Sequence[Comparison],
    batch: str = "",
) -> OptimizedGraph:
    """The result, with figures read from the two files.

    Args:
        before: the opset of the source.
        graph: the values of the optimized file, at one length if the length is free.
        batch: the requested batch; the graph's if empty.
    """
    return OptimizedGraph(
        better.SerializeToString(),
        fusion,
        tuple(notes),
        before,
        opset_of(better),
        len(source.graph.node),
        len(better.graph.node),
        batch or ("free" if graph.free else str(graph.batch)),
        _inputs_of(graph),
        tuple(comparisons),
    )


def _inputs_of(graph: Values) -> dict[str, tuple[list[int], str, int]]:
    """Sizes and numpy type of every input, and the entries of its table."""
    kinds = {name: onnx.helper.tensor_dtype_to_np_dtype(t) for name, t in graph.types.items()}
    return {
        name: (dims, str(kinds[name]), graph.tables.get(name, 0))
        for name, dims in graph.dims.items()
    }


def _borne(
    original: Original,
    cleaned: onnx.ModelProto,
    made: Sequence[Replacement],
    left: Sequence[NotFused],
    graph: Values,
    products: bool,
) -> tuple[Finished, FusionReport]:
    """The file with as many of the operators as the comparison with the original permits.

    Args:
        made: edits that insert operators.
        left: candidates that were not fused.
        graph: provides the inputs and the batch.
        products: whether sums of products become matrix products.

    Returns:
        The new file with its comparisons as a whole, and what was and was not fused.
    """
    search = _Search(original, cleaned, graph, products)
    kept = search.keep([], list(made))
    changed, found = apply_replacements(cleaned, kept)
    finished = search.tried(kept)
    reasons = [NotFused(f.tensor, f"{f.operator}: {why}") for f, why in search.refused]
    fusion = fusion_report(changed, found, left)
    return finished, FusionReport(fusion.fused, (*fusion.not_fused, *reasons))


class _Search:
    """Find by bisection the edits that pass in the whole file: one bad edit in k takes about 2 log k runs."""

    def __init__(
        self, original: Original, cleaned: onnx.ModelProto, graph: Values, products: bool
    ) -> None:
        self.original, self.cleaned, self.graph = original, cleaned, graph
        self.products = products
        self.refused: list[tuple[FusedOperator, str]] = []
        self.proofs: dict[tuple[int, ...], Finished] = {}

    def keep(self, base: list[Replacement], more: list[Replacement]) -> list[Replacement]:
        """The base plus the edits in ``more`` that can be added to it."""
        if not more:
            return base
        comparisons = self.tried(base + more).comparisons
        if all_within_tolerance(comparisons):
            return base + more
        if len(more) == 1:
            edit, match = more[0]
            if edit.instead:
                return self.keep(base, _noted(edit.instead, _differing(comparisons)))
            self.refused.append((match, _differing(comparisons)))
            return base
        half = len(more) // 2
        return self.keep(self.keep(base, more[:half]), more[half:])

    def tried(self, made: list[Replacement]) -> Finished:
        """The file with these edits, and its comparisons."""
        key = tuple(id(edit) for edit, _ in made)
        if key not in self.proofs:
            changed, found = apply_replacements(self.cleaned, made)
            self.proofs = {
                key: finish_and_compare(
                    self.original, changed, bool(found), self.graph, self.products
                )
            }
        return self.proofs[key]


def _noted(former: list[Replacement], reason: str) -> list[Replacement]:
    """The operators that one was to replace; the first says why it does not."""
    note = f"EMRouting: {len(former)} operators with equal weights are not one: {reason}"
    (edit, match), *others = former
    return [(edit, replace_field(match, notes=(*match.notes, note))), *others]


def _differing(comparisons: list[Comparison]) -> str:
    """Why a file with an operator is rejected."""
    reason = "the whole file would differ from the original"
    worst = max(comparisons, key=lambda c: c.excess, default=None)
    if worst is None:
        return reason
    return f"{reason} by {worst.difference:.3g} ({worst.output}, {worst.case})"


def _unrouted(fusion: FusionReport, not_fused: Sequence[NotFused]) -> list[str]:
    """Notes on why no routing was found, if nothing else in the report explains it."""
    squashes = sum(found.operator == "Squash" for found in fusion.fused)
    if fusion.not_fused or squashes < len(fusion.fused):
        return []
    if not_fused:
        return [f"no routing was fused: {not_fused[0].reason}"]
    note = "no routing was fused: no softmax weighs anything by what comes in"
    if not squashes:
        return [f"{note}; other ways to route are not looked for"]
    return [
        f"{note}, though there are capsules ({squashes} squash{'es' * (squashes > 1)}). One pass over equal "
        "couplings is a mean of the votes and needs no operator; couplings without a softmax are not looked "
        "for"
    ]


def _original(data: bytes, source: onnx.ModelProto) -> tuple[Original, list[str]]:
    """The reference for the new file, and notes on it."""
    exact, count = _with_exact_sigmoids(source)
    if not count:
        return Original(data), []
    note = f"{count} Sigmoid{'s' * (count > 1)} written exactly: ONNX Runtime's is 0 below -18"
    return Original(exact.SerializeToString()), [note]


def _values(model: onnx.ModelProto) -> Values:
    """The values of a graph, from whose file the shapes that it records are removed."""
    del model.graph.value_info[:]
    try:
        return Values(model)
    except NoMatch as error:
        raise UnsupportedModelError(
            "The graph cannot be run.",
            f"{error}.",
            "Only graphs that run can be compared with the result.",
        ) from error


def _unprovable(comparisons: list[Comparison]) -> ParityError:
    """The error for a file that cannot be optimized."""
    worst = max(comparisons, key=lambda c: c.excess)
    if worst.case == NOWHERE:
        return ParityError(
            "The file cannot be compared with a result; nothing was written.",
            f"Its output '{worst.output}' is not finite on any of the inputs tried.",
            "Use the file as it is.",
        )
    return ParityError(
        "The rewritten file would compute different results; nothing was written.",
        f"Output '{worst.output}' on input '{worst.case}': largest difference "
        f"{worst.difference:.3g}, {worst.excess:.3g} times the tolerance "
        f"(atol {TOLERANCE.atol:g}, rtol {TOLERANCE.rtol:g}).",
        "Use the file as it is.",
    )


def _check_opset(source: onnx.ModelProto) -> None:
    if not any(e.domain in ("", "ai.onnx") for e in source.opset_import):
        raise UnsupportedModelError(
            "The file does not import the standard ONNX operators.", "", "Use the file as it is."
        )
    if opset_of(source) < OLDEST:
        raise UnsupportedModelError(
            f"The file has opset {opset_of(source)}.",
            f"Files from opset {OLDEST} on are supported.",
            "Export it again.",
        )


def _with_exact_sigmoids(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The file with Sigmoids rewritten where ONNX Runtime deviates from ONNX, and their number."""
    exact = copy_of(model)
    try:
        count = write_exact_sigmoids(exact)
    except onnx.shape_inference.InferenceError:
        return model, 0
    if not count:
        return model, 0
    exact.ir_version = max(exact.ir_version, 4)  # below 4, every initializer is an input
    return exact, count


def _prepared(source: onnx.ModelProto) -> onnx.ModelProto:
    """The file without functions of its own and without weights among its inputs (as in IR version 3)."""
    model = onnx.inliner.inline_local_functions(source) if source.functions else copy_of(source)
    stored = {t.name for t in model.graph.initializer}
    replace_repeated(model.graph.input, [i for i in model.graph.input if i.name not in stored])
    model.ir_version = max(model.ir_version, 8)
    return model


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    if opset >= LEAST:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, WANTED)
    except Exception as error:  # the converter raises many types of exceptions, none of them ours
        raise UnsupportedModelError(
            f"The file cannot be converted from opset {opset} to {WANTED}.",
            f"ONNX's version converter says: {one_line_message(error)}",
            f"Export it again with opset {LEAST} or later.",
        ) from error
    converted.ir_version = max(converted.ir_version, 8)
    return converted


def _cleaned(model: onnx.ModelProto) -> tuple[Values, list[str]]:
    """The graph in a normal form, and notes on what was changed; raises as `_values`."""
    notes: list[str] = []
    remove_dead_nodes(model)
    cleaned = _simplified(model, notes)
    cleaned, loops = unroll(cleaned)
    if loops:
        notes.append(f"{loops} loop{'s' * (loops > 1)} with a fixed number of passes unrolled")
        cleaned = _simplified(cleaned, notes)
    graph = _values(cleaned)
    cleaned, made = constant_shapes(graph)
    if made:
        notes.append(f"{made} computed shapes made constant")
        graph = _values(_simplified(cleaned, notes))
    cleaned, single = without_single_softmaxes(graph)
    if single:
        plural = "es" * (single > 1)
        notes.append(f"{single} softmax{plural} over one element replaced: its result is 1")
        graph = _values(_simplified(cleaned, notes))
    return graph, notes


def _signature(model: onnx.ModelProto) -> list[str]:
    return [v.name for v in (*model.graph.input, *model.graph.output)]


def _simplified(model: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """The simplified model; the model itself if that fails, as it may on other tools' files."""
    try:
        simplified = simplify(model)
        if _signature(simplified) != _signature(model):
            raise ValueError("inputs and outputs would change their names")
        return simplified
    except Exception as error:  # many types, none of them ours
        note = f"constants could not be folded: {one_line_message(error)}"
        notes += [note] if note not in notes else []
        return copy_of(model)


# --- The sandboxed process (`capsedge.runtime.files.sandbox`), with the batch as its argument ---


def main() -> None:
    """Optimize the file on standard input under the limits given as arguments."""
    (word,) = enter_sandbox()
    batch = int(word) if word.isdigit() else word
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print to standard output
    from capsedge.errors import CapsedgeError

    data = sys.stdin.buffer.read()
    model = b""
    try:
        improved = optimize_model(data, _report, batch)  # type: ignore[arg-type]
        document, model = improved.to_dict(), improved.model
    except CapsedgeError as error:
        document = {"error": [type(error).__name__, error.what, error.why, error.fix]}
    except MemoryError:
        document = {"error": ["UnsupportedModelError", "The file needs too much memory.", "", ""]}
    except Exception as error:  # whatever other libraries raise on odd files
        traceback.print_exc()
        why = f"While {_stages[-1]}, {type(error).__name__} says: {one_line_message(error)}"
        words = ["The file cannot be optimized.", why, "Use the file as it is."]
        document = {"error": ["UnsupportedModelError", *words]}
    answer.write(json.dumps(document).encode() + b"\n" + model)
    answer.close()


_stages = ["starting"]


def _report(what: str) -> None:
    _stages.append(what)
    print(f"stage: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
