"""The new file with its bodies, proven; where an operator is at fault, the others are kept."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from capsedge.graph.exact_sigmoid import write_exact_sigmoids
from capsedge.graph.functions import attach_functions
from capsedge.graph.layer_norm import replace_layer_norms
from capsedge.graph.proto import copy_of
from capsedge.graph.recognize.half import store_halves
from capsedge.graph.recognize.proof import Comparison, Original, prove
from capsedge.graph.recognize.recognition import Made, applied, recognition_of
from capsedge.graph.recognize.report import Left, Recognition
from capsedge.graph.recognize.values import Values
from capsedge.graph.views import merge_views

IR_VERSION = 10


def recognized_and_proven(
    original: Original,
    cleaned: onnx.ModelProto,
    made: Sequence[Made],
    left: Sequence[Left],
    graph: Values,
) -> tuple[onnx.ModelProto, list[Comparison], Recognition]:
    """The file with as many of the operators as the comparison with the original bears.

    Args:
        made: what may be put in.
        left: what is not recognized.
        graph: tells inputs and batch.

    Returns:
        The new file, the comparisons of the whole of it, what was found and left.
    """
    search = _Search(original, cleaned, graph)
    kept = search.keep([], list(made))
    changed, found = applied(cleaned, kept)
    finished, comparisons = search.tried(kept)
    reasons = [Left(f.place, f"{f.operator}: {why}") for f, why in search.refused]
    recognition = recognition_of(changed, found, left)
    return finished, comparisons, Recognition(recognition.found, (*recognition.left, *reasons))


class _Search:
    """Which edits the whole file bears, by halves: an edit at fault among k takes some 2 log k proofs."""

    def __init__(self, original: Original, cleaned: onnx.ModelProto, graph: Values) -> None:
        self.original, self.cleaned, self.graph = original, cleaned, graph
        self.refused = []  # type: ignore[var-annotated]
        self.proofs: dict[tuple[int, ...], tuple[onnx.ModelProto, list[Comparison]]] = {}

    def keep(self, base: list[Made], more: list[Made]) -> list[Made]:
        """The base and those of more that can be added to it."""
        if not more:
            return base
        _, comparisons = self.tried(base + more)
        if equal(comparisons):
            return base + more
        if len(more) == 1:
            self.refused.append((more[0][1], _why(comparisons)))
            return base
        half = len(more) // 2
        return self.keep(self.keep(base, more[:half]), more[half:])

    def tried(self, made: list[Made]) -> tuple[onnx.ModelProto, list[Comparison]]:
        """The file with these edits, and its proof."""
        key = tuple(id(edit) for edit, _ in made)
        if key not in self.proofs:
            changed, found = applied(self.cleaned, made)
            self.proofs = {key: _finished(self.original, changed, bool(found), self.graph)}
        return self.proofs[key]


def equal(comparisons: Sequence[Comparison]) -> bool:
    """Whether something was compared, and all of it is within tolerance."""
    return bool(comparisons) and all(c.excess <= 1 for c in comparisons)


def _why(comparisons: list[Comparison]) -> str:
    reason = "the whole file would differ from the original"
    worst = max(comparisons, key=lambda c: c.excess, default=None)
    if worst is None:
        return reason
    return f"{reason} by {worst.difference:.3g} ({worst.output}, {worst.case})"


def _finished(
    original: Original, model: onnx.ModelProto, recognized: bool, graph: Values
) -> tuple[onnx.ModelProto, list[Comparison]]:
    """Views merged, bodies attached, compared; excess infinite where it does not run."""
    finished = copy_of(model)
    described = list(finished.graph.value_info)
    try:
        inferred = onnx.shape_inference.infer_shapes(finished, data_prop=True)
        known = {v.name for v in described}
        finished.graph.value_info.extend(
            v for v in inferred.graph.value_info if v.name not in known
        )
        if recognized:
            replace_layer_norms(finished)
        write_exact_sigmoids(finished)
        merged = copy_of(finished)
        merge_views(merged)
        finished = merged
    except onnx.shape_inference.InferenceError:
        pass  # views stay as they are
    try:
        if recognized:
            finished.ir_version = max(finished.ir_version, IR_VERSION)
            attach_functions(finished)
        if original.truth is not None:
            store_halves(finished)
        return finished, prove(original, finished, graph)
    except Exception as error:  # ONNX Runtime's errors have no common public base
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        infinite = float("inf")
        return finished, [Comparison(why, "", infinite, infinite)]
