"""Probe a network's outputs with synthetic images, to see whether its scores are meaningful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.scores import (
    AS_IT_IS,
    ONE_LINE,
    ScoresChoice,
    score_warnings_of,
    scores_of,
    why_scores_are_mask,
)
from capsedge.runtime.session.session import Session
from capsedge.spec.vocabularies import CLASSIFICATION

# --- Probes: plain images, shapes, noise, and values beyond the range ---

Floats = NDArray[np.float32]
_NOISE, _SHAPES, _BEYOND = 16, 14, 16
_LARGE = 3 * 64 * 64  # values of an image above which fewer images are run


@dataclass(frozen=True)
class Probes:
    """Prepared images ``[n, ...]``, with the kind of each row.

    Attributes:
        images: images in the layout of the input.
        inside: rows within the range of pixels; the others are beyond it, where classes differ more.
        noise: rows of noise.
    """

    images: Floats
    inside: NDArray[np.bool_]
    noise: NDArray[np.bool_]


def probes(shape: Sequence[int], preprocessing: Preprocessing | None = None) -> Probes:
    """Images ``[C, H, W]`` or ``[H, W, C]``; values from 0 to 1 without a preprocessing."""
    channels_last = preprocessing is not None and preprocessing.layout == "NHWC"
    channels, height, width = (shape[2], *shape[:2]) if channels_last else tuple(shape)
    few = 2 if channels * height * width > _LARGE else 1
    rng = np.random.default_rng(0)
    noise = rng.random((_NOISE // few, channels, height, width), np.float32)
    plain = np.stack([np.full(noise.shape[1:], level, np.float32) for level in (0.0, 1.0)])
    drawn = _drawn(rng, _SHAPES // few, (channels, height, width))
    pixels = np.concatenate([plain, drawn, noise])
    inside = _prepared(pixels, preprocessing)
    spread = float(np.abs(inside).max()) or 1.0
    # Far from the origin biases count for nothing, and even untrained networks answer differently.
    beyond = rng.standard_normal((_BEYOND // few, channels, height, width)).astype(np.float32)
    factors = spread * np.float32(3.0) ** (1 + np.arange(len(beyond)) % 4)
    images = np.concatenate([inside, beyond * factors[:, None, None, None].astype(np.float32)])
    if channels_last:
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    rows = np.arange(len(images))
    first = len(plain) + len(drawn)
    return Probes(images, rows < len(inside), (rows >= first) & (rows < len(inside)))


def _drawn(rng: np.random.Generator, count: int, shape: tuple[int, int, int]) -> Floats:
    """Bright bars and patches on a dark ground, and the reverse; coloured where there are colours."""
    channels, height, width = shape
    images = np.zeros((count, *shape), np.float32)
    for image in images:
        for _ in range(3):
            top, left = rng.integers(0, height), rng.integers(0, width)
            bottom = top + rng.integers(1, height // 2 + 2)
            right = left + rng.integers(1, width // 2 + 2)
            image[:, top:bottom, left:right] = rng.random((channels, 1, 1)) / 2 + 0.5
    images[1::4] = 1 - images[1::4]
    return images


def _prepared(pixels: Floats, preprocessing: Preprocessing | None) -> Floats:
    """Pixels 0..1 ``[n, C, H, W]`` as the input of a network, by the formulas of `Preprocessing`."""
    if preprocessing is None:
        return pixels
    p = preprocessing
    values = pixels * np.float32(255 * p.scale)
    if p.per_image == "standardize":
        flat = values.reshape(len(values), -1)
        mean, std = flat.mean(1), np.maximum(flat.std(1), 1 / np.sqrt(flat.shape[1]))
        return np.asarray(
            (values - mean[:, None, None, None]) / std[:, None, None, None], np.float32
        )
    mean, std = (np.asarray(v, np.float32).reshape(1, -1, 1, 1) for v in (p.mean, p.std))
    return np.asarray((values - mean) / std, np.float32)


# --- What a loaded file's scores do on the probes ---

Arrays = dict[str, NDArray[Any]]


def score_warnings(session: Session) -> tuple[str, ...]:
    """Warnings that the scores of a loaded file may be meaningless, from a run on check images.

    There are none for a file without scores, or without metadata, whose inputs are unknown.
    """
    name, metadata = session.roles.scores, session.metadata
    if (
        session.roles.segmentation
        or name is None
        or metadata is None
        or not session.inputs[0].dtype.startswith("float")
    ):
        return ()
    images, probed = run_probes(session, metadata.preprocessing)
    task = CLASSIFICATION[1] if session.roles.multi_label else CLASSIFICATION[0]
    return check_scores(name, session.roles.kind, task, probed, images)


def run_probes(session: Session, preprocessing: Preprocessing | None) -> tuple[Probes, Arrays]:
    """Check images, and the outputs on them; sizes that the file leaves open are 32."""
    port = session.inputs[0]
    shape = [size if isinstance(size, int) else 32 for size in port.shape[1:]]
    if preprocessing is not None:
        shape = list(preprocessing.shape)
    declared = [
        f for f, d in zip(shape, port.shape[1:], strict=True) if isinstance(d, int) and f != d
    ]
    if declared:
        raise ValueError(f"the input takes {list(port.shape[1:])}, not {shape}")
    if not port.dtype.startswith("float"):
        raise ValueError(f"the input takes {port.dtype}, and images become floats")
    images = probes(shape, preprocessing)
    parts: dict[str, list[NDArray[Any]]] = {}
    for _, batch in session.run_batches(images.images):
        for name, value in batch.items():
            parts.setdefault(name, []).append(np.atleast_1d(value))
    return images, {name: np.concatenate(values) for name, values in parts.items()}


def check_scores(
    name: str, kind: str, task: str, probed: Arrays, images: Probes
) -> tuple[str, ...]:
    """Warnings about meaningless scores, or scores that are a mask.

    Args:
        name, kind: name and kind of the output of scores.
        task: single-label or multi-label.
        probed: all outputs on the check images.
    """
    values = probed[name][images.inside]
    mask = why_scores_are_mask(name, probed)
    if mask:
        return (f"{name} is {mask}; scores show how sure an answer is, a mask does not",)
    shown, _ = scores_of(values, kind, task == CLASSIFICATION[1])
    return tuple(score_warnings_of(name, values, shown, images.noise[images.inside]))


def check_computed(choice: ScoresChoice) -> None:
    """Refuse scores that a file does not hold as an output."""
    if choice.form == AS_IT_IS:
        return
    line = ONE_LINE if choice.poses else f"return {choice.output}.flatten(1)"
    what = "are the lengths of its capsules" if choice.poses else "have further axes in"
    raise UsageError(
        "The file computes no score [N, classes].",
        f"The scores of its {choice.classes} classes {what} {choice.output}: {choice.reason}.",
        f"Export the network with `capsedge export`, which adds them; or let forward return them: `{line}`.",
    )


def kind_of_scores(scores: NDArray[Any]) -> str:
    """The kind of scores, by their values: probabilities add up to one, lengths are between 0 and 1."""
    if (scores < 0).any() or (scores > 1).any():
        return "logits"
    whole = scores.shape[1] > 1 and np.allclose(scores.sum(axis=1), 1, atol=1e-3)
    return "probability" if whole else "length"
