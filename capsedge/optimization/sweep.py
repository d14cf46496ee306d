"""Search for the best trade-offs of accuracy, latency and size (``capsedge sweep``). Needs torch.

Candidates differ in iterations, couplings, precision and checkpoint. They are calibrated and compared on
training images only. The test images are read once, after the search, to report on the candidates of the
Pareto front.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from hashlib import sha256 as digest_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.calibration.collect import check_calibration
from capsedge.datasets import ImageSet, read_images
from capsedge.datasets.mask_folders import read_mask_split
from capsedge.errors import UsageError
from capsedge.models.config_base import ModelConfig
from capsedge.models.find import NamedModel, find_model
from capsedge.optimization.sweep_candidates import (
    FROZEN,
    CandidateKind,
    CandidateMaker,
    Quality,
    SweepCandidate,
    SweepState,
)
from capsedge.optimization.sweep_options import SweepOptions
from capsedge.options import takes_options
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import sha256, temporary_folder
from capsedge.runtime.load import load
from capsedge.runtime.metadata.origin import AnySplit, joint_training_split
from capsedge.runtime.profiling.compare import CAPSEDGE, Entrant, compare
from capsedge.runtime.profiling.profile import random_inputs
from capsedge.runtime.profiling.report_html import COLOURS
from capsedge.runtime.profiling.worker import RunLimits, Specification
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import (
    Report,
    Table,
    distinct_names,
    escape_formulas,
    new_figure,
    save_figure,
)
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.masks import overlap_of_session
from capsedge.spec.vocabularies import SEGMENTATION

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import SweepKeywords

# --- The search ---

CALIBRATION_IMAGES, SEARCH_IMAGES = 512, 2000
MOST = 64  # limit on candidates, each of which has a process while latencies are measured
TIMED = RunLimits(warmup=0.1, duration=1.0, iterations=50)


@dataclass(frozen=True)
class SweepPoint:
    """One file of the sweep.

    Attributes:
        model, iterations, couplings, precision: as in its `CandidateKind`.
        accuracy: share of correct decisions on the training images of the search; of a segmentation the mean
            Dice of its masks.
        milliseconds: median time of an inference with one image.
        bytes: size of the file.
        file: its name.
        front: whether no other point is at least as good in all three and better in one.
        test_accuracy: the same on the test images; None for points behind the front.
        iou, test_iou: of a segmentation, the mean IoU of its masks on the same images; None for others.
    """

    model: str
    iterations: int
    couplings: str
    precision: str
    accuracy: float
    milliseconds: float
    bytes: int
    file: str
    front: bool = False
    test_accuracy: float | None = None
    iou: float | None = None
    test_iou: float | None = None

    @property
    def searched(self) -> Quality:
        """How good it is on the images of the search."""
        return Quality(self.accuracy, self.iou)

    @property
    def tested(self) -> Quality | None:
        """How good it is on the test images; None for points behind the front."""
        if self.test_accuracy is None:
            return None
        return Quality(self.test_accuracy, self.test_iou)

    @property
    def kind(self) -> CandidateKind:
        """The properties that distinguish it."""
        return CandidateKind(self.model, self.iterations, self.couplings, self.precision)

    def cells(self) -> list[str]:
        """Its row of the table."""
        return [
            "*" if self.front else "",
            self.model,
            str(self.iterations),
            self.couplings,
            self.precision,
            f"{self.milliseconds:.2f}",
            format_bytes(self.bytes),
            str(self.searched),
            "-" if self.tested is None else str(self.tested),
        ]


@dataclass(frozen=True, repr=False)
class SweepReport(Report):
    """All files of a sweep.

    Attributes:
        models: names of the checkpoints.
        measure: what ranks the files: ``accuracy``, or ``mean Dice`` of a segmentation.
        searched, searched_on: number of images on which candidates were compared, and which they are.
        images, data: number of the test images, and which they are.
        threads: threads of one inference.
        points: all points, in the order of their creation.
        warnings: warnings for the user.
    """

    models: tuple[str, ...]
    measure: str
    searched: int
    searched_on: str
    images: int
    data: str
    threads: int
    points: tuple[SweepPoint, ...]
    warnings: tuple[str, ...]

    @property
    def front(self) -> tuple[SweepPoint, ...]:
        """The Pareto front, the fastest first."""
        return tuple(sorted((p for p in self.points if p.front), key=lambda p: p.milliseconds))

    def _lines(self) -> list[str]:
        best = (
            f"{p.kind}: {p.searched}, {p.milliseconds:.2f} ms, {format_bytes(p.bytes)}"
            for p in self.front
        )
        first = f"{len(self.points)} files, {len(self.front)} on the Pareto front"
        return [first, *best, f"{self.measure} on {self.searched_on}"]

    def rows(self) -> list[tuple[str, str]]:
        """Nothing: all is in the table."""
        return []

    def tables(self) -> list[Table]:
        """One row for each file."""
        columns = (
            "front", "model", "iters", "couplings", "precision", "ms", "size", "search", "test",
        )  # fmt: skip
        return [
            Table(
                f"{len(self.points)} files, the fastest first; {len(self.front)} on the Pareto front",
                columns,
                [p.cells() for p in sorted(self.points, key=lambda p: p.milliseconds)],
                notes=[
                    f"search: {self.measure} on {self.searched_on}",
                    f"test: {self.measure} of the front on {self.data}",
                ],
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        document = asdict(self)
        return {"schema": 1, **document, "points": list(document["points"])}


@takes_options(SweepOptions)
def sweep(
    models: str | Path | Sequence[str | Path],
    data: str | Path,
    options: SweepOptions = SweepOptions(),
    *,
    progress: Progress = silent,
    **_keywords: Unpack[SweepKeywords],
) -> SweepReport:
    """Make every candidate, compare them on training images, and test the best.

    Args:
        models: a trained single-label model or segmentation, or several of the same classes and
            preprocessing, such as a network and its pruned descendants: checkpoints, or names of the zoo.
        data: data set folder: the training split is for calibration and search, the test split for the
            report. For other data, a third is held out for the report. For a segmentation, a folder with
            ``images`` and ``masks``; mean Dice then takes the place of the accuracy.
        progress: called with a description of each step.

    Returns:
        Every file, those of the Pareto front with their accuracy on the test images.

    Raises:
        UsageError: a model is not trained, multi-label or a regression, they do not fit each other, there are
            too many candidates, or the data is wrong.

    Example:
        >>> swept = capsedge.sweep("digits-em", "mnist", iterations=(1, 3))
        >>> [point.file for point in swept.front]
    """
    names = [models] if isinstance(models, (str, Path)) else models
    sources = _named_apart([find_model(model) for model in names])
    return _swept(sources, Path(data), options, progress)


def _named_apart(models: Sequence[NamedModel]) -> list[NamedModel]:
    """The models; those of one name are called by the shortest paths that differ, such as ``a/model``."""
    counts = Counter(network.name for network in models)
    same = [m for m in models if counts[m.name] > 1 and m.checkpoint is not None]
    names = distinct_names([m.checkpoint for m in same if m.checkpoint is not None], suffix=False)
    by_id = dict(zip(map(id, same), names, strict=True))
    return [replace(network, name=by_id.get(id(network), network.name)) for network in models]


def _swept(
    models: Sequence[NamedModel],
    data: Path,
    options: SweepOptions,
    progress: Progress,
) -> SweepReport:
    _check(models, options)
    sums = [sha256(network.checkpoint) for network in models if network.checkpoint is not None]
    with ExitStack() as stack:
        scratch = stack.enter_context(temporary_folder())
        config = models[0].model.config
        rule = joint_training_split(network.model.training_split for network in models)
        calibration, search, warnings = _training_images(config, data, rule)
        measure = "mean Dice" if config.task == SEGMENTATION else "accuracy"
        progress(f"{measure} of the search on {search.described}")
        images = digest_of((calibration.digest() + search.digest()).encode()).hexdigest()
        folder = scratch if options.keep is None else options.keep
        state = SweepState(folder, images)
        candidates: list[SweepCandidate] = []
        for network, checksum in zip(models, sums, strict=True):
            maker = CandidateMaker(network, checksum, folder, state, calibration, search)
            for count in options.iterations:
                for one in maker.candidates(count, options.couplings, options.precision):
                    candidates.append(one)
                    most = options.size * len(models)
                    progress(f"{len(candidates)} of up to {most}: {one.kind}: {one.measured}")
            warnings += list(dict.fromkeys(maker.warnings))
        if not candidates:
            raise UsageError(
                "There are no candidates.", f"{warnings[-1]}.", "Add --couplings routed."
            )
        points = pareto(_timed(candidates, options.threads, progress))
        tested, notes = _test_images(config, data, rule, (calibration, search), options.limit)
        points = [_tested(p, folder, tested, progress) if p.front else p for p in points]
    return SweepReport(
        models=tuple(network.name for network in models),
        measure=measure,
        searched=len(search),
        searched_on=search.described,
        images=len(tested),
        data=tested.described,
        threads=options.threads,
        points=tuple(points),
        warnings=(*warnings, *notes),
    )


_DIFFER = {"task": "tasks", "class_names": "class names", "preprocessing": "preprocessing"}


def _check(models: Sequence[NamedModel], options: SweepOptions) -> None:
    for network in models:
        if not network.trained:
            raise UsageError(
                f"{network.name} has no trained weights in this package.",
                "The accuracy of random weights is meaningless.",
                "Pass a checkpoint with --checkpoint.",
            )
        config, first = network.model.config, models[0].model.config
        if config.task not in ("single-label", SEGMENTATION):
            raise UsageError(
                f"{network.name} is a {config.task} model.",
                "Data sets have one label or one mask per image, so its accuracy cannot be measured on them.",
                "Compare its files with `capsedge quantize` and `capsedge verify`.",
            )
        for what in _DIFFER:
            if getattr(config, what) != getattr(first, what):
                raise UsageError(
                    f"{models[0].name} and {network.name} do not fit each other.",
                    f"Their {_DIFFER[what]} differ, so one data set cannot compare them.",
                    "Sweep checkpoints of one task together.",
                )
    count = options.size * len(models)
    if count > MOST:
        raise UsageError(
            f"The sweep has {count} candidates.",
            f"At most {MOST} are measured.",
            "Choose fewer iterations, precisions or checkpoints.",
        )


def _training_images(
    config: ModelConfig, data: Path, rule: AnySplit | None
) -> tuple[ImageSet, ImageSet, list[str]]:
    """Images to calibrate on, and others to compare on; at most two thirds of the training images."""
    pool = _read(config, data, "train", rule)
    if pool.masks is None and pool.labels is None:
        raise UsageError(
            f"{pool.source} has no labels.",
            "A sweep compares the accuracy of files.",
            "Pass a data set folder, or an npz file with images and labels.",
        )
    classes = 0 if pool.labels is None else int(pool.labels.max()) + 1
    if classes > config.classes:
        raise UsageError(
            f"{pool.source} has {classes} classes.",
            f"The models have {config.classes}.",
            "Pass data with the classes that the models were trained on.",
        )
    drawn = pool.draw(min(CALIBRATION_IMAGES + SEARCH_IMAGES, 2 * len(pool) // 3), 0)
    calibration = drawn.draw(min(CALIBRATION_IMAGES, len(drawn) // 2), 0)
    warnings = check_calibration(calibration)
    search = drawn.without(calibration)
    if len(search) == 0:
        raise UsageError(
            f"{pool.source} has no images left for comparing files.",
            f"It holds {len(pool)}, some of them more than once.",
            "Pass more images.",
        )
    return calibration, search, warnings


def _read(config: ModelConfig, data: Path, split: str, rule: AnySplit | None) -> ImageSet:
    """One split of the data, with labels or masks."""
    prep, names = config.preprocessing, config.class_names
    if config.task == SEGMENTATION:
        return read_mask_split(data, split, prep, names, None, rule)
    return read_images(data, prep, split, rule=rule, named=names)


def _test_images(
    config: ModelConfig,
    data: Path,
    rule: AnySplit | None,
    used: Sequence[ImageSet],
    limit: int | None,
) -> tuple[ImageSet, list[str]]:
    """The images for the report, without any that the search has seen; and warnings."""
    tested = _read(config, data, "test", rule)
    count = len(tested)
    for seen in used:
        tested = tested.without(seen)
    if len(tested) == 0:
        raise UsageError(
            f"{data} has no images left for the report.",
            f"All {count} were used for calibration or comparison.",
            "Use a data set with a test split.",
        )
    notes = []
    if not tested.split:
        notes.append(
            f"{data} is not divided into train and test, so the report uses images that the sweep "
            "has not used but the networks may have been trained on"
        )
    elif len(tested) < count:
        notes = [f"{count - len(tested)} test images are training images too and are left out"]
    return (tested if limit is None else tested.draw(limit, 0)), notes


def _timed(
    candidates: Sequence[SweepCandidate], threads: int, progress: Progress
) -> list[SweepPoint]:
    """All candidates with their latencies, measured in turns, each in its own process."""
    entrants = [
        Entrant(str(one.kind), Specification(CAPSEDGE, str(one.path), "", threads=threads), file)
        for one in candidates
        for file in [str(one.path)]
    ]
    feeds = random_inputs(load(candidates[0].path, RuntimeOptions(threads=1)), 1)
    measured = compare(entrants, feeds, TIMED, lambda stage, *_: progress(f"latency: {stage}"))
    points = []
    for one, entry in zip(candidates, measured.entries, strict=True):
        assert entry.latency is not None  # each computes what only it computes, so none differs
        points.append(
            SweepPoint(
                **asdict(one.kind),
                **asdict(one.measured),
                milliseconds=entry.latency.median,
                bytes=one.path.stat().st_size,
                file=one.path.name,
            )
        )
    return points


def pareto(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points, with the Pareto front in accuracy, latency and size marked."""

    def costs(point: SweepPoint) -> tuple[float, float, int]:
        return -point.accuracy, point.milliseconds, point.bytes

    def beaten(point: SweepPoint) -> bool:
        mine = costs(point)
        return any(
            other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
            for other in map(costs, points)
        )

    return [replace(point, front=not beaten(point)) for point in points]


def _tested(point: SweepPoint, folder: Path, images: ImageSet, progress: Progress) -> SweepPoint:
    """A point with its accuracy, or Dice and IoU, on the test images."""
    progress(f"test images: {point.kind}")
    with load(folder / point.file) as session:
        if images.masks is not None:
            found = overlap_of_session(session, images.inputs(), images.masks)
            return replace(point, test_accuracy=found.mean_dice, test_iou=found.mean_iou)
        assert images.labels is not None  # like the training images, they have labels
        right = total = 0
        scores = session.roles.scores
        assert scores is not None  # a single-label model has scores
        for batch, outputs in session.run_batches(images.inputs(), [scores]):
            labels = images.labels[total:][: len(batch)]
            right += int((outputs[scores].argmax(1) == labels).sum())
            total += len(batch)
    return replace(point, test_accuracy=right / total)


# --- The picture: accuracy or Dice against time, with the Pareto front ---

_MARKERS = "osD^vP*X"  # one marker for each checkpoint
_GROUPS = {"fp32": "stem", "fp16": "votes", "int8": "routing"}
_AREA = 240.0  # area of the largest file's marker, in points squared


def draw(sweep: SweepReport, path: Path) -> None:
    """Write a PNG or SVG: the front as a line, other points faint, at the search's accuracy."""
    figure = new_figure(8, 5)
    axis = figure.subplots()
    largest = max(point.bytes for point in sweep.points)
    for point in sweep.points:
        _draw_point(axis, point, sweep, largest)
    front = sweep.front
    axis.plot(
        [p.milliseconds for p in front],
        [100 * p.accuracy for p in front],
        color="#8A8F98",
        zorder=0,
    )
    for point in front:
        axis.annotate(
            f"{point.iterations}{' frozen' if point.couplings == FROZEN else ''}, "
            f"{format_bytes(point.bytes)}",
            (point.milliseconds, 100 * point.accuracy),
            (6, 6),
            textcoords="offset points",
            fontsize=8,
        )
    for precision in dict.fromkeys(p.precision for p in sweep.points):
        axis.scatter([], [], color=COLOURS[_GROUPS[precision]], label=precision)
    if len(sweep.models) > 1:
        for number, model in enumerate(sweep.models):
            axis.scatter(
                [], [], color="black", marker=_marker(number), label=escape_formulas(model)
            )
    axis.set_xscale("log")
    times = [point.milliseconds for point in sweep.points]
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}" if max(times) < 10 * min(times) else "")
    axis.tick_params(which="both", labelsize=8)
    axis.set_xlabel("milliseconds per image (numbers: iterations; area: size of the file)")
    axis.set_ylabel(f"{sweep.measure} in the search, %\n{sweep.searched_on}", fontsize=8)
    axis.set_title(f"Pareto front of {sweep.measure}, latency and size")
    axis.legend(frameon=False, fontsize=8)
    axis.margins(0.12)
    axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def _marker(number: int) -> str:
    return _MARKERS[number % len(_MARKERS)]


def _draw_point(axis: Any, point: SweepPoint, sweep: SweepReport, largest: int) -> None:
    axis.scatter(
        [point.milliseconds],
        [100 * point.accuracy],
        s=_AREA * point.bytes / largest + 12,
        color=COLOURS[_GROUPS[point.precision]],
        marker=_marker(sweep.models.index(point.model)),
        alpha=0.9 if point.front else 0.25,
        edgecolors="none",
    )
