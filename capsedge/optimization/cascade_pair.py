"""Check that two networks can form a cascade, and run both on images and augmented copies."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator
from numpy.typing import NDArray

from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UsageError
from capsedge.graph.random_nodes import refuse_random
from capsedge.optimization.cascade_graph import GraphPair
from capsedge.optimization.cascade_thresholds import PairScores, decisions_from_scores
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.cascade_metadata import CascadeParent
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.onnx_file.summary import read_model_bytes
from capsedge.runtime.progress import Progress
from capsedge.runtime.score_checks import score_warnings
from capsedge.runtime.session.predictions import DEFAULT_THRESHOLD
from capsedge.runtime.session.session import Session
from capsedge.spec.vocabularies import CLASSIFICATION

# --- Requirements that the two must share ---

_SAME = {
    "height": "height", "width": "width", "channels": "number of channels", "resize": "resize rule",
    "per_image": "preparation by the image", "layout": "layout", "order": "order of channels",
}  # fmt: skip


@dataclass(frozen=True)
class PairFit:
    """How two networks fit together.

    Attributes:
        pair: for `capsedge.optimization.cascade_graph.join`.
        metadata: the cascade's metadata, as far as it follows from the large network's.
        notes: the outputs that the cascade lacks, and why.
    """

    pair: GraphPair
    metadata: ModelMetadata
    notes: tuple[str, ...]


def fit_pair(small: Session, large: Session) -> PairFit:
    """How two networks fit together in a cascade."""
    one, other = _described(small), _described(large)
    _check_tasks(small, large, one, other)
    _check_inputs(small, large)
    scale, shift = _preparation(one.preprocessing, other.preprocessing, small, large)
    scores = large.roles.scores
    named = {name: name for name in (p.name for p in large.outputs)}
    if scores is not None and small.roles.scores is not None:
        named[scores] = small.roles.scores
    if large.roles.poses is not None and small.roles.poses is not None:
        named[large.roles.poses] = small.roles.poses
    assert scores is not None  # a classification has them
    outputs, notes = _common(small, large, named)
    if scores not in outputs:
        raise _misfit(small, large, "give other scores", notes[0])
    poses = large.roles.poses if large.roles.poses in outputs else ""
    declared = other.outputs
    if declared is not None or not poses:
        declared = Outputs(scores=scores, kind=large.roles.kind, poses=poses or "")
    metadata = replace(
        other,
        outputs=declared,
        calibration={},
        precision=other.precision if one.precision == other.precision else "mixed",
    )
    return PairFit(GraphPair(outputs, scores, scale, shift), metadata, tuple(notes))


def _described(session: Session) -> ModelMetadata:
    if session.metadata is None:
        raise ArtefactError(
            f"{session.path} states neither its classes nor its preprocessing.",
            "Without them, it cannot be checked whether the two networks fit.",
            f"Describe it first: `capsedge optimize {shlex.quote(str(session.path))} -o described.onnx "
            "--classes ... --size ...` (docs/reference/metadata.md).",
        )
    if session.metadata.cascade is not None:
        raise UsageError(
            f"{session.path} is already a cascade.",
            "A cascade is made from two single networks.",
            f"Pass one of the files that it was made from: {session.metadata.cascade.small.file}, "
            f"{session.metadata.cascade.large.file}.",
        )
    return session.metadata


def _misfit(small: Session, large: Session, what: str, why: str) -> UsageError:
    return UsageError(
        f"{small.path} and {large.path} {what}.",
        why,
        "Use two networks for the same task: with the same classes, images and kind of scores.",
    )


def _check_tasks(small: Session, large: Session, one: ModelMetadata, other: ModelMetadata) -> None:
    for session, metadata in ((small, one), (large, other)):
        if metadata.task not in CLASSIFICATION:
            raise UsageError(
                f"{session.path} is a {metadata.task}.",
                "Images are escalated by the scores of their classes.",
                "Pass two classifiers.",
            )
    if one.task != other.task:
        raise _misfit(small, large, "have different tasks", f"{one.task} and {other.task}.")
    if one.class_names != other.class_names:
        if sorted(one.class_names) == sorted(other.class_names):
            why = "The classes are the same, in another order."
        elif len(one.class_names) != len(other.class_names):
            why = f"{len(one.class_names)} and {len(other.class_names)} classes."
        else:
            pairs = zip(one.class_names, other.class_names, strict=True)
            k, (a, b) = next((k, (a, b)) for k, (a, b) in enumerate(pairs) if a != b)
            why = f"Class {k} is '{a}' and '{b}'."
        raise _misfit(small, large, "have different classes", why)
    if small.roles.kind != large.roles.kind:
        why = f"{small.roles.kind} and {large.roles.kind}."
        raise _misfit(small, large, "have different kinds of scores", why)
    count = _port(large, large.roles.scores).shape[-1:]
    if one.task == "single-label" and count == (1,):
        raise UsageError(f"{large.path} has one class.", "A cascade needs at least two.", "")


def _port(session: Session, name: str | None) -> Port:
    return next(port for port in session.outputs if port.name == name)


def _check_inputs(small: Session, large: Session) -> None:
    a, b = small.inputs[0], large.inputs[0]
    if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
        why = f"{a.dtype} {list(a.shape[1:])} and {b.dtype} {list(b.shape[1:])}."
        raise _misfit(small, large, "take different inputs", why)
    fixed = large.backend.batches.fixed
    if fixed is not None and not fixed == small.backend.batches.fixed == 1:
        raise UsageError(
            f"{large.path} has a fixed batch of {fixed}.",
            "It must run on any number of escalated images.",
            "Use a file with a free batch: `capsedge export` writes one, and `capsedge optimize "
            "--batch free` converts one if the results stay the same.",
        )


def _preparation(
    one: Preprocessing | None, other: Preprocessing | None, small: Session, large: Session
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Scale and shift from the large network's input to the small one's; None if they are equal."""
    if one is None or other is None:
        if one is not other:
            lacking = small if one is None else large
            why = f"{lacking.path} does not state its preprocessing."
            raise _misfit(small, large, "do not both state how to prepare an image", why)
        return None, None
    for name, words in _SAME.items():
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            raise _misfit(
                small, large, "prepare images differently", f"Their {words}: {a} and {b}."
            )
    if one.per_image == "standardize" and one.scale != other.scale:
        why = f"Scale {one.scale:g} and {other.scale:g} before each image is standardized."
        raise _misfit(small, large, "prepare images differently", why)
    if (one.scale, *_by_channel(one)) == (other.scale, *_by_channel(other)):
        return None, None
    ratio = one.scale / other.scale
    (mean, std), (mean_large, std_large) = (map(np.array, _by_channel(p)) for p in (one, other))
    shape = (1, -1, 1, 1) if one.layout == "NCHW" else (1, 1, 1, -1)
    scale, shift = std_large * ratio / std, (mean_large * ratio - mean) / std
    return scale.astype(np.float32).reshape(shape), shift.astype(np.float32).reshape(shape)


def _by_channel(p: Preprocessing) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel."""

    def each(values: tuple[float, ...]) -> tuple[float, ...]:
        return values * p.channels if len(values) == 1 else values

    return each(p.mean), each(p.std)


def _common(
    small: Session, large: Session, named: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The small network's outputs by the matching ones of the large network, and the outputs left out."""
    theirs = {port.name: port for port in small.outputs}
    outputs: dict[str, str] = {}
    notes: list[str] = []
    for port in large.outputs:
        mine = theirs.get(named[port.name])
        if mine is None:
            notes.append(
                f"the output '{port.name}' is left out: the small network does not have it"
            )
        elif mine.shape[1:] != port.shape[1:] or mine.dtype != port.dtype:
            forms = [f"{p.dtype} {list(p.shape[1:])}" for p in (mine, port)]
            notes.append(
                f"the output '{port.name}' is left out: {forms[0]} in the small network, {forms[1]} in the "
                "large one"
            )
        else:
            outputs[port.name] = mine.name
    for name in theirs:
        if name not in outputs.values() and name not in named:
            notes.append(f"the output '{name}' is left out: the large network does not have it")
    return outputs, notes


# --- Augmented copies of images: proxies for images that a network was not trained on ---

Array = NDArray[Any]
Floats = NDArray[np.float32]

STRENGTHS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125)
# The largest changes, reached at strength 1.
_ANGLE = np.deg2rad(25.0)
_ZOOM = 0.2
_SHEAR = 0.2
_SHIFT = 0.08  # as a share of the sides
_BEND = 0.06  # standard deviation at the knots, as a share of the sides
_KNOTS = 5  # on each side
_NOISE = 0.25  # relative to an image's standard deviation


@dataclass(frozen=True)
class Augmentation:
    """A random change of prepared images.

    Images are rotated, zoomed, sheared, shifted and bent (smooth random displacements, as the elastic
    distortions of Simard, Steinkraus and Platt 2003), and receive Gaussian noise within their own range of
    values. Inputs without rows and columns only receive noise.

    Attributes:
        strength: factor of all of these, from 0 (none) to 1.
        channels_last: whether images are ``[N, H, W, C]`` instead of ``[N, C, H, W]``.
        seed: seed of the random numbers.
    """

    strength: float
    channels_last: bool = False
    seed: int = 0

    def copies(self, batches: Iterable[Array]) -> Iterator[Array]:
        """An augmented copy of each batch ``[n, ...]``, of the same shape and type."""
        rng = np.random.default_rng(self.seed)
        for batch in batches:
            yield self._of(batch, rng)

    def _of(self, batch: Array, rng: Generator) -> Array:
        values = batch.astype(np.float32)
        axes = tuple(range(1, values.ndim))
        low, high = values.min(axes, keepdims=True), values.max(axes, keepdims=True)
        if values.ndim == 4:
            images = values if self.channels_last else np.moveaxis(values, 1, 3)
            moved = _resampled(images, *_sampling_grid(images.shape[:3], self.strength, rng))
            values = moved if self.channels_last else np.moveaxis(moved, 3, 1)
        spread = values.std(axes, keepdims=True) * np.float32(_NOISE * self.strength)
        values = np.clip(values + spread * rng.standard_normal(values.shape, np.float32), low, high)
        rounded: Array = values if batch.dtype.kind == "f" else np.rint(values)
        return rounded.astype(batch.dtype)


def _sampling_grid(
    shape: tuple[int, ...], strength: float, rng: Generator
) -> tuple[Floats, Floats]:
    """The source rows and columns ``[N, H, W]`` of the copies' pixels."""
    count, height, width = shape

    def drawn(limit: float) -> Floats:
        return rng.uniform(-1, 1, (count, 1, 1)).astype(np.float32) * np.float32(limit * strength)

    y = np.arange(height, dtype=np.float32)[:, None] - (height - 1) / 2
    x = np.arange(width, dtype=np.float32)[None, :] - (width - 1) / 2
    angle, shear = drawn(_ANGLE), drawn(_SHEAR)
    zooms = 1 + drawn(_ZOOM), 1 + drawn(_ZOOM)
    rows = (np.cos(angle) * y - np.sin(angle) * x) * zooms[0] + drawn(_SHIFT) * height
    columns = (np.sin(angle) * y + np.cos(angle) * x) * zooms[1] + shear * y + drawn(_SHIFT) * width
    rows += _bend(shape, strength * _BEND * height, rng) + (height - 1) / 2
    columns += _bend(shape, strength * _BEND * width, rng) + (width - 1) / 2
    return rows.astype(np.float32), columns.astype(np.float32)


def _bend(shape: tuple[int, ...], size: float, rng: Generator) -> Floats:
    """Smooth random displacements ``[N, H, W]``: knots with a smoothstep between them."""
    count, height, width = shape
    knots = rng.normal(0.0, size, (count, _KNOTS, _KNOTS)).astype(np.float32)
    return np.asarray(_weights(height) @ knots @ _weights(width).T, np.float32)


def _weights(cells: int) -> Floats:
    """The share of every knot in each cell ``[cells, knots]``."""
    places = np.linspace(0, _KNOTS - 1, cells)
    apart = np.clip(1 - np.abs(places[:, None] - np.arange(_KNOTS)), 0, 1)
    return np.asarray(apart**2 * (3 - 2 * apart), np.float32)


def _resampled(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Images ``[N, H, W, C]`` sampled bilinearly; edge pixels are repeated beyond the edge."""
    count, height, width = images.shape[:3]
    rows, columns = np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)
    top, left = rows.astype(np.intp), columns.astype(np.intp)
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, across = (rows - top)[..., None], (columns - left)[..., None]
    n = np.arange(count)[:, None, None]
    upper = images[n, top, left] * (1 - across) + images[n, top, right] * across
    lower = images[n, bottom, left] * (1 - across) + images[n, bottom, right] * across
    return np.asarray(upper * (1 - down) + lower * down, np.float32)


# --- The pair and its outputs ---

BATCH = 64
_REPEATS = 5  # runs of a single batch, whose time would otherwise be chance
_TRIAL_IMAGES = 512  # images on which the strength of an augmentation is tried
_LEAST_KEPT = 0.95  # share of the large network's decisions kept under the augmentation


class CascadeNetwork:
    """A file, its graph and a session that runs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = read_model_bytes(path)
        self.session = load_bytes(self.content, path)
        self.model = onnx.load_model_from_string(self.content)
        refuse_random(self.model, str(path))

    def parent(self) -> CascadeParent:
        """Its entry in the cascade's metadata."""
        metadata = self.session.metadata
        assert metadata is not None  # others were refused before
        digest = hashlib.sha256(self.content).hexdigest()
        return CascadeParent(
            self.path.name, digest, len(self.content), metadata.precision,
            metadata.checkpoint_sha256,
        )  # fmt: skip


@dataclass(frozen=True)
class BothScores:
    """Scores ``[N, J]`` of both networks, and the seconds that each took."""

    small: NDArray[np.float32]
    large: NDArray[np.float32]
    seconds: tuple[float, float]


class NetworkPair:
    """Both networks, and how they fit together.

    Attributes:
        warnings: reasons why their scores may be meaningless.
        threshold: the score from which one of several labels is given; None if the best class decides.
    """

    def __init__(self, small: CascadeNetwork, large: CascadeNetwork) -> None:
        self.small, self.large = small, large
        self.fit: PairFit = fit_pair(small.session, large.session)
        self.warnings = [
            f"{network.session.path.name}: {warning}"
            for network in (small, large)
            for warning in score_warnings(network.session)
        ]
        self.threshold: float | None = None
        if large.session.roles.multi_label:  # a logit of 0 is a probability of one half
            logits = large.session.roles.kind == "logits"
            self.threshold = 0.0 if logits else DEFAULT_THRESHOLD

    def choose_augmentation(self, images: ImageSet) -> Augmentation:
        """The strongest augmentation under which the large network keeps 95 % of its decisions.

        If it keeps fewer under all of them, the weakest.
        """
        tried = images.draw(_TRIAL_IMAGES)
        prep = self.fit.metadata.preprocessing
        last = prep is not None and prep.layout == "NHWC"
        wanted = decisions_from_scores(self._large(tried.batches(BATCH)), self.threshold)
        for strength in STRENGTHS:
            augmentation = Augmentation(strength, last)
            scores = self._large(augmentation.copies(tried.batches(BATCH)))
            kept = (decisions_from_scores(scores, self.threshold) == wanted).all(axis=1).mean()
            if kept >= _LEAST_KEPT:
                break
        return augmentation

    def _large(self, batches: Iterable[NDArray[Any]]) -> NDArray[np.float32]:
        return np.concatenate([_scores(self.large.session, batch) for batch in batches])

    def augmented_scores(
        self, images: ImageSet, augmentation: Augmentation, stage: str, progress: Progress
    ) -> PairScores:
        """The results of both networks for an augmented copy of every image."""
        batches = augmentation.copies(images.batches(BATCH))
        scores = self.scores(batches, len(images), stage, progress)
        return PairScores.of(scores.small, scores.large, self.threshold)

    def scores(
        self, batches: Iterable[NDArray[Any]], total: int, stage: str, progress: Progress
    ) -> BothScores:
        """The scores of both networks for prepared batches."""
        pair = self.fit.pair
        small, large = self.small.session, self.large.session
        parts: tuple[list[Any], list[Any]] = ([], [])
        seconds, done = [0.0, 0.0], 0
        for batch in batches:
            own = (
                batch
                if pair.scale is None or pair.shift is None
                else batch * pair.scale + pair.shift
            )
            for k, (session, inputs) in enumerate(((small, own), (large, batch))):
                scores, taken = _timed(session, inputs, 1 if total > BATCH else _REPEATS)
                parts[k].append(scores)
                seconds[k] += taken
            done += len(batch)
            progress(stage, done, total)
        first, second = (np.concatenate(part) for part in parts)
        for session, scores in ((small, first), (large, second)):
            if not np.isfinite(scores).all():
                raise ArtefactError(
                    f"{session.path} computes scores that are NaN or infinite.",
                    "No threshold can be chosen from them.",
                    "Run `capsedge verify` on the file.",
                )
        return BothScores(first, second, (seconds[0], seconds[1]))


def _timed(session: Session, batch: NDArray[Any], runs: int) -> tuple[NDArray[np.float32], float]:
    """The scores, and the seconds of the fastest run."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        scores = _scores(session, batch)
        seconds.append(time.perf_counter() - start)
    return scores, min(seconds)


def _scores(session: Session, batch: NDArray[Any]) -> NDArray[np.float32]:
    name = session.roles.scores
    assert name is not None  # a classification has one
    runs = session.run_batches(batch, [name], batch_size=BATCH)
    return np.concatenate([outputs[name] for _, outputs in runs]).astype(np.float32)
