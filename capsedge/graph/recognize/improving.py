"""From the bytes of a foreign file to a better file: converted, cleaned, recognized, proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import onnx
import onnx.helper
import onnx.inliner
import onnx.version_converter

from capsedge.errors import ParityError, UnsupportedModelError
from capsedge.graph.cleaning import remove_dead_nodes
from capsedge.graph.exact_sigmoid import write_exact_sigmoids
from capsedge.graph.functions import attach_functions
from capsedge.graph.layer_norm import replace_layer_norms
from capsedge.graph.proto import copy_of, opset_of, replace
from capsedge.graph.recognize.proof import NOWHERE, TOLERANCE, Comparison, prove
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.recognition import recognize
from capsedge.graph.recognize.report import Left, Recognition
from capsedge.graph.recognize.targets import constant_shapes
from capsedge.graph.recognize.unroll import unroll
from capsedge.graph.recognize.values import Values
from capsedge.graph.simplify import simplify
from capsedge.graph.views import merge_views

OLDEST, LEAST, WANTED = 8, 18, 20
IR_VERSION = 10
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


def improve(data: bytes, stage: Stage = lambda _: None) -> Improved:
    """Convert, clean, recognize and prove.

    Args:
        data: of a file that ``read_harmless`` took.
        stage: told what is being done.

    Raises:
        UnsupportedModelError: its opset is too old, or it cannot be converted or run.
        ParityError: even the cleaned file would not compute what the original does.
    """
    stage("reading")
    source = onnx.load_model_from_string(data)
    data, sigmoids = _with_exact_sigmoids(data, source)
    plain = _prepared(source)
    before = opset_of(plain)
    stage(f"converting from opset {before}")
    converted = _converted(plain, before)
    stage("cleaning")
    cleaned, notes = _cleaned(converted)
    if sigmoids:
        notes.append(
            f"{sigmoids} Sigmoid{'s' * (sigmoids > 1)} written exactly: ONNX Runtime's is 0 below -18"
        )
    try:
        graph = Values(cleaned)
    except NotRecognized as error:
        raise UnsupportedModelError(
            "The graph cannot be run.", f"{error}.", "Only graphs that run can be proven."
        ) from error
    if not graph.free and graph.dims[next(iter(graph.dims))][0] == 0:
        notes.append(
            "the batch is free in name only: the file runs only at the batch that it was traced with"
        )
    stage("recognizing")
    changed, recognition = recognize(cleaned)
    stage("proving")
    finished, comparisons = _finished(data, changed, bool(recognition.found), graph)
    if recognition.found and not _equal(comparisons):
        worst = max(comparisons, key=lambda c: c.excess, default=None)
        reason = "the whole file would differ from the original" + (
            "" if worst is None else f" by {worst.difference:.3g} ({worst.output}, {worst.case})"
        )
        recognition = Recognition(
            left=(
                *recognition.left,
                *(Left(f.place, f"{f.operator}: {reason}") for f in recognition.found),
            )
        )
        finished, comparisons = _finished(data, cleaned, False, graph)
    if not _equal(comparisons):
        finished, comparisons = converted, prove(data, converted, graph)
        notes = ["the clean-up changed the numbers and was not kept"]
        if not _equal(comparisons):
            worst = max(comparisons, key=lambda c: c.excess)
            if worst.case == NOWHERE:
                raise ParityError(
                    "Nothing can be proven of the file; nothing was written.",
                    f"Its output '{worst.output}' is not finite on any input that was tried.",
                    "Use the file as it is.",
                )
            raise ParityError(
                "The file cannot be changed without changing what it computes; nothing was written.",
                f"Output '{worst.output}' on input '{worst.case}': largest difference "
                f"{worst.difference:.3g}, {worst.excess:.3g} times the tolerance "
                f"(atol {TOLERANCE.atol:g}, rtol {TOLERANCE.rtol:g}).",
                "Use the file as it is.",
            )
    return Improved(
        finished.SerializeToString(),
        recognition,
        tuple(notes),
        before,
        opset_of(finished),
        len(source.graph.node),
        len(finished.graph.node),
        "free" if graph.free else str(graph.batch),
        {
            k: (d, str(onnx.helper.tensor_dtype_to_np_dtype(graph.types[k])))
            for k, d in graph.dims.items()
        },
        tuple(comparisons),
    )


def _with_exact_sigmoids(data: bytes, source: onnx.ModelProto) -> tuple[bytes, int]:
    """The file as ONNX defines it, where ONNX Runtime computes another Sigmoid; and how many it has."""
    exact = copy_of(source)
    try:
        count = write_exact_sigmoids(exact)
    except onnx.shape_inference.InferenceError:
        return data, 0
    if not count:
        return data, 0
    exact.ir_version = max(exact.ir_version, 4)  # before, every initializer is an input
    return exact.SerializeToString(), count


def _equal(comparisons: list[Comparison]) -> bool:
    """Whether something was compared, and all of it is within tolerance."""
    return bool(comparisons) and all(c.excess <= 1 for c in comparisons)


def _prepared(source: onnx.ModelProto) -> onnx.ModelProto:
    """Without functions of its own and without weights among the inputs (as IR version 3 has them)."""
    model = onnx.inliner.inline_local_functions(source) if source.functions else copy_of(source)
    stored = {t.name for t in model.graph.initializer}
    replace(model.graph.input, [i for i in model.graph.input if i.name not in stored])
    if not any(e.domain in ("", "ai.onnx") for e in model.opset_import):
        raise UnsupportedModelError(
            "The file imports no standard operators.", "", "Use the file as it is."
        )
    model.ir_version = max(model.ir_version, 8)
    return model


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    if opset < OLDEST:
        raise UnsupportedModelError(
            f"The file has opset {opset}.",
            f"Files from opset {OLDEST} on are read.",
            "Export it anew.",
        )
    if opset >= LEAST:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, WANTED)
    except Exception as error:  # the converter raises many kinds, none of them ours
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedModelError(
            f"The file cannot be converted from opset {opset} to {WANTED}.",
            f"ONNX's version converter says: {first[:300]}",
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


def _simplified(model: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """The model simplified; itself where that fails, as it may on what other tools write."""
    try:
        return simplify(model)
    except Exception as error:  # of many kinds, none of them ours
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        note = f"constants could not be folded: {why}"
        notes += [note] if note not in notes else []
        return copy_of(model)


def _finished(
    data: bytes, model: onnx.ModelProto, recognized: bool, graph: Values
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
        return finished, prove(data, finished, graph)
    except Exception as error:  # ONNX Runtime's errors have no common public base
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        infinite = float("inf")
        return finished, [Comparison(why, "", infinite, infinite)]
