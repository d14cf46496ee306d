"""Compare two computations: elements, decisions, values of a regression; with JSON documents.

Errors are absolute, in the output's own unit, and relative to the range that the reference takes: the largest
less the smallest value on all samples, or the largest magnitude where the value does not vary. In an output
``[N, K]`` each of the K values has a range of its own (they may have different units); larger outputs
have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.session.predictions import DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from typing_extensions import NotRequired

    from capsedge.runtime.session.session import Session


# --- Decisions: each image's class, margin and pose of its class ---

Array = NDArray[Any]
LISTED_FLIPS = 100  # the certificate lists this many; all are counted


class FlipDocument(TypedDict):
    """A changed decision; ``margin`` is None if it is infinite."""

    image: int
    name: NotRequired[str]
    reference: list[int]
    reference_classes: list[str]
    artefact: list[int]
    artefact_classes: list[str]
    margin: float | None


class DecisionsDocument(TypedDict):
    """The JSON document of `Decisions`."""

    kind: str
    images: int
    agreement: float
    flips: int
    flips_by_margin: list[FlipDocument]
    ties: int
    pose_angle_max_degrees: NotRequired[float]
    pose_angle_mean_degrees: NotRequired[float]
    length_error_max: NotRequired[float]
    length_error_mean: NotRequired[float]
    accuracy_reference: NotRequired[float | None]
    accuracy_artefact: NotRequired[float | None]


class EstimateDocument(TypedDict):
    """The errors of one value of a regression."""

    name: str
    unit: str
    mean_error: float
    largest_error: float
    range: float


class EstimatesDocument(TypedDict):
    """The JSON document of `RegressionErrors`."""

    images: int
    values: list[EstimateDocument]


@dataclass(frozen=True)
class Flip:
    """An image for which the reference and the artefact make different decisions.

    Attributes:
        image: its number.
        reference, artefact: the classes decided for.
        margin: the reference's distance to the next class, or to the threshold.
    """

    image: int
    reference: tuple[int, ...]
    artefact: tuple[int, ...]
    margin: float

    def to_dict(self, name: str | None, class_name: Callable[[int], str]) -> FlipDocument:
        """JSON values only; ``name`` is that of the image, None if it has none."""
        document: FlipDocument = {
            "image": self.image,
            "reference": list(self.reference),
            "reference_classes": [class_name(j) for j in self.reference],
            "artefact": list(self.artefact),
            "artefact_classes": [class_name(j) for j in self.artefact],
            "margin": self.margin if math.isfinite(self.margin) else None,
        }
        if name is not None:
            document["name"] = name
        return document


def _check_labels(labels: Array, classes: int) -> None:
    """Refuse labels of other classes, which would count as mistakes."""
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0 or high >= classes:
        raise UsageError(
            f"The data has the label {low if low < 0 else high}.",
            f"The model has {classes} classes, numbered from 0.",
            "Number the labels from 0, in the order of the model's classes.",
        )


@dataclass
class Decisions:
    """Decisions over all images seen.

    Attributes:
        multi_label: whether a decision is the set of classes with a score above ``threshold``, not the best
            class.
        tie: a flip counts only if the reference's margin is larger; 0 counts every flip.
        images: number of images seen.
        flips: images with another decision; those within ``tie`` are counted as ``ties``.
        labelled: number of images with a label, for a single-label model.
        correct_reference, correct_artefact: correct decisions among them.
        max_angle: largest angle, in degrees, between the poses of the class that the reference decided for.
        max_length_error: absolute difference of the lengths of a class capsule's poses.
    """

    multi_label: bool = False
    threshold: float = DEFAULT_THRESHOLD
    tie: float = 0.0
    images: int = 0
    flips: list[Flip] = field(default_factory=list)
    ties: int = 0
    labelled: int = 0
    correct_reference: int = 0
    correct_artefact: int = 0
    max_angle: float = 0.0
    max_length_error: float = 0.0
    _sum_angle: float = 0.0
    _sum_length: float = 0.0
    _capsules: int = 0
    _posed: int = 0

    @classmethod
    def of(cls, session: Session, tie: float = 0.0) -> Decisions | None:
        """Decisions as a model makes them by default; None if no output decides the class.

        Args:
            session: defines the task and the output that decides.
            tie: see above.
        """
        if session.roles.scores is None or session.roles.segmentation:
            return None
        # A logit of 0 is a probability of one half.
        threshold = 0.0 if session.roles.kind == "logits" else DEFAULT_THRESHOLD
        return cls(session.roles.multi_label, threshold, tie)

    def update(self, reference: Array, artefact: Array, labels: Array | None = None) -> None:
        """Add the scores ``[n, J]`` of a batch.

        Raises:
            UsageError: a label is not the number of a class.
        """
        expected, actual = self._decide(reference), self._decide(artefact)
        for k in np.flatnonzero((expected != actual).any(1)):
            margin = float(self.margins(reference[k : k + 1])[0])
            if margin <= self.tie:
                self.ties += 1
                continue
            self.flips.append(
                Flip(
                    self.images + int(k),
                    tuple(int(j) for j in np.flatnonzero(expected[k])),
                    tuple(int(j) for j in np.flatnonzero(actual[k])),
                    margin,
                )
            )
        if labels is not None and not self.multi_label:
            _check_labels(labels, reference.shape[1])
            self.labelled += len(labels)
            self.correct_reference += int((reference.argmax(1) == labels).sum())
            self.correct_artefact += int((artefact.argmax(1) == labels).sum())
        self.images += len(reference)

    def update_poses(self, reference: Array, artefact: Array, scores: Array) -> None:
        """Add the poses ``[n, J, ...]`` of a batch; ``scores`` are the reference's.

        Poses that are not finite have no angle; ``verification.comparison`` counts them.
        """
        reference, artefact = (x.reshape(*x.shape[:2], -1) for x in (reference, artefact))
        finite = np.isfinite(reference).all((1, 2)) & np.isfinite(artefact).all((1, 2))
        if not finite.any():
            return
        expected, actual = reference[finite].astype(np.float64), artefact[finite].astype(np.float64)
        rows, winner = np.arange(len(expected)), scores[finite].argmax(1)
        angle = angles(expected[rows, winner], actual[rows, winner])
        self.max_angle = max(self.max_angle, float(angle.max()))
        self._sum_angle += float(angle.sum())
        self._posed += len(expected)
        error = np.abs(np.linalg.norm(expected, axis=-1) - np.linalg.norm(actual, axis=-1))
        self.max_length_error = max(self.max_length_error, float(error.max()))
        self._sum_length += float(error.sum())
        self._capsules += error.size

    def _decide(self, scores: Array) -> NDArray[np.bool_]:
        if self.multi_label:
            return np.asarray(scores >= self.threshold)
        return np.asarray(np.eye(scores.shape[1], dtype=bool)[scores.argmax(1)])

    def margins(self, scores: Array) -> NDArray[np.float64]:
        """The distance of each decision ``[n]`` for scores ``[n, J]`` from another one; infinite for one
        class.
        """
        values = scores.astype(np.float64)
        if self.multi_label:
            return np.asarray(np.abs(values - self.threshold).min(1))
        if values.shape[1] < 2:
            return np.full(len(values), math.inf)
        parts = np.partition(values, -2, axis=1)
        return np.asarray(parts[:, -1] - parts[:, -2])

    @property
    def accuracy_reference(self) -> float | None:
        """The reference's share of correct decisions; None without labels."""
        return self.correct_reference / self.labelled if self.labelled else None

    @property
    def accuracy_artefact(self) -> float | None:
        """The artefact's share of correct decisions; None without labels."""
        return self.correct_artefact / self.labelled if self.labelled else None

    @property
    def agreement(self) -> float:
        """Share of the images with the same decision; ties count as agreement."""
        return 1.0 - len(self.flips) / self.images if self.images else 1.0

    def to_dict(
        self, names: Sequence[str] = (), class_name: Callable[[int], str] = str
    ) -> DecisionsDocument:
        """JSON values only; flips by margin, the largest first.

        Args:
            names: names of the images; empty if they have none.
            class_name: the name of a class.
        """
        flips = sorted(self.flips, key=lambda f: -f.margin)
        document: DecisionsDocument = {
            "kind": "label set" if self.multi_label else "top-1",
            "images": self.images,
            "agreement": self.agreement,
            "flips": len(flips),
            "flips_by_margin": [
                f.to_dict(names[f.image] if names else None, class_name)
                for f in flips[:LISTED_FLIPS]
            ],
            "ties": self.ties,
        }
        if self._capsules:
            document |= {
                "pose_angle_max_degrees": self.max_angle,
                "pose_angle_mean_degrees": self._sum_angle / self._posed,
                "length_error_max": self.max_length_error,
                "length_error_mean": self._sum_length / self._capsules,
            }
        if self.labelled:
            document |= {
                "accuracy_reference": self.accuracy_reference,
                "accuracy_artefact": self.accuracy_artefact,
            }
        return document


def angles(a: Array, b: Array) -> NDArray[np.float64]:
    """Degrees between vectors ``[n, P]``; also exact for small angles (Kahan's formula).

    The angle between two zero vectors is 0; between a zero vector and another it is 90 degrees.
    """
    tiny = np.finfo(np.float64).tiny
    na, nb = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    u, v = a / np.maximum(na, tiny), b / np.maximum(nb, tiny)
    angle = 2 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    return np.asarray(np.degrees(np.where((na + nb)[..., 0] > 0, angle, 0.0)), np.float64)


# --- Chance: whether so many correct decisions are more than guesses give ---

# So many correct answers are more than guesses give but in one of 20 sets of images; so few are fewer than a
# network gives that is right halfway between guesses and always, but in one of 100.
_LUCK, _MISFORTUNE = 0.05, 0.01


def binomial_at_most(count: int, trials: int, share: float) -> float:
    """The probability of at most ``count`` successes in independent trials (binomial distribution)."""
    if share <= 0.0:
        return float(count >= 0)
    if share >= 1.0 or count < 0:
        return 0.0
    if count >= trials:
        return 1.0
    log_p, log_q, top = math.log(share), math.log1p(-share), math.lgamma(trials + 1)
    terms = (
        top - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_p + (trials - k) * log_q
        for k in range(count + 1)
    )
    return min(1.0, math.fsum(map(math.exp, terms)))


def check_above_chance(
    accuracy: float, images: int, classes: int, scores: str, data: str, what: str = "FP32"
) -> list[str]:
    """Refuse a network whose decisions are no better than chance; returns warnings if this is uncertain.

    The usual causes are wrong labels, range, preprocessing or output.

    It is refused where its correct answers are no more than guesses give (in 19 of 20 such sets), and too
    few for one that is right halfway between guesses and always (in 1 of 100). Of a few images this says
    nothing, and they only warn.

    Args:
        accuracy: share of correct decisions.
        images: number of images compared.
        classes: how many there are to guess from.
        scores: the output that was compared.
        data: where the labels come from.
        what: the network.

    Raises:
        UsageError: its decisions are no better than chance.
    """
    if classes < 2 or not images:
        return []
    right, chance = round(accuracy * images), 1 / classes
    if 1 - binomial_at_most(right - 1, images, chance) <= _LUCK:
        return []
    artefact = (
        f"{what} is right on {right} of {images} images ({100 * accuracy:.2f} %); guessing among {classes} "
        f"classes would be right on {100 * chance:.3g} %"
    )
    if binomial_at_most(right, images, (1 + chance) / 2) > _MISFORTUNE:
        return [f"{artefact}: too few images to tell the two apart. Use more"]
    raise UsageError(
        f"{what} predicts no better than chance, so its accuracy is meaningless.",
        f"{artefact}. Judged by {scores}, labels of {data}.",
        "Check the file, the scores and the labels, then run the command again.",
        details=[
            f"labels: they must number the {classes} classes from 0 in the order of the model's class names "
            "(`capsedge inspect` lists them)",
            "range and preprocessing: `capsedge infer` on an image of known class should name it; if not, "
            "describe it again with the range, mean and std of training (`capsedge optimize`)",
            f"output: {scores} must hold the scores; `capsedge inspect` says why it was taken",
            "weights: a network that was exported untrained guesses",
        ],
    )


# --- Differences of outputs that are compared as numbers: mean and largest error, run by run ---


COLUMNS = 64  # most values of one output that are judged each by its own range
_STILL = 1e-6  # a value that varies by less of its magnitude does not vary


def has_columns(shapes: Sequence[Sequence[int | str | None]], batched: bool) -> bool:
    """Whether each value of an output is compared relative to its own range.

    Args:
        shapes: shapes of the output, in every run.
        batched: whether the first axis counts samples; otherwise a run is one sample, and ``[K]`` its values.
    """
    ranks = (2,) if batched else (1, 2)
    last = {shape[-1] if len(shape) in ranks else 0 for shape in shapes}
    wide = last.pop() if len(last) == 1 else 0
    return isinstance(wide, int) and 0 < wide <= COLUMNS


@dataclass(frozen=True)
class OutputError:
    """The difference of one output from the reference.

    Attributes:
        name: name of the output.
        mean, largest: absolute error, in the output's unit.
        mean_share, largest_share: the same as shares of the range; for whole numbers and truth values the
            share of values that differ, and 0. For several values, the worst one's.
        rms_share: root mean squared error as a share of the range, the worst value's.
        cosine: of an output of vectors ``[n, J, K]``, such as poses, the mean of those with the reference's;
            None for others.
    """

    name: str
    mean: float
    largest: float
    mean_share: float
    largest_share: float
    rms_share: float
    cosine: float | None = None

    def to_dict(self) -> dict[str, float | str]:
        """JSON values."""
        cosine: dict[str, float | str]
        cosine = {} if self.cosine is None else {"mean_cosine": self.cosine}
        return {
            **cosine,
            "name": self.name,
            "mean_error": self.mean,
            "largest_error": self.largest,
            "mean_error_percent": 100.0 * self.mean_share,
            "largest_error_percent": 100.0 * self.largest_share,
        }


class ErrorCount:
    """Adds up the differences of one output; values that are not finite in the reference do not count.

    Args:
        name: name of the output.
        columns: whether results are ``[n, K]``, with each of the K values compared relative to its own range.
    """

    def __init__(self, name: str, columns: bool) -> None:
        self.name, self._columns = name, columns
        self._exact = False
        zero = np.zeros(1)
        self._number, self._sum, self._squares, self._largest = zero, zero, zero, zero
        self._low, self._high = np.full(1, np.inf), np.full(1, -np.inf)
        self._cosines, self._vectors = 0.0, 0

    def update(self, reference: Array, artefact: Array) -> None:
        """Add the results of one run.

        Raises:
            UnsupportedModelError: their sizes differ.
        """
        if reference.shape != artefact.shape:
            raise UnsupportedModelError(
                f"Output '{self.name}' cannot be compared.",
                f"Its size depends on its values: {list(reference.shape)} in FP32 and "
                f"{list(artefact.shape)} afterwards.",
                "Quantize the part of the network before the selection.",
            )
        if reference.dtype.kind not in "f":
            self._exact = True
            expected, actual = np.zeros(reference.shape), (reference != artefact).astype(np.float64)
        else:
            expected, actual = reference.astype(np.float64), artefact.astype(np.float64)
            if reference.ndim == 3 and reference.shape[-1] > 1:
                found = _cosines(expected, actual)
                self._cosines += float(found.sum())
                self._vectors += found.size
        wide = int(reference.shape[-1]) if self._columns and reference.ndim else 1
        expected, actual = (np.reshape(v, (-1, wide)) for v in (expected, actual))
        known = np.isfinite(expected)
        difference = np.where(known, np.abs(actual - np.where(known, expected, 0.0)), 0.0)
        self._number = self._number + known.sum(0)
        self._sum = self._sum + difference.sum(0)
        self._squares = self._squares + np.square(difference).sum(0)
        self._largest = np.maximum(self._largest, difference.max(0, initial=0.0))
        self._low = np.minimum(self._low, np.where(known, expected, np.inf).min(0, initial=np.inf))
        self._high = np.maximum(
            self._high, np.where(known, expected, -np.inf).max(0, initial=-np.inf)
        )

    @property
    def mean(self) -> Array:
        """Mean absolute error ``[K]``, or ``[1]`` without columns."""
        return np.asarray(self._sum / np.maximum(self._number, 1))

    @property
    def largest(self) -> Array:
        """Largest absolute error, as ``mean``."""
        return self._largest

    @property
    def range(self) -> Array:
        """Largest less smallest value of the reference; the magnitude of one that does not vary."""
        known = self._number > 0
        span = np.subtract(self._high, self._low, out=np.zeros(known.shape), where=known)
        size = np.where(known, np.maximum(np.abs(self._high), np.abs(self._low)), 0.0)
        return np.where(span > _STILL * size, span, size)

    def share(self, error: Array) -> Array:
        """Errors as shares of the range; infinite where a value that is always 0 changed."""
        range_ = self.range
        unlimited = np.where(error > 0, np.inf, 0.0)
        return np.asarray(np.divide(error, range_, out=unlimited, where=range_ > 0))

    def result(self) -> OutputError:
        """The errors over all runs."""
        mean, largest = float(self.mean.max()), float(self.largest.max())
        if self._exact:
            return OutputError(self.name, mean, largest, mean, 0.0, mean)
        rms = np.sqrt(self._squares / np.maximum(self._number, 1))
        cosine = self._cosines / self._vectors if self._vectors else None
        of_mean, of_largest, of_rms = (
            float(self.share(value).max()) for value in (self.mean, self.largest, rms)
        )
        return OutputError(self.name, mean, largest, of_mean, of_largest, of_rms, cosine)


def _cosines(a: Array, b: Array) -> Array:
    """Cosines of the vectors along the last axis; 1 where both are zero. Others do not count."""
    finite = (np.isfinite(a) & np.isfinite(b)).all(-1)
    a, b = a[finite], b[finite]
    sizes = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    same = (a == b).all(-1).astype(np.float64)
    return np.asarray(np.divide((a * b).sum(-1), sizes, out=same, where=sizes > 0))


# --- The comparison of a regression's values, each in its own unit ---


# The mean error of a value may be this share of the range that the reference takes over the images.
ERROR_SHARE = {"fp16": 0.01, "int8": 0.05, "mixed": 0.05}


def allowed_share(metadata: ModelMetadata | None) -> float:
    """The share of its range that a value's mean error may have where a file is not meant to be exact."""
    precision = "" if metadata is None else metadata.precision
    return ERROR_SHARE.get(precision, ERROR_SHARE["int8"])


@dataclass
class RegressionErrors:
    """Errors of a regression's values over all images seen.

    Attributes:
        names, units: names and units of the values.
        images: number of images seen.
        errors: errors of the values ``[K]``, each with a range of its own.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    images: int = 0
    errors: ErrorCount = field(default_factory=lambda: ErrorCount("values", columns=True))

    @classmethod
    def of(cls, session: Session) -> RegressionErrors | None:
        """The errors of a regression; None for a classification, and without metadata."""
        outputs = None if session.metadata is None else session.metadata.outputs
        if outputs is None or not outputs.values:
            return None
        return cls(outputs.names, outputs.units)

    def update(self, reference: NDArray[Any], artefact: NDArray[Any]) -> None:
        """Add the values ``[n, K]`` of a batch (`OutputRoles.estimates`)."""
        self.errors.update(reference, artefact)
        self.images += len(reference)

    def failures(self, share: float, subject: str) -> list[str]:
        """A sentence for every value whose mean error is over ``share`` of its range."""
        mean = self.errors.mean
        rows = zip(
            self.names, self.units, mean, self.errors.range, self.errors.share(mean), strict=True
        )
        return [
            f"{name}: a mean error of {f'{error:.3g} {unit}'.strip()} on the {subject}, "
            f"{100 * artefact:.3g} % of its range ({range_:.3g}); allowed: {100 * share:g} %."
            for name, unit, error, range_, artefact in rows
            if not artefact <= share
        ]

    def to_dict(self) -> EstimatesDocument:
        """JSON values only."""
        errors = self.errors
        rows = zip(self.names, self.units, errors.mean, errors.largest, errors.range, strict=True)
        return {
            "images": self.images,
            "values": [
                {
                    "name": name,
                    "unit": unit,
                    "mean_error": float(mean),
                    "largest_error": float(largest),
                    "range": float(range_),
                }
                for name, unit, mean, largest, range_ in rows
            ],
        }
