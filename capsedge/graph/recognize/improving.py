"""From the bytes of a foreign file to a better file: converted, cleaned, recognized, proven.

Calls go one way: from here to the batch (`batching`), to the matcher (`recognition`), which asks `accept` of
each hypothesis, and to the proof (`finishing`, `proof`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import onnx
import onnx.helper
import onnx.inliner
import onnx.version_converter

from capsedge.errors import ParityError, UnsupportedModelError
from capsedge.graph.cleaning import remove_dead_nodes
from capsedge.graph.exact_sigmoid import write_exact_sigmoids
from capsedge.graph.proto import copy_of, opset_of, replace
from capsedge.graph.random_nodes import refuse_random
from capsedge.graph.recognize.batching import with_batch
from capsedge.graph.recognize.finishing import finished
from capsedge.graph.recognize.half import between_casts, has_halves, widened, widened_as
from capsedge.graph.recognize.proof import (
    NOWHERE,
    TOLERANCE,
    Comparison,
    Original,
    equal,
    prove,
)
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.recognition import Made, applied, candidates, recognition_of
from capsedge.graph.recognize.report import Found, Left, Recognition
from capsedge.graph.recognize.targets import constant_shapes
from capsedge.graph.recognize.unroll import unroll
from capsedge.graph.recognize.values import Values, first_line
from capsedge.graph.simplify import simplify
from capsedge.graph.stated_shapes import state_shapes

OLDEST, LEAST, WANTED = 8, 18, 20
Stage = Callable[[str], None]


@dataclass(frozen=True)
class Improved:
    """A better file.

    Attributes:
        model: the file.
        recognition: what was found and left.
        notes: of the clean-up and of the file, for a person.
        opset_before, opset: of the standard operators.
        nodes_before, nodes: of the graph.
        batch: ``free``, or the number that the file is fixed to.
        inputs: sizes (0 where free) and numpy type of each.
        comparisons: with the original bytes.
    """

    model: bytes
    recognition: Recognition
    notes: tuple[str, ...]
    opset_before: int
    opset: int
    nodes_before: int
    nodes: int
    batch: str
    inputs: dict[str, tuple[list[int], str]]
    comparisons: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only, without the model."""
        document = {
            k: v for k, v in vars(self).items() if k not in ("model", "recognition", "comparisons")
        }
        worst = max(self.comparisons, key=lambda c: c.excess, default=None)
        return document | {
            **self.recognition.to_dict(),
            "notes": list(self.notes),
            "comparisons": len(self.comparisons),
            "atol": TOLERANCE.atol,
            "rtol": TOLERANCE.rtol,
            "worst": None if worst is None else asdict(worst),
            "largest_difference": max((c.difference for c in self.comparisons), default=None),
        }


def improve(
    data: bytes, stage: Stage = lambda _: None, batch: int | Literal["free", "keep"] = "free"
) -> Improved:
    """Convert, clean, recognize and prove.

    Args:
        data: of a file that ``read_harmless`` took.
        stage: told what is being done.
        batch: ``free`` where that can be proven, ``keep`` what the file has, or a number.

    Raises:
        UnsupportedModelError: its opset is too old, or it cannot be converted or run, or have that batch.
        ParityError: even the cleaned file would not compute what the original does.
    """
    stage("loading")
    source = onnx.load_model_from_string(data)
    _check_opset(source)
    refuse_random(source)
    original, sigmoids = _original(data, source)
    plain = _prepared(source)
    before = opset_of(plain)
    if before < LEAST:
        stage(f"converting from opset {before}")
    converted = _converted(plain, before)
    stage("cleaning")
    cleaned, notes = _cleaned(converted)
    notes += sigmoids
    graph = _values(cleaned)
    wide = widened(converted) if has_halves(converted) else None
    original.batch = 0 if graph.free else graph.batch
    if wide is not None:
        truth, _ = _with_exact_sigmoids(wide)
        original.truth = Original(truth.SerializeToString(), original.batch)
    stage("looking for a free batch")
    as_it_is = graph
    cleaned, graph, said = with_batch(cleaned, graph, original, batch)
    notes += said
    stage("recognizing")
    made, left = candidates(cleaned if wide is None else widened_as(cleaned, wide))
    for edit, _ in made if wide is not None else ():
        between_casts(edit, graph.kinds)
    stage("proving")
    better, comparisons, recognition = _borne(original, cleaned, made, left, graph)
    notes += _unrouted(recognition, left)
    if not equal(comparisons):
        wanted = batch if as_it_is.free else "keep"
        better, graph, said = with_batch(
            _with_exact_sigmoids(converted)[0], as_it_is, original, wanted
        )
        comparisons = prove(original, better, graph)
        notes = ["the clean-up changed the numbers and was not kept", *said]
        if not equal(comparisons):
            raise _unprovable(comparisons)
    state_shapes(better)
    if original.refused:
        case, why = next(iter(original.refused.items()))
        count = len(original.refused)
        notes.append(
            f"{count} of the inputs tried are none of this file, which fails on them: {case}: {why}"
        )
    return Improved(
        better.SerializeToString(),
        recognition,
        tuple(notes),
        before,
        opset_of(better),
        len(source.graph.node),
        len(better.graph.node),
        "free" if graph.free else str(graph.batch),
        {
            k: (d, str(onnx.helper.tensor_dtype_to_np_dtype(graph.types[k])))
            for k, d in graph.dims.items()
        },
        tuple(comparisons),
    )


def _borne(
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
    better, comparisons = search.tried(kept)
    reasons = [Left(f.place, f"{f.operator}: {why}") for f, why in search.refused]
    recognition = recognition_of(changed, found, left)
    return better, comparisons, Recognition(recognition.found, (*recognition.left, *reasons))


class _Search:
    """Which edits the whole file bears, by halves: an edit at fault among k takes some 2 log k proofs."""

    def __init__(self, original: Original, cleaned: onnx.ModelProto, graph: Values) -> None:
        self.original, self.cleaned, self.graph = original, cleaned, graph
        self.refused: list[tuple[Found, str]] = []
        self.proofs: dict[tuple[int, ...], tuple[onnx.ModelProto, list[Comparison]]] = {}

    def keep(self, base: list[Made], more: list[Made]) -> list[Made]:
        """The base and those of more that can be added to it."""
        if not more:
            return base
        _, comparisons = self.tried(base + more)
        if equal(comparisons):
            return base + more
        if len(more) == 1:
            self.refused.append((more[0][1], _differing(comparisons)))
            return base
        half = len(more) // 2
        return self.keep(self.keep(base, more[:half]), more[half:])

    def tried(self, made: list[Made]) -> tuple[onnx.ModelProto, list[Comparison]]:
        """The file with these edits, and its proof."""
        key = tuple(id(edit) for edit, _ in made)
        if key not in self.proofs:
            changed, found = applied(self.cleaned, made)
            self.proofs = {key: finished(self.original, changed, bool(found), self.graph)}
        return self.proofs[key]


def _differing(comparisons: list[Comparison]) -> str:
    """Why a file with an operator is refused."""
    reason = "the whole file would differ from the original"
    worst = max(comparisons, key=lambda c: c.excess, default=None)
    if worst is None:
        return reason
    return f"{reason} by {worst.difference:.3g} ({worst.output}, {worst.case})"


def _unrouted(recognition: Recognition, left: Sequence[Left]) -> list[str]:
    """Why there is no routing in the report, where neither an operator nor a line of it says so."""
    squashes = sum(found.operator == "Squash" for found in recognition.found)
    if recognition.left or squashes < len(recognition.found):
        return []
    if left:
        return [f"no routing was recognized: {left[0].reason}"]
    said = "no routing was recognized: no softmax weighs anything by what comes in"
    if not squashes:
        return [f"{said}; other ways to route are not looked for"]
    return [
        f"{said}, though there are capsules ({squashes} squash{'es' * (squashes > 1)}). One pass over equal "
        "couplings is a mean of the votes and needs no operator; couplings without a softmax are not looked "
        "for"
    ]


def _original(data: bytes, source: onnx.ModelProto) -> tuple[Original, list[str]]:
    """What the new file is compared with, and what to say of it."""
    exact, count = _with_exact_sigmoids(source)
    if not count:
        return Original(data), []
    note = f"{count} Sigmoid{'s' * (count > 1)} written exactly: ONNX Runtime's is 0 below -18"
    return Original(exact.SerializeToString()), [note]


def _values(model: onnx.ModelProto) -> Values:
    try:
        return Values(model)
    except NotRecognized as error:
        raise UnsupportedModelError(
            "The graph cannot be run.", f"{error}.", "Only graphs that run can be proven."
        ) from error


def _unprovable(comparisons: list[Comparison]) -> ParityError:
    """What to say of a file that cannot be changed."""
    worst = max(comparisons, key=lambda c: c.excess)
    if worst.case == NOWHERE:
        return ParityError(
            "Nothing can be proven of the file; nothing was written.",
            f"Its output '{worst.output}' is not finite on any input that was tried.",
            "Use the file as it is.",
        )
    return ParityError(
        "The file cannot be changed without changing what it computes; nothing was written.",
        f"Output '{worst.output}' on input '{worst.case}': largest difference "
        f"{worst.difference:.3g}, {worst.excess:.3g} times the tolerance "
        f"(atol {TOLERANCE.atol:g}, rtol {TOLERANCE.rtol:g}).",
        "Use the file as it is.",
    )


def _check_opset(source: onnx.ModelProto) -> None:
    if not any(e.domain in ("", "ai.onnx") for e in source.opset_import):
        raise UnsupportedModelError(
            "The file imports no standard operators.", "", "Use the file as it is."
        )
    if opset_of(source) < OLDEST:
        raise UnsupportedModelError(
            f"The file has opset {opset_of(source)}.",
            f"Files from opset {OLDEST} on are read.",
            "Export it anew.",
        )


def _with_exact_sigmoids(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The file as ONNX defines it, where ONNX Runtime computes another Sigmoid; and how many it has."""
    exact = copy_of(model)
    try:
        count = write_exact_sigmoids(exact)
    except onnx.shape_inference.InferenceError:
        return model, 0
    if not count:
        return model, 0
    exact.ir_version = max(exact.ir_version, 4)  # before, every initializer is an input
    return exact, count


def _prepared(source: onnx.ModelProto) -> onnx.ModelProto:
    """Without functions of its own and without weights among the inputs (as IR version 3 has them)."""
    model = onnx.inliner.inline_local_functions(source) if source.functions else copy_of(source)
    stored = {t.name for t in model.graph.initializer}
    replace(model.graph.input, [i for i in model.graph.input if i.name not in stored])
    model.ir_version = max(model.ir_version, 8)
    return model


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    if opset >= LEAST:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, WANTED)
    except Exception as error:  # the converter raises many kinds, none of them ours
        raise UnsupportedModelError(
            f"The file cannot be converted from opset {opset} to {WANTED}.",
            f"ONNX's version converter says: {first_line(error)}",
            f"Export it anew with opset {LEAST} or later.",
        ) from error
    converted.ir_version = max(converted.ir_version, 8)
    return converted


def _cleaned(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    notes: list[str] = []
    remove_dead_nodes(model)
    cleaned = _simplified(model, notes)
    cleaned, loops = unroll(cleaned)
    if loops:
        notes.append(f"{loops} loop{'s' * (loops > 1)} of a fixed number of passes written out")
        cleaned = _simplified(cleaned, notes)
    cleaned, made = constant_shapes(cleaned)
    if made:
        notes.append(f"{made} computed shapes made constant")
        cleaned = _simplified(cleaned, notes)
    del cleaned.graph.value_info[:]
    return cleaned, notes


def _signature(model: onnx.ModelProto) -> list[str]:
    return [v.name for v in (*model.graph.input, *model.graph.output)]


def _simplified(model: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """The model simplified; itself where that fails, as it may on what other tools write."""
    try:
        simplified = simplify(model)
        if _signature(simplified) != _signature(model):
            raise ValueError("inputs and outputs would change their names")
        return simplified
    except Exception as error:  # of many kinds, none of them ours
        note = f"constants could not be folded: {first_line(error)}"
        notes += [note] if note not in notes else []
        return copy_of(model)
