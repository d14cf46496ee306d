"""Compare a quantized file with its source: which outputs count, the loss, and the allowed loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.calibration.collect import runs_over_samples
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UsageError
from capsedge.metrics import Decisions, ErrorCount, OutputError, has_columns
from capsedge.runtime.metadata.scores import (
    CAPSULES,
    ONE_LINE,
    Arrays,
    ScoresChoice,
    choose_scores,
    has_candidates,
    shape_fault,
)
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.score_checks import check_computed
from capsedge.runtime.session.masks import MaskOverlap, OverlapDocument
from capsedge.runtime.session.predictions import DEFAULT_THRESHOLD
from capsedge.runtime.session.session import Session
from capsedge.spec import limits

# --- The criterion, and the gate that a file must pass ---

ACCURACY, AGREEMENT, ERROR = "accuracy", "agreement", "error"
DICE, IOU = "dice", "iou"  # of masks with those of the data
OVERLAP, OVERLAP_IOU = "overlap", "overlap-iou"  # the same with the source's masks
MEASURES = {DICE: "mean Dice", IOU: "mean IoU"}
# In points: accuracy lost; answers changed, about half of which do no harm; % of the range; overlap lost.
DEFAULT_MAX_DROP = {
    ACCURACY: 0.1, AGREEMENT: 1.0, ERROR: 1.0, DICE: 0.5, IOU: 0.5, OVERLAP: 1.0, OVERLAP_IOU: 1.0,
}  # fmt: skip
DEFAULT_MAX_ERROR = 10.0
DEFAULT_MIN_COSINE = 0.99
_ROUNDING = 1e-9  # one answer of a hundred is one point
UNITS_OF_LOSS = {
    ACCURACY: "points of accuracy lost",
    AGREEMENT: "% of the answers changed",
    ERROR: "% of the range in mean error",
    DICE: "points of mean Dice lost",
    IOU: "points of mean IoU lost",
    OVERLAP: "points of mean Dice lost against FP32's masks",
    OVERLAP_IOU: "points of mean IoU lost against FP32's masks",
}


@dataclass(frozen=True)
class Criterion:
    """The outputs that decide whether a file is as good as its source.

    Attributes:
        scores: the output whose largest value decides the class; None to compare numbers.
        numbers: outputs whose values are compared; none if there are scores.
        multi_label: whether a decision is the set of classes with a score of at least ``threshold``.
        threshold: threshold for the scores.
        reason: the reason for this choice, as text.
        batched: whether the first axis of ``numbers`` counts samples; otherwise each run is one sample.
        classes: of a segmentation, the classes of its masks, which decide; else none.
        background: whether the first of them is the background of a single map.
        overlap: what measures how well masks agree, of `MEASURES`.
    """

    scores: str | None
    numbers: tuple[str, ...] = ()
    multi_label: bool = False
    threshold: float = DEFAULT_THRESHOLD
    reason: str = ""
    batched: bool = False
    classes: tuple[str, ...] = ()
    background: bool = False
    overlap: str = DICE

    @classmethod
    def of(
        cls,
        session: Session,
        scores: str | None = None,
        classes: int = 0,
        outputs: Callable[[], Arrays] | None = None,
        overlap: str = DICE,
    ) -> Criterion:
        """The criterion for a file.

        Args:
            scores: the output that decides the class, if the user names it.
            classes: the largest label plus one, if there are labels.
            outputs: runs the file on samples and returns the outputs by name, with samples along the first
                axis.
            overlap: of `MEASURES`; only a segmentation has another than Dice.
        """
        if overlap != DICE and not session.roles.segmentation:
            raise UsageError(
                f"overlap is '{overlap}'.",
                "It measures masks, and the file does not state a segmentation.",
                "Leave it out.",
            )
        names = tuple(port.name for port in session.outputs)
        if session.roles.segmentation and scores not in (None, session.roles.scores):
            raise UsageError(
                f"The masks of {session.path} come from '{session.roles.scores}'.",
                f"The file states a segmentation, whose maps cannot be taken from '{scores}'.",
                "Leave out `scores`, or describe the file again with `capsedge.optimize`.",
                command="Leave out --scores, or describe the file again with `capsedge optimize`.",
            )
        if scores is not None and not session.roles.segmentation:
            if scores not in names:
                raise UsageError(
                    f"The model has no output '{scores}'.", f"Its outputs: {', '.join(names)}."
                )
            _check_shape(session, scores)
            return cls(scores, (), *_task(session, scores), "named as the scores")
        if session.roles.values:
            why = "the file states a regression"
            return cls(None, session.roles.values, reason=why, batched=True)
        known, roles = session.roles.scores, session.roles
        if roles.segmentation:
            why = "the file states a segmentation"
            masks = roles.mask_classes, roles.one_map, overlap
            return cls(known, (), False, DEFAULT_THRESHOLD, why, False, *masks)
        if known is not None:
            return cls(known, (), *_task(session, known), _reason(session, known))
        if classes and outputs is not None:
            choice = _chosen(session, classes, outputs())
            if choice is not None:
                return cls(choice.output, (), reason=choice.reason)
        why = "the file names no output that decides a class"
        return cls(None, names, reason=why, batched=session.metadata is not None)


def _check_shape(session: Session, scores: str) -> None:
    """Refuse a named output that does not have the shape of scores; axes of 1 do not count."""
    port = next(p for p in session.outputs if p.name == scores)
    sizes = (
        [size for size in port.shape[1:] if size != 1] if len(port.shape) > 2 else port.shape[1:]
    )
    named = 0 if session.metadata is None else len(session.metadata.class_names)
    fault = "" if len(port.shape) == 1 else shape_fault(scores, tuple(sizes) or (1,), named)
    if not port.dtype.startswith("float"):
        fault = f"'{scores}' holds {port.dtype}, and scores are floats"
    if not fault:
        return
    known = session.roles.scores
    other = f"--scores {known}" if known and known != scores else "another output with --scores"
    python = f"scores={known!r}" if known and known != scores else "another output as scores="
    line = f"or let forward return scores [N, classes] (for class capsules v, `{ONE_LINE}`) and export again."
    raise UsageError(
        f"'{scores}' does not hold class scores.",
        f"{fault}.",
        f"Name {python}, {line}",
        command=f"Name {other}, {line}",
    )


def _reason(session: Session, scores: str) -> str:
    """Why an output counts as the scores: the file states it, or it has the name that this package uses."""
    if session.metadata is None:
        return f"it is called {scores}, the name that capsedge gives to scores"
    chosen = session.metadata.chosen_scores
    return "the file states it" if chosen is None else chosen.reason


def _chosen(session: Session, classes: int, outputs: Arrays) -> ScoresChoice | None:
    """The scores, chosen by the values of the outputs; None if no output has their shape."""
    inputs = {port.name for port in session.inputs}
    computed = {name: value for name, value in outputs.items() if name not in inputs}
    others = {name: value for name, value in outputs.items() if name in inputs}
    shape = next(iter(others.values())).shape[1:] if others else ()
    wide = max(classes, 2)
    if not has_candidates(computed, wide, shape):
        return None
    choice = choose_scores(computed, wide, at_least=True, images=shape, others=others, adds=False)
    if choice.form == CAPSULES:
        check_computed(choice)
    return choice


def _task(session: Session, scores: str) -> tuple[bool, float]:
    # A logit of 0 is a probability of one half.
    logits = session.roles.kind == "logits" and scores == session.roles.scores
    return session.roles.multi_label, 0.0 if logits else DEFAULT_THRESHOLD


@dataclass(frozen=True)
class Gate:
    """The loss that a file is allowed.

    Attributes:
        max_drop: percentage points of accuracy lost; without labels, of decisions changed; for numbers, the
            mean error as a percentage of the output's range. None for the default of each,
            `DEFAULT_MAX_DROP`.
        max_error: for numbers, the largest error as a percentage of the output's range.
        min_cosine: for outputs of vectors, the least mean cosine with FP32.
    """

    max_drop: float | None = None
    max_error: float = DEFAULT_MAX_ERROR
    min_cosine: float = DEFAULT_MIN_COSINE

    def __post_init__(self) -> None:
        for name, value in (("max_drop", self.max_drop), ("max_error", self.max_error)):
            if value is not None and not value >= 0:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{name} is {value:g}.",
                    "It must be 0 points or more.",
                    f"For example: {name}=1.",
                    command=f"For example: {option} 1.",
                )

    def limit(self, metric: str) -> float:
        """The allowed ``Outcome.drop``."""
        return DEFAULT_MAX_DROP[metric] if self.max_drop is None else self.max_drop

    def failures(self, outcome: Outcome) -> list[str]:
        """A sentence for every requirement that is not met."""
        failures = []
        most = self.limit(outcome.metric)
        if not outcome.drop <= most + _ROUNDING:
            failures.append(
                f"{outcome.drop:.2f} {UNITS_OF_LOSS[outcome.metric]}, {most:g} allowed."
            )
        if outcome.metric == AGREEMENT and outcome.largest_changed_margin > outcome.median_margin:
            failures.append(
                f"An answer changed that FP32 gave with a margin of {outcome.largest_changed_margin:.3g}; "
                f"half of the "
                f"answers have margins below {outcome.median_margin:.3g}."
            )
        failures += [
            f"'{o.name}' is off by up to {100 * o.largest_share:.2f} % of its range, "
            f"{self.max_error:g} allowed."
            for o in outcome.outputs
            if not 100 * o.largest_share <= self.max_error
        ]
        failures += [
            f"The vectors of '{o.name}' have a mean cosine of {o.cosine:.6f} with those of FP32, "
            f"{self.min_cosine:g} required."
            for o in outcome.outputs
            if o.cosine is not None and not o.cosine >= self.min_cosine
        ]
        return failures

    def passes(self, outcome: Outcome) -> bool:
        """Whether an outcome meets all requirements."""
        return not self.failures(outcome)

    def to_dict(self, outcome: Outcome) -> dict[str, float | str]:
        """What was compared and allowed, for a file's metadata."""
        allowed: dict[str, float | str] = {
            "metric": outcome.metric,
            "max_drop": self.limit(outcome.metric),
        }
        if outcome.metric == ERROR:
            allowed |= {"max_error": self.max_error, "min_cosine": self.min_cosine}
        return allowed


# --- Comparing the outputs of two files ---

Array = NDArray[Any]
CriterionOutputs = dict[str, list[Array]]
"""The judged outputs: the results of every run, of as many samples as the run had."""


def drop_in_words(drop: float) -> str:
    """Points in words: ``0.25 points lost``; ``2.00 points gained`` for a negative drop."""
    return f"{abs(drop):.2f} points {'gained' if round(drop, 2) < 0 else 'lost'}"


@dataclass(frozen=True)
class Outcome:
    """A file compared with its FP32 source.

    Attributes:
        images: number of images (samples) compared.
        accuracy: share of correct decisions; None without labels.
        reference: the source's accuracy; None without labels.
        agreement: share of equal decisions; 1 if numbers are compared.
        error: root mean squared difference of the scores; for numbers, as a share of their range.
        largest_changed_margin: the largest margin among the source's decisions that changed; 0 if none did.
        median_margin: the median of all of the source's margins.
        outputs: the errors of outputs whose values are compared.
        masks: of a segmentation, the overlap of its masks with those of the data; without them, with the
            source's. ``accuracy`` and ``reference`` are then the mean Dice or IoU with the data's,
            ``agreement`` that with the source's.
        overlap: which of them, of `MEASURES`.
    """

    images: int
    accuracy: float | None
    reference: float | None
    agreement: float
    error: float
    largest_changed_margin: float = 0.0
    median_margin: float = 0.0
    outputs: tuple[OutputError, ...] = ()
    masks: OverlapDocument | None = None
    overlap: str = DICE

    @property
    def metric(self) -> str:
        """``accuracy``, ``agreement`` (without labels) or ``error`` (numbers); of masks ``dice`` or ``iou``,
        without the data's ``overlap`` or ``overlap-iou``."""
        if self.outputs:
            return ERROR
        if self.masks is not None:
            if self.accuracy is not None:
                return self.overlap
            return OVERLAP if self.overlap == DICE else OVERLAP_IOU
        return AGREEMENT if self.accuracy is None or self.reference is None else ACCURACY

    @property
    def drop(self) -> float:
        """Points of accuracy lost; without labels, points of decisions changed; for numbers, the largest mean
        error of an output as a percentage of its range."""
        if self.outputs:
            return 100.0 * max(o.mean_share for o in self.outputs)
        if self.accuracy is None or self.reference is None:
            return 100.0 * (1.0 - self.agreement)
        return 100.0 * (self.reference - self.accuracy)

    @property
    def change(self) -> str:
        """The drop in words: points lost, or gained where the accuracy rose."""
        return drop_in_words(self.drop)

    def __str__(self) -> str:
        if self.outputs:
            return f"mean error {self.drop:.3g} % of the range"
        if self.masks is not None:
            name = MEASURES[self.overlap]
            if self.accuracy is None or self.reference is None:
                return f"{name} {self.agreement:.4f} with FP32's masks"
            return f"{name} {self.accuracy:.4f}, {self.reference:.4f} in FP32"
        if self.accuracy is None or self.reference is None:
            return f"{self.agreement:.2%} of the decisions are those of FP32"
        return f"accuracy {self.accuracy:.2%}, {self.reference:.2%} in FP32"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        document: dict[str, Any] = {"metric": self.metric, "images": self.images}
        if self.outputs:
            return document | {
                "mean_error_percent": self.drop,
                "outputs": [o.to_dict() for o in self.outputs],
            }
        document |= {
            "accuracy": self.accuracy,
            "accuracy_fp32": self.reference,
            "drop_points": self.drop,
            "agreement": self.agreement,
            "score_rms_error": self.error,
        }
        if self.masks is not None:
            document["masks"] = self.masks
        if self.metric == AGREEMENT:
            document |= {
                "largest_margin_changed": self.largest_changed_margin,
                "median_margin": self.median_margin,
            }
        return document


def criterion_outputs(
    session: Session,
    data: ImageSet,
    criterion: Criterion,
    progress: Progress = silent,
    stage: str = "comparing",
) -> CriterionOutputs:
    """The outputs of all samples that are compared."""
    names = [criterion.scores] if criterion.scores is not None else list(criterion.numbers)
    collected: CriterionOutputs = {name: [] for name in names}
    done = kept = 0
    for count, _, outputs in runs_over_samples(session, data):
        done += count
        for name in names:
            value = np.asarray(outputs[name])
            if criterion.classes:
                value = np.stack(session.roles.input_masks(outputs)[:count])
            elif criterion.scores is not None:
                value = _scores(value, count)
            collected[name].append(value)
            kept += collected[name][-1].nbytes
        if kept > limits.ARRAY_BYTES:
            raise UsageError(
                "The outputs of these samples are too large to be compared.",
                f"They take over {limits.ARRAY_BYTES // limits.GIB} GiB after {done} of {len(data)}.",
                f"Use fewer samples: `limit={max(done // 2, 1)}`.",
                command=f"Use fewer samples: --limit {max(done // 2, 1)}",
            )
        progress(stage, done, len(data))
    if criterion.scores is not None and not criterion.classes:
        _check_finite(session, criterion.scores, collected[criterion.scores])
    return collected


def sample_outputs(session: Session, data: ImageSet, count: int = 64) -> dict[str, Array]:
    """All inputs and outputs whose first axis counts samples, for the first samples."""
    parts: dict[str, list[Array]] = {}
    for size, inputs, outputs in runs_over_samples(session, data.first(min(count, len(data)))):
        for name, value in {**inputs, **outputs}.items():
            if np.ndim(value) and len(value) >= size:
                parts.setdefault(name, []).append(np.asarray(value)[:size])
    whole = max((sum(map(len, part)) for part in parts.values()), default=0)
    joined = {name: np.concatenate(part) for name, part in parts.items()}
    return {name: value for name, value in joined.items() if len(value) == whole}


def _scores(value: Array, count: int) -> Array:
    """Scores ``[n, J]`` of a run: of ``count`` samples, or of one sample if the file has no batch axis."""
    rows = value.shape[0] if value.ndim > 1 else 1
    flat = value.reshape(rows, -1)
    return flat[:count].astype(np.float32)


def _check_finite(session: Session, name: str, artefact: list[Array]) -> None:
    bad = sum(int((~np.isfinite(part)).any(1).sum()) for part in artefact)
    if bad:
        raise ArtefactError(
            f"{session.path} computes {name} that are NaN or infinite.",
            f"On {bad} of {sum(map(len, artefact))} images.",
            "Keep more layers in FP32: `precision='mixed'`.",
            command="Keep more layers in FP32: --precision mixed.",
        )


def compare(
    reference: CriterionOutputs, artefact: CriterionOutputs, data: ImageSet, criterion: Criterion
) -> Outcome:
    """Compare the outputs of a file with those of its source.

    Args:
        reference, artefact: of the source and of the file.
        data: the samples, with their labels if these are known.
        criterion: the outputs that decide.
    """
    if criterion.scores is None:
        outputs = tuple(
            _error(name, reference[name], artefact[name], criterion.batched)
            for name in criterion.numbers
        )
        error = max((o.rms_share for o in outputs), default=0.0)
        return Outcome(len(data), None, None, 1.0, error, outputs=outputs)
    expected, actual = (np.concatenate(a[criterion.scores]) for a in (reference, artefact))
    if criterion.classes:
        return of_masks(expected, actual, data.masks, criterion)
    return compare_class_scores(
        expected, actual, data.labels, criterion.multi_label, criterion.threshold
    )


def of_masks(expected: Array, actual: Array, known: Array | None, criterion: Criterion) -> Outcome:
    """Compare masks ``[N, H, W]`` with those of a source, and both with those of the data if it has any."""

    def overlap(reference: Array, other: Array) -> MaskOverlap:
        counted = MaskOverlap(criterion.classes, criterion.background)
        counted.update(reference, other)
        return counted

    def mean(counted: MaskOverlap) -> float:
        return counted.mean_dice if criterion.overlap == DICE else counted.mean_iou

    both = overlap(expected, actual)
    found = both if known is None else overlap(known, actual)
    accuracy = None if known is None else mean(found)
    reference = None if known is None else mean(overlap(known, expected))
    masks, measure = found.to_dict(), criterion.overlap
    return Outcome(len(actual), accuracy, reference, mean(both), 0.0, masks=masks, overlap=measure)


def compare_class_scores(
    expected: Array, actual: Array, labels: Array | None, multi_label: bool, threshold: float
) -> Outcome:
    """Compare class scores ``[N, J]`` with those of a source.

    Args:
        labels: the classes ``[N]``, if they are known.
    """
    decisions = Decisions(multi_label, threshold)
    decisions.update(expected, actual, labels)
    return Outcome(
        decisions.images,
        decisions.accuracy_artefact,
        decisions.accuracy_reference,
        decisions.agreement,
        float(np.sqrt(np.square(expected.astype(np.float64) - actual).mean())),
        max((flip.margin for flip in decisions.flips), default=0.0),
        float(np.median(decisions.margins(expected))),
    )


def _error(name: str, reference: list[Array], artefact: list[Array], batched: bool) -> OutputError:
    count = ErrorCount(name, has_columns([r.shape for r in reference], batched))
    for expected, actual in zip(reference, artefact, strict=True):
        if expected.dtype.kind == "f" and expected.shape == actual.shape:
            lost = np.isfinite(expected) & ~np.isfinite(actual)
            if lost.any():
                raise ArtefactError(
                    f"The new file computes NaN or infinite values in '{name}'.",
                    f"In one run, {int(lost.sum())} values that are finite in FP32 are not.",
                    "Keep more layers in FP32: `precision='mixed'`.",
                    command="Keep more layers in FP32: --precision mixed.",
                )
        count.update(expected, actual)
    return count.result()
