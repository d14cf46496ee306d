"""``capsedge.cascade``: a small network first, and a large one for the images in doubt, in one file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from capsedge.calibration.doubt import (
    Thresholds,
    agreement_at_least,
    choose,
    decided,
    margins_of,
)
from capsedge.calibration.splits import check_calibration
from capsedge.datasets import ImageSet, read_images
from capsedge.datasets.reading import as_images
from capsedge.errors import ArtefactError, ParityError, UnsupportedModelError, UsageError
from capsedge.graph.cascade import Doubt, join, opset_aligned
from capsedge.graph.proto import opset_of
from capsedge.pipelines.pairing import Fit, fit
from capsedge.runtime.cascade import CONFIDENCE, LONG_WAY, Cascade, Parent
from capsedge.runtime.files.given import OUTPUT, GivenModel, as_file, as_path
from capsedge.runtime.files.writing import check_apart, check_writable, write_bytes
from capsedge.runtime.loading import load_bytes
from capsedge.runtime.quantities import size
from capsedge.runtime.reading.onnx_file import read_bytes
from capsedge.runtime.session import DEFAULT_THRESHOLD, Session
from capsedge.runtime.summary import Row, Summarized, Summary, short

Images: TypeAlias = "ImageSet | NDArray[Any] | Path | str"
Progress: TypeAlias = "Callable[[str, int, int], None]"
MADE = "the cascade that was made"
BATCH = 64
_ROUNDING = 1e-6  # of a number of images


@dataclass(frozen=True, repr=False)
class CascadeReport(Summarized):
    """What a cascade is, and what it was measured to do.

    Attributes:
        output: the file; None if none was requested, or the cascade did not pass.
        cascade: parents, thresholds and measurements, as the file states them.
        calibration_images: number of images that the thresholds were chosen on.
        small_agreement: share of the held-out images on which the small network alone decides like the large.
        max_share: largest share of images that was allowed to take the long way.
        failures: what is not met, in sentences; empty if it passed.
        warnings: warnings, and outputs that the cascade does not have.
        model: the file's bytes.
    """

    output: Path | None
    cascade: Cascade
    calibration_images: int
    small_agreement: float
    max_share: float
    failures: tuple[str, ...]
    warnings: tuple[str, ...]
    model: bytes = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether the cascade reaches the agreement, and is more than the large network by a detour."""
        return not self.failures

    def _summary(self) -> Summary:
        told = f"{'PASSED' if self.passed else 'FAILED'}: {self.cascade.agreed}"
        rows = [Row(name, value) for name, value in self.rows()]
        rows += [Row("warning", warning) for warning in self.warnings]
        name = "not written" if self.output is None else self.output.name
        return Summary("CascadeReport", [f"{short(name)}: {size(len(self.model))}", told], rows)

    def rows(self) -> list[tuple[str, str]]:
        """Lines for a person."""
        file = "not written" if self.output is None else str(self.output)
        alone = f"{self.small_agreement:.4%} with the large network"
        return [
            ("file", f"{file}, {size(len(self.model))}"),
            *self.cascade.facts(),
            ("small network alone", alone),
            ("thresholds from", f"{self.calibration_images:,} other images"),
        ]

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
            "max_share": self.max_share,
            "expected_time": self.cascade.expected,
            "worst_time": self.cascade.worst,
            "warnings": list(self.warnings),
        }


def cascade(
    small: GivenModel,
    large: GivenModel,
    path: Path | str | None = None,
    *,
    data: Images,
    min_agreement: float = 0.9995,
    max_share: float = 0.5,
    images: int = 10_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> CascadeReport:
    """Join two networks: the small one answers, and the large one decides the images in doubt.

    An image is in doubt where the small network's best score exceeds the second best by too little, or is too
    low itself. Both thresholds are chosen on one half of the images, for the fewest in doubt; the agreement
    with the large network and the share in doubt are measured on the other half, with the file as it is.

    Args:
        small, large: ONNX files with metadata, or their bytes: one task, the same classes and images, scores
            of one kind. Mean, standard deviation and scale may differ.
        path: the file to write; None for no file: the report has the bytes.
        data: training images, which need no labels: a data set folder (its training split), an npz, npy or
            idx file, a folder of images, an `ImageSet`, or an array. Never images to report accuracy on.
        min_agreement: least share of the held-out images on which the cascade must decide like ``large``.
        max_share: largest share of them that may take the long way.
        images: number of images drawn from the data, both halves together.
        seed: of the random choice of images.
        progress: called with (stage, done, total).

    Returns:
        Thresholds and measurements; ``report.model`` is the file's bytes.

    Raises:
        UsageError: an argument or the data is wrong, or the networks do not fit each other.
        ParityError: too few decisions agree, or too many images take the long way. Its ``report`` is the
            `CascadeReport`; no file is written.
        ArtefactError: a file is damaged, has no metadata, or computes NaN.
        UnsupportedModelError: the operators of the two files cannot stand in one file.

    Example:
        >>> report = capsedge.cascade("small.onnx", "large.onnx", "pair.onnx", data="mnist")
        >>> print(report.cascade.agreement, report.cascade.share)
    """
    _check_arguments(min_agreement, max_share, images)
    output = None if path is None else as_path(path, OUTPUT)
    with as_file(small) as first, as_file(large) as second:
        if output is not None:
            check_writable(output)
            check_apart([output], [first, second])
        networks = _Networks(_Network(first), _Network(second))
        halves = _halves(networks, data, images, seed)
        report = networks.joined(halves, min_agreement, max_share, progress)
    if not report.passed:
        raise ParityError(
            "The cascade does not pass.",
            " ".join(report.failures),
            "Lower min_agreement=, raise max_share=, or take a better small network.",
            report=report,
            command="Lower --min-agreement, raise --max-share, or take a better small network.",
        )
    if output is not None:
        write_bytes(output, report.model)
    return replace(report, output=output)


class _Network:
    """A file, its graph and a session that runs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = read_bytes(path)
        self.session = load_bytes(self.content, path)
        self.model = onnx.load_model_from_string(self.content)

    def parent(self) -> Parent:
        metadata = self.session.metadata
        assert metadata is not None  # `fit` refuses others
        digest = hashlib.sha256(self.content).hexdigest()
        return Parent(
            self.path.name, digest, len(self.content), metadata.precision,
            metadata.checkpoint_sha256,
        )  # fmt: skip


@dataclass(frozen=True)
class _Halves:
    calibration: ImageSet
    held_out: ImageSet
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Answers:
    """Scores ``[N, J]`` of both networks, and the seconds that each took."""

    small: NDArray[np.float32]
    large: NDArray[np.float32]
    seconds: tuple[float, float]


class _Networks:
    """Both networks, and how they fit."""

    def __init__(self, small: _Network, large: _Network) -> None:
        self.small, self.large = small, large
        self.fit: Fit = fit(small.session, large.session)
        self.threshold: float | None = None
        if large.session.multi_label:  # a logit of 0 is a probability of one half
            logits = large.session.score_kind == "logits"
            self.threshold = 0.0 if logits else DEFAULT_THRESHOLD

    def joined(
        self, halves: _Halves, min_agreement: float, max_share: float, progress: Progress | None
    ) -> CascadeReport:
        """The cascade with thresholds from one half of the images, measured on the other."""
        thresholds = self._thresholds(halves.calibration, min_agreement, progress)
        model = self._model(thresholds)
        answers = self._answers(halves.held_out, "measuring", progress)
        session = load_bytes(model.SerializeToString(), MADE)
        scores, long_way = _run(session, halves.held_out, self.fit.pair.scores)
        held = len(halves.held_out)
        reference = decided(answers.large, self.threshold)
        alone = (decided(answers.small, self.threshold) != reference).any(axis=1)
        changed = int((decided(scores, self.threshold) != reference).any(axis=1).sum())
        found = Cascade(
            small=self.small.parent(),
            large=self.large.parent(),
            margin=thresholds.margin,
            score=thresholds.score,
            min_agreement=min_agreement,
            agreement=1.0 - changed / held,
            agreement_at_least=agreement_at_least(changed, held),
            share=float(long_way.mean()),
            images=held,
            data_sha256=halves.held_out.digest(),
            cost=round(answers.seconds[0] / answers.seconds[1], 4),
        )
        described = replace(self.fit.metadata, cascade=found)
        onnx.helper.set_model_props(model, described.to_properties())
        return CascadeReport(
            output=None,
            cascade=found,
            calibration_images=len(halves.calibration),
            small_agreement=1.0 - float(alone.mean()),
            max_share=max_share,
            failures=_failures(found, changed, max_share),
            warnings=(*halves.warnings, *self.fit.notes, *_warnings(found, int(alone.sum()))),
            model=model.SerializeToString(),
        )

    def _thresholds(
        self, images: ImageSet, min_agreement: float, progress: Progress | None
    ) -> Thresholds:
        """Half of what the agreement allows may stay wrong here, so that other images reach it too."""
        found = self._answers(images, "calibrating", progress)
        changed = decided(found.small, self.threshold) != decided(found.large, self.threshold)
        allowed = int((1.0 - min_agreement) * len(images) / 2 + _ROUNDING)
        margins = margins_of(found.small, self.threshold)
        best = found.small.max(axis=1)
        return choose(margins, best, changed.any(axis=1), allowed, self.threshold is None)

    def _model(self, thresholds: Thresholds) -> onnx.ModelProto:
        doubt = Doubt(thresholds.margin, thresholds.score, self.threshold)
        try:
            small, large = opset_aligned(self.small.model, self.large.model)
            model = join(small, large, self.fit.pair, doubt)
        except Exception as error:  # onnx raises many kinds, none of them ours
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            opsets = [opset_of(n.model) for n in (self.small, self.large)]
            raise UnsupportedModelError(
                f"{self.small.path} and {self.large.path} cannot stand in one file.",
                f"Their opsets are {opsets[0]} and {opsets[1]}. ONNX says: {first[:300]}",
                "Bring both to one opset: export or optimize them with one version of capsedge.",
            ) from error
        onnx.helper.set_model_props(model, self.fit.metadata.to_properties())
        return model

    def _answers(self, images: ImageSet, stage: str, progress: Progress | None) -> _Answers:
        small, large = self.small.session, self.large.session
        pair = self.fit.pair
        found: tuple[list[Any], list[Any]] = ([], [])
        seconds, done = [0.0, 0.0], 0
        for batch in images.batches(BATCH):
            own = (
                batch
                if pair.scale is None or pair.shift is None
                else batch * pair.scale + pair.shift
            )
            for k, (session, given) in enumerate(((small, own), (large, batch))):
                assert session.score_output is not None  # of a classification
                start = time.perf_counter()
                runs = session.run_batches(given, [session.score_output], batch_size=BATCH)
                found[k].extend(outputs[session.score_output] for _, outputs in runs)
                seconds[k] += time.perf_counter() - start
            done += len(batch)
            if progress is not None:
                progress(stage, done, len(images))
        first, second = (np.concatenate(part).astype(np.float32) for part in found)
        for session, scores in ((small, first), (large, second)):
            if not np.isfinite(scores).all():
                raise ArtefactError(
                    f"{session.path} computes scores that are NaN or infinite.",
                    "No threshold can be chosen by them.",
                    "Run `capsedge verify` on the file.",
                )
        return _Answers(first, second, (seconds[0], seconds[1]))


def _run(
    session: Session, images: ImageSet, scores: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Scores and long way of a cascade."""
    found = [out for _, out in session.run_batches(images.inputs(), [scores, LONG_WAY], BATCH)]
    parts = [np.concatenate([out[name] for out in found]) for name in (scores, LONG_WAY)]
    return parts[0].astype(np.float32), parts[1]


def _check_arguments(min_agreement: float, max_share: float, images: int) -> None:
    for name, share in (("min_agreement", min_agreement), ("max_share", max_share)):
        if not 0 <= share <= 1:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{name} is {share:g}.",
                "It is a share from 0 to 1.",
                f"Use for example {name}=0.5.",
                command=f"Use for example {option} 0.5.",
            )
    if images < 4:
        raise UsageError(f"images is {images}.", "Both halves need some.", "Use 1000 or more.")


def _halves(networks: _Networks, data: Images, count: int, seed: int) -> _Halves:
    """Two sets of training images without one in common.

    Raises:
        UsageError: the data cannot be read, does not fit, or is too little.
    """
    session = networks.large.session
    prep = networks.fit.metadata.preprocessing
    inputs = {port.name: port.dtype for port in session.inputs}
    warnings: list[str] = []
    if isinstance(data, ImageSet):
        pool = data
    elif isinstance(data, np.ndarray):
        pool = as_images(data, prep, inputs)
    else:
        pool = read_images(Path(data), prep, "train", inputs=inputs)
        if Path(data).name.startswith(("t10k", "test")):
            warnings.append(
                f"{Path(data).name} is named like a test set: nothing that was chosen on it may be "
                "reported on it"
            )
    if pool.preprocessing is None and pool.images.dtype == np.uint8:
        pool = replace(pool, preprocessing=prep)
    drawn = pool.draw(count, seed)
    calibration = drawn.draw(max(len(drawn) // 2, 1), seed + 1)
    held_out = drawn.without(calibration)
    if len(held_out) == 0:
        raise UsageError(
            "There is nothing left to measure the agreement on.",
            f"{pool.source} holds {len(pool)} images, some of them repeatedly.",
            "Give 1000 different images or more.",
        )
    return _Halves(calibration, held_out, (*check_calibration(calibration), *warnings))


def _failures(found: Cascade, changed: int, max_share: float) -> tuple[str, ...]:
    failures = []
    if changed > (1.0 - found.min_agreement) * found.images + _ROUNDING:
        failures.append(
            f"{changed} of {found.images:,} held-out images are decided differently: agreement "
            f"{found.agreement:.4%}, wanted {found.min_agreement:.4%}, with {found.share:.2%} of them on the "
            "long way."
        )
    if found.share > max_share:
        failures.append(
            f"{found.share:.2%} of the held-out images take the long way, {max_share:.2%} allowed: with "
            "these networks the cascade comes close to always running the large one. It would take "
            f"{found.expected:.2f} of its time."
        )
    return tuple(failures)


def _warnings(found: Cascade, changed: int) -> list[str]:
    """What a person should know before relying on the cascade.

    Args:
        changed: decisions that the small network alone changes on the held-out images.
    """
    told = []
    if found.agreement_at_least < found.min_agreement <= found.agreement:
        told.append(
            f"{found.images:,} held-out images do not prove {found.min_agreement:.4%}: with {CONFIDENCE:.0%} "
            f"confidence the agreement is at least {found.agreement_at_least:.4%}. More images narrow that"
        )
    if 1.0 - changed / found.images >= found.min_agreement:
        told.append(
            "the small network alone agrees as well as was asked for: it may be all that is needed"
        )
    if found.expected >= 1.0:
        told.append(
            f"the cascade takes {found.expected:.2f} of the large network's time here: it saves none"
        )
    return told
