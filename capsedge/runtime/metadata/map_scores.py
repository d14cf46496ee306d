"""Find the output of a segmentation: scores ``[N, H, W]`` or ``[N, maps, H, W]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.spec.fields import UNKNOWN

_Array = NDArray[Any]


@dataclass(frozen=True)
class MapsChoice:
    """The chosen output: its name, the kind of its scores, the number of maps, and why it was chosen."""

    output: str
    kind: str
    maps: int
    reason: str


def looks_like_maps(sizes: Sequence[int], image: Sequence[int]) -> bool:
    """Whether an output ``sizes`` has a score for every pixel of the input ``image``, both of one image."""
    if len(image) != 3 or len(sizes) not in (2, 3):
        return False
    last = image[2] in (1, 3) and image[0] not in (1, 3)
    pixels = tuple(image[:2] if last else image[1:])
    return pixels in {tuple(sizes)[:2], tuple(sizes)[-2:]} and min(pixels) > 1


def choose_maps(
    outputs: Mapping[str, _Array], image: Sequence[int], classes: int, name: str = ""
) -> MapsChoice:
    """The output that decides the class of each pixel.

    Args:
        outputs: by name, of several images.
        image: shape of the input of one image.
        classes: how many are named; 0 for none.
        name: the output that the user names; empty to find it.

    Raises:
        UsageError: none or several of the outputs may be it, or it does not fit the classes.
    """
    last = len(image) == 3 and image[2] in (1, 3) and image[0] not in (1, 3)
    sizes = ", ".join(f"{each} {list(value.shape[1:])}" for each, value in outputs.items())
    if name:
        found = [name] if outputs[name].ndim in (3, 4) else []
    else:
        found = [
            each
            for each, value in outputs.items()
            if value.dtype.kind == "f"
            and looks_like_maps(value.shape[1:], image)
            and classes in (0, max(2, _count(value, last)))
        ]
    if not found:
        raise UsageError(
            "None of the outputs could hold the scores of pixels.",
            f"The outputs for one image {list(image)}: {sizes}; of {classes or 'the'} classes they are "
            f"[H, W], [1, H, W] or [{classes or 'classes'}, H, W].",
            "Let forward return a score for each pixel, or for each class and pixel; name as many classes as "
            "there are maps, of one map two: background and foreground.",
        )
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} outputs could hold the scores of pixels.",
            f"The outputs for one image: {sizes}.",
            f"Name the one that decides: scores={found[0]!r}.",
            command=f"Name the one that decides: --describe scores={found[0]}.",
        )
    value = outputs[found[0]]
    count = _count(value, last)
    if count > UNKNOWN or classes not in (0, max(2, count)):
        raise UsageError(
            f"The output {found[0]} does not fit the classes.",
            f"It has {list(value.shape[1:])} for an image, so {max(2, count)} classes; "
            + (f"{classes} are named." if classes else f"a mask has at most {UNKNOWN}."),
            "Name a class for each map; of one map two: background and foreground.",
        )
    reason = "named by the user" if name else f"only {found[0]} has a score for every pixel"
    return MapsChoice(found[0], _kind(value, last), count, reason)


def _count(value: _Array, last: bool) -> int:
    return 1 if value.ndim == 3 else int(value.shape[3 if last else 1])


def _kind(value: _Array, last: bool) -> str:
    """By their values: probabilities of the classes add up to one, lengths are between 0 and 1."""
    if (value < 0).any() or (value > 1).any():
        return "logits"
    count = _count(value, last)
    whole = count > 1 and np.allclose(value.sum(axis=3 if last else 1), 1, atol=1e-3)
    return "probability" if whole or count == 1 else "length"
