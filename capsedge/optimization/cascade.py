"""Join two networks in one file: the small one escalates images of which it is unsure to the large one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from capsedge.calibration.collect import check_calibration
from capsedge.datasets import ImageSet, read_images
from capsedge.datasets.image_set import UNTRAINED
from capsedge.datasets.read import image_set_from_arrays
from capsedge.errors import ParityError, UnsupportedModelError, UsageError
from capsedge.graph.ir import opset_of
from capsedge.optimization.cascade_graph import EscalationRule, join, opset_aligned
from capsedge.optimization.cascade_options import CascadeOptions
from capsedge.optimization.cascade_pair import BATCH, Augmentation, CascadeNetwork, NetworkPair
from capsedge.optimization.cascade_thresholds import (
    PairScores,
    Thresholds,
    agreement_at_least,
    choose_thresholds,
    decisions_from_scores,
    most_changed,
)
from capsedge.options import takes_options
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import (
    OUTPUT,
    ModelLike,
    as_file,
    as_path,
    check_apart,
    check_writable,
    write_bytes,
)
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.cascade_metadata import CONFIDENCE, Cascade
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import AnySplit, joint_training_split
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import Report, outcome_word, shortened_name
from capsedge.runtime.session.session import Session
from capsedge.spec.vocabularies import ESCALATED

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import CascadeKeywords

# --- The report ---


@dataclass(frozen=True, repr=False)
class CascadeReport(Report):
    """A cascade and its measurements.

    Attributes:
        output: the file; None if none was requested, or the cascade did not pass.
        cascade: parents, thresholds and measurements, as the file states them.
        calibration_images: number of images on which the thresholds were chosen.
        small_agreement: share of the held-out images on which the small network alone agrees with the large
            one.
        augmentation: strength of the augmented copies on which the thresholds were chosen, up to 1.
        augmented_agreement: share of augmented copies of the held-out images on which the cascade agrees with
            the large network.
        data: description of the images used for the measurement.
        max_share: largest share of images allowed to be escalated.
        failures: a sentence for each requirement that is not met; empty if it passed.
        warnings: warnings, including those about outputs that the cascade lacks.
        model: the file's bytes.
    """

    output: Path | None
    cascade: Cascade
    calibration_images: int
    small_agreement: float
    augmentation: float
    augmented_agreement: float
    data: str
    max_share: float
    failures: tuple[str, ...]
    warnings: tuple[str, ...]
    model: bytes = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether the cascade reaches the required agreement and escalates few enough images."""
        return not self.failures

    heading: ClassVar[str] = "Cascade"

    def _lines(self) -> list[str]:
        name = "not written" if self.output is None else self.output.name
        return [
            f"{shortened_name(name)}: {format_bytes(len(self.model))}",
            f"{outcome_word(self.passed)}: {self.cascade.agreed}",
        ]

    def rows(self) -> list[tuple[str, str]]:
        """The file, the networks, the agreement, and the images of both."""
        file = "not written" if self.output is None else str(self.output)
        alone = f"{self.small_agreement:.4%} with the large network"
        return [
            ("file", f"{file}, {format_bytes(len(self.model))}"),
            *self.cascade.facts(),
            (
                "on augmented copies",
                f"{self.augmented_agreement:.4%}, augmented by {self.augmentation:g}",
            ),
            ("small network alone", alone),
            ("measured on", self.data),
            ("thresholds from", f"{self.calibration_images:,} other images and augmented copies"),
        ]

    def closing(self) -> list[str]:
        """The verdict."""
        return [outcome_word(self.passed)]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "schema": 1,
            "output": None if self.output is None else str(self.output),
            "passed": self.passed,
            "failures": list(self.failures),
            "bytes": len(self.model),
            "cascade": self.cascade.to_dict(),
            "confidence": CONFIDENCE,
            "calibration_images": self.calibration_images,
            "small_agreement": self.small_agreement,
            "augmentation": self.augmentation,
            "augmented_agreement": self.augmented_agreement,
            "data": self.data,
            "max_share": self.max_share,
            "expected_time": self.cascade.expected,
            "worst_time": self.cascade.worst,
            "warnings": list(self.warnings),
        }


# --- ``capsedge.cascade`` ---

Images: TypeAlias = "ImageSet | NDArray[Any] | Path | str"
MADE = "the cascade that was made"
COPIES = 2  # copies per calibration image; if there are few images, more, up to
_MOST_COPIES, _ENOUGH = 10, 2000  # this many copies
_ROUNDING = 1e-6  # tolerance for rounding a number of images


@takes_options(CascadeOptions)
def cascade(
    small: ModelLike,
    large: ModelLike,
    path: Path | str | None = None,
    options: CascadeOptions = CascadeOptions(),
    *,
    data: Images,
    progress: Progress = silent,
    **_keywords: Unpack[CascadeKeywords],
) -> CascadeReport:
    """Join two networks: the small one decides, and passes images of which it is unsure to the large one.

    An image is escalated if the small network's best score is too low, or too close to the second best. Both
    thresholds are chosen on one half of the images and augmented copies of them, which represent images that
    the networks were not trained on. They escalate as few images as possible within ``max_share`` while the
    copies still prove the agreement, by the bound of Clopper and Pearson (1934). Agreement and share are
    measured with the finished file on the other half.

    Args:
        small, large: ONNX files with metadata, or their bytes. They need the same task, classes, images and
            kind of scores; mean, standard deviation and scale may differ.
        path: the file to write; with None, only the report holds the bytes.
        data: training images; labels are not needed: a data set folder (its training split), an npz, npy or
            idx file, a folder of images, an `ImageSet`, or an array. Do not use images on which you will
            report accuracy.
        progress: called with (stage, done, total).

    Returns:
        Thresholds and measurements; ``report.model`` is the file's bytes.

    Raises:
        UsageError: an argument or the data is wrong, or the networks do not fit each other.
        ParityError: too few decisions agree, or too many images are escalated. Its ``report`` is the
            `CascadeReport`; no file is written.
        ArtefactError: a file is damaged, has no metadata, or computes NaN.
        UnsupportedModelError: the operators of the two files cannot be combined in one file.

    Example:
        >>> report = capsedge.cascade("small.onnx", "large.onnx", "pair.onnx", data="mnist")
        >>> print(report.cascade.agreement, report.cascade.share)
    """
    output = None if path is None else as_path(path, OUTPUT)
    with as_file(small) as first, as_file(large) as second:
        if output is not None:
            check_writable(output)
            check_apart([output], [first, second])
        networks = NetworkPair(CascadeNetwork(first), CascadeNetwork(second))
        halves = _halves(networks, data, options.limit, options.seed)
        report = _joined(networks, halves, options.min_agreement, options.max_share, progress)
    if not report.passed:
        raise ParityError(
            "The cascade does not meet the limits.",
            " ".join(report.failures),
            "Lower min_agreement=, raise max_share=, or use a better small network.",
            report=report,
            command="Lower --min-agreement, raise --max-share, or use a better small network.",
        )
    if output is not None:
        write_bytes(output, report.model)
    return replace(report, output=output)


@dataclass(frozen=True)
class _Demand:
    """What copies demand beyond the limit: the share to escalate, and the most that the images allow."""

    share: float
    allowed: float
    images: int


@dataclass(frozen=True)
class _Halves:
    calibration: ImageSet
    held_out: ImageSet
    warnings: tuple[str, ...]


def _joined(
    networks: NetworkPair,
    halves: _Halves,
    min_agreement: float,
    max_share: float,
    progress: Progress,
) -> CascadeReport:
    """Build the cascade with thresholds from one half of the images, and measure it on the other."""
    augmentation = networks.choose_augmentation(halves.calibration)
    thresholds, demanded = _thresholds(
        networks, halves.calibration, augmentation, min_agreement, max_share, progress
    )
    model = _model(networks, thresholds)
    images = len(halves.held_out)
    answers = networks.scores(halves.held_out.batches(BATCH), images, "measuring", progress)
    copies = networks.augmented_scores(
        halves.held_out, augmentation, "measuring on copies", progress
    )
    session = load_bytes(model.SerializeToString(), MADE)
    scores, escalated = _run(session, halves.held_out, networks.fit.pair.scores)
    reference = decisions_from_scores(answers.large, networks.threshold)
    alone = (decisions_from_scores(answers.small, networks.threshold) != reference).any(axis=1)
    changed = int(
        (decisions_from_scores(scores, networks.threshold) != reference).any(axis=1).sum()
    )
    statistics = Cascade(
        small=networks.small.parent(),
        large=networks.large.parent(),
        margin=thresholds.margin,
        score=thresholds.score,
        min_agreement=min_agreement,
        agreement=1.0 - changed / images,
        agreement_at_least=agreement_at_least(changed, images),
        share=float(escalated.mean()),
        images=images,
        data_sha256=halves.held_out.digest(),
        cost=round(answers.seconds[0] / answers.seconds[1], 4),
    )
    described = replace(networks.fit.metadata, cascade=statistics)
    onnx.helper.set_model_props(model, described.to_properties())
    augmented = 1.0 - copies.missed(thresholds) / len(copies)
    warnings = _warnings(statistics, int(alone.sum()), augmented, demanded)
    return CascadeReport(
        output=None,
        cascade=statistics,
        calibration_images=len(halves.calibration),
        small_agreement=1.0 - float(alone.mean()),
        augmentation=augmentation.strength,
        augmented_agreement=augmented,
        data=halves.held_out.described,
        max_share=max_share,
        failures=_failures(statistics, changed, max_share, demanded),
        warnings=(*halves.warnings, *networks.fit.notes, *networks.warnings, *warnings),
        model=model.SerializeToString(),
    )


def _thresholds(
    networks: NetworkPair,
    images: ImageSet,
    augmentation: Augmentation,
    min_agreement: float,
    max_share: float,
    progress: Progress,
) -> tuple[Thresholds, _Demand | None]:
    """Choose thresholds just cautious enough to prove the agreement on augmented copies.

    Returns:
        The thresholds, which escalate at most ``max_share``; and what it would take without that limit if it
        applies.
    """
    answers = networks.scores(images.batches(BATCH), len(images), "calibrating", progress)
    usual = PairScores.of(answers.small, answers.large, networks.threshold)
    rounds = min(max(COPIES, -(-_ENOUGH // len(images))), _MOST_COPIES)
    seeds = [replace(augmentation, seed=seed) for seed in range(1, rounds + 1)]
    copies = PairScores.joined(
        [
            networks.augmented_scores(images, each, "calibrating on copies", progress)
            for each in seeds
        ]
    )
    allowed = most_changed(len(copies), min_agreement)
    by_score = networks.threshold is None
    thresholds = choose_thresholds(usual, copies, allowed, 1.0, by_score)
    most_share = most_changed(len(usual), 1.0 - max_share) / len(usual)  # proves max_share
    demanded = _Demand(usual.share(thresholds), most_share, len(usual))
    if demanded.share <= most_share:
        return thresholds, None
    return choose_thresholds(usual, copies, allowed, most_share, by_score), demanded


def _model(networks: NetworkPair, thresholds: Thresholds) -> onnx.ModelProto:
    rule = EscalationRule(thresholds.margin, thresholds.score, networks.threshold)
    pair = networks.small, networks.large
    try:
        small, large = opset_aligned(*(network.model for network in pair))
        model = join(small, large, networks.fit.pair, rule)
    except Exception as error:  # onnx raises many types of exceptions, none of them ours
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        opsets = [opset_of(network.model) for network in pair]
        raise UnsupportedModelError(
            f"{pair[0].path} and {pair[1].path} cannot be joined in one file.",
            f"Their opsets are {opsets[0]} and {opsets[1]}. ONNX says: {first[:300]}",
            "Use one opset for both: export or optimize them with the same version of capsedge.",
        ) from error
    onnx.helper.set_model_props(model, networks.fit.metadata.to_properties())
    return model


def _run(
    session: Session, images: ImageSet, scores: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Scores of a cascade, and which images were escalated."""
    runs = [out for _, out in session.run_batches(images.inputs(), [scores, ESCALATED], BATCH)]
    parts = [np.concatenate([out[name] for out in runs]) for name in (scores, ESCALATED)]
    return parts[0].astype(np.float32), parts[1]


def _halves(networks: NetworkPair, data: Images, count: int, seed: int) -> _Halves:
    """Two sets of training images without overlap."""
    session = networks.large.session
    prep = networks.fit.metadata.preprocessing
    inputs = {port.name: port.dtype for port in session.inputs}
    warnings: list[str] = []
    if isinstance(data, ImageSet):
        pool = data
    elif isinstance(data, np.ndarray):
        pool = image_set_from_arrays(data, prep, inputs)
    else:
        both = (networks.small.session.metadata, networks.large.session.metadata)
        rule = joint_training_split(meta.training_split for meta in both if meta is not None)
        named = networks.fit.metadata.class_names
        pool = read_images(Path(data), prep, "train", inputs=inputs, rule=rule, named=named)
        if rule is not None:  # of data without test images, those that were held out from training
            apart = _held_out(Path(data), prep, inputs, rule, named)
            pool = pool if apart is None else apart
        if Path(data).name.startswith(("t10k", "test")):
            warnings.append(
                f"{Path(data).name} is named like a test set: results must not be reported on "
                "images that were used for choices"
            )
    if pool.preprocessing is None and pool.images.dtype == np.uint8:
        pool = replace(pool, preprocessing=prep)
    drawn = pool.draw(count, seed)
    calibration = drawn.draw(max(len(drawn) // 2, 1), seed + 1)
    held_out = drawn.without(calibration)
    if len(held_out) == 0:
        raise UsageError(
            "No images are left to measure the agreement.",
            f"{pool.source} holds one image."
            if len(pool) == 1
            else f"{pool.source} holds {len(pool)} images, some of them repeatedly.",
            "Provide 1000 different images or more.",
        )
    few = check_calibration(calibration, risk="thresholds may not suit other images")
    return _Halves(calibration, held_out, (*few, *warnings))


def _held_out(
    data: Path,
    prep: Preprocessing | None,
    inputs: Mapping[str, str],
    rule: AnySplit,
    named: Sequence[str],
) -> ImageSet | None:
    """The images that training held out of data without test images; None if there are none."""
    try:
        images = read_images(data, prep, "test", inputs=inputs, rule=rule, named=named)
    except UsageError:
        return None
    return images if images.known == UNTRAINED else None


def _failures(
    cascade: Cascade, changed: int, max_share: float, demanded: _Demand | None
) -> tuple[str, ...]:
    failures = []
    if changed > (1.0 - cascade.min_agreement) * cascade.images + _ROUNDING:
        failures.append(
            f"{changed} of {cascade.images:,} held-out images are decided differently: agreement "
            f"{cascade.agreement:.4%}, wanted {cascade.min_agreement:.4%}, with "
            f"{cascade.share:.2%} of them on the large network."
        )
        if demanded is not None:
            failures.append(
                f"To prove it on augmented copies, {demanded.share:.2%} would take it: the cascade would "
                f"need {cascade.cost + demanded.share:.2f} of the large network's time."
            )
    if cascade.share > max_share:
        failures.append(
            f"{cascade.share:.2%} of the held-out images are escalated, {max_share:.2%} allowed."
        )
    return tuple(failures)


def _warnings(
    cascade: Cascade, changed: int, augmented: float, demanded: _Demand | None
) -> list[str]:
    """Warnings for the user before relying on the cascade.

    Args:
        changed: decisions that the small network alone changes on the held-out images.
        augmented: agreement on augmented copies of them.
        demanded: what the copies demand; None if it is within the limit.
    """
    reasons = []
    if cascade.agreement_at_least < cascade.min_agreement <= cascade.agreement:
        reasons.append(
            f"{cascade.images:,} held-out images do not prove {cascade.min_agreement:.4%}: with "
            f"{CONFIDENCE:.0%} confidence the agreement is at least {cascade.agreement_at_least:.4%}. "
            "More images narrow that"
        )
    if augmented < cascade.min_agreement <= cascade.agreement:
        reasons.append(
            f"on augmented copies of the held-out images the agreement is {augmented:.4%}: on images that "
            "the networks were not trained on it may be lower than on these"
        )
    if demanded is not None:
        reasons.append(
            f"augmented copies demand {demanded.share:.2%} of the images escalated. To keep to the limit "
            f"with {CONFIDENCE:.0%} confidence, at most {demanded.allowed:.2%} of these "
            f"{demanded.images:,} may be"
        )
    if 1.0 - changed / cascade.images >= cascade.min_agreement:
        reasons.append(
            "the small network alone agrees as well as was asked for: it may be all that is needed"
        )
    if cascade.expected >= 1.0:
        reasons.append(
            f"the cascade takes {cascade.expected:.2f} of the large network's time here: it saves none"
        )
    return reasons
