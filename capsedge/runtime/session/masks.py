"""Make masks from maps of scores, save them as PNG files, and compare two sets of them.

The steps are specified in docs/reference/runtime.md ("Masks"); libcapsedge and the npm package compute the
same bits. A mask is ``[H, W]`` of uint8: the class of each pixel, and `UNKNOWN` where the network did not
see the image.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.images.preprocessing import placement_of, taps
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.spec.fields import UNKNOWN

if TYPE_CHECKING:
    from typing_extensions import Self

    from capsedge.runtime.session.session import Session


Mask = NDArray[np.uint8]
Maps = NDArray[np.float32]  # scores [h, w, K] of one image
_STRIP = 64  # rows that are decided at once; bounds memory


def map_classes(shape: Sequence[int | str | None], layout: str) -> int | str | None:
    """The number of maps of an output ``[H, W]``, ``[K, H, W]`` or, with the channels last, ``[H, W, K]``.

    Args:
        shape: of one image.
        layout: of the preprocessing.
    """
    if len(shape) == 2:
        return 1
    return shape[2] if layout == "NHWC" else shape[0]


def as_maps(values: NDArray[Any], layout: str) -> Maps:
    """The scores of one image, of a shape as in `map_classes`, as ``[h, w, K]``."""
    maps = values.astype(np.float32, copy=False)
    if maps.ndim == 2:
        return maps[..., None]
    return maps if layout == "NHWC" else maps.transpose(1, 2, 0)


def level_of(threshold: float, kind: str) -> np.float32:
    """The score from which a pixel is foreground: for logits ``log(t / (1 - t))``."""
    if kind != "logits":
        return np.float32(threshold)
    if threshold in (0, 1):
        return np.float32(math.copysign(math.inf, threshold - 0.5))
    return np.float32(math.log(threshold / (1 - threshold)))


def mask_of_image(
    maps: Maps,
    preprocessing: Preprocessing | None,
    size: tuple[int, int],
    level: np.float32,
) -> Mask:
    """The mask of an image.

    Args:
        maps: its scores, ``[h, w, K]``: of one class that is there or not, or of every class.
        preprocessing: how the image became the input; None leaves the maps as they are.
        size: height and width of the image.
        level: the score of one map from which a pixel is foreground.

    Returns:
        ``[H, W]``.
    """
    if preprocessing is None:
        return _decided(maps, maps.shape[:2], level)
    p = preprocessing
    placed = placement_of(p, *size)
    maps = _resized(maps, (p.height, p.width))
    (down, right), (height, width) = placed.corner(p.height, p.width), placed.inner
    top, left, *part = placed.part
    found = _decided(maps[down : down + height, right : right + width], (part[0], part[1]), level)
    mask = np.full(size, UNKNOWN, np.uint8)
    mask[top : top + part[0], left : left + part[1]] = found
    return mask


def _decided(maps: Maps, size: tuple[int, int], level: np.float32) -> Mask:
    """The class of every pixel after resizing: the one with the largest score, the first of equal ones."""
    mask = np.empty(size, np.uint8)
    for first in range(0, size[0], _STRIP):
        rows = range(first, min(first + _STRIP, size[0]))
        scores = _resized(maps, size, rows)
        one = scores.shape[-1] == 1
        mask[rows.start : rows.stop] = scores[..., 0] >= level if one else scores.argmax(axis=-1)
    return mask


def _resized(maps: Maps, size: tuple[int, int], rows: range | None = None) -> Maps:
    """Some rows of the maps, resized by the filter for images: first along the height, then the width."""
    if maps.shape[:2] == size:
        return maps if rows is None else maps[rows.start : rows.stop]
    tall = _filtered(maps, size[0], rows or range(size[0]))
    return _filtered(tall.transpose(1, 0, 2), size[1], range(size[1])).transpose(1, 0, 2)


def _filtered(values: Maps, target: int, wanted: range) -> Maps:
    """As `preprocessing.resize_rows`, of some target rows at once: ``sum_k weight_k * row_k``."""
    found = [taps(len(values), target, index) for index in wanted]
    most = max(len(weights) for _, weights in found)
    weights = np.zeros((most, len(found)), np.float32)
    for column, (_, own) in enumerate(found):
        weights[: len(own), column] = own
    starts = np.array([first for first, _ in found])
    total: Maps | None = None
    for k in range(most):  # a weight of 0 past the last tap adds nothing
        part = weights[k, :, None, None] * values[np.minimum(starts + k, len(values) - 1)]
        total = part if total is None else total + part
    assert total is not None
    return total


# --- What a mask holds ---


@dataclass(frozen=True)
class ClassArea:
    """The part of an image that belongs to a class.

    Attributes:
        name: the class.
        index: its number.
        pixels: how many belong to it.
        share: of the pixels that the network saw, 0 to 1.
    """

    name: str
    index: int
    pixels: int
    share: float


def class_areas(mask: Mask, names: Sequence[str]) -> tuple[ClassArea, ...]:
    """The area of each class, in their order."""
    counts = np.bincount(mask.ravel(), minlength=len(names))[: len(names)]
    seen = max(int(counts.sum()), 1)
    return tuple(
        ClassArea(name, k, int(count), int(count) / seen)
        for k, (name, count) in enumerate(zip(names, counts, strict=True))
    )


def run_lengths(chosen: NDArray[np.bool_]) -> dict[str, list[int]]:
    """COCO's uncompressed run lengths of the pixels ``[H, W]`` of a class, by columns; the first run is of
    pixels outside. pycocotools.mask.frPyObjects reads them."""
    flat = chosen.ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    bounds = np.concatenate([[0], changes, [flat.size]])
    counts = np.diff(bounds).tolist()
    starts = [0] if flat.size and flat[0] else []
    return {"size": list(chosen.shape), "counts": [*starts, *counts]}


def mask_values(mask: Mask, names: Sequence[str]) -> dict[str, Any]:
    """JSON values: the size, and of each class in the mask its area and run lengths."""
    return {
        "height": mask.shape[0],
        "width": mask.shape[1],
        "unknown": int(np.count_nonzero(mask == UNKNOWN)),
        "classes": [
            {
                "label": area.name,
                "index": area.index,
                "pixels": area.pixels,
                "share": area.share,
                "rle": run_lengths(mask == area.index),
            }
            for area in class_areas(mask, names)
        ],
    }


def palette() -> NDArray[np.uint8]:
    """The colours ``[256, 3]`` of PASCAL VOC: the bits of a class's number, spread over the channels."""
    index = np.arange(256)
    colours = np.zeros((256, 3), np.int64)
    for bit in range(8):
        colours[:, bit % 3] |= (index >> bit & 1) << (7 - bit // 3)
    return colours.astype(np.uint8)


def overlaid(pixels: NDArray[np.uint8], mask: Mask) -> NDArray[np.uint8]:
    """An image ``[H, W, 3]`` with the colours of a mask over it; class 0 shows the image, unknown is dark.

    Raises:
        ShapeError: the image has another size.
    """
    if pixels.shape[:2] != mask.shape:
        raise ShapeError(
            f"The image has {pixels.shape[0]}x{pixels.shape[1]} pixels.",
            f"The mask has {mask.shape[0]}x{mask.shape[1]}.",
            "Pass the image that the mask was predicted for.",
        )
    colours = palette().astype(np.uint16)
    colours[UNKNOWN] = 0
    mixed = ((pixels.astype(np.uint16) + colours[mask]) // 2).astype(np.uint8)
    return np.where((mask == 0)[..., None], pixels, mixed)


CLASSES_KEY = "classes"  # text chunk of a mask: the names of the classes, as a JSON list


def mask_png(mask: Mask, classes: Sequence[str]) -> bytes:
    """An indexed PNG of a mask: its values are the numbers of the classes, 255 unknown; the names of the
    classes are in the text chunk `CLASSES_KEY`."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    image = Image.frombytes("P", (mask.shape[1], mask.shape[0]), mask.tobytes())
    image.putpalette(palette().tobytes())
    info = PngInfo()
    info.add_itxt(CLASSES_KEY, json.dumps(list(classes), ensure_ascii=False))
    buffer = io.BytesIO()
    # Pillow leaves out colours past the largest value; all are kept, so that every file has the same palette.
    image.save(buffer, "PNG", pnginfo=info, bits=8)
    return buffer.getvalue()


def picture_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of an RGB picture ``[H, W, 3]``."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def mask_names(files: Iterable[Path], folder: Path) -> list[Path]:
    """The file of each image's mask: its own name with the suffix .png, in a folder.

    Raises:
        UsageError: two images would have the same file.
    """
    taken: dict[str, Path] = {}
    names = []
    for file in files:
        name = ("stdin" if str(file) == "-" else file.stem) + ".png"
        if name in taken:
            raise UsageError(
                f"{taken[name]} and {file} would have the same mask, {folder / name}.",
                "A mask has the name of its image.",
                "Rename one of them, or pass the folders one by one.",
            )
        taken[name] = file
        names.append(folder / name)
    return names


class OverlapDocument(TypedDict):
    """Of `MaskOverlap`: shares from 0 to 1; None for a class that is in neither mask."""

    images: int
    pixels: int
    changed: int
    mean_dice: float
    mean_iou: float
    classes: list[dict[str, str | float | None]]


@dataclass
class MaskOverlap:
    """The pixels of all images seen, by their class in two masks; unknown pixels do not count.

    Attributes:
        names: the classes, by number.
        background: whether class 0 is the background of a single map, which no mean counts.
        images: number of images seen.
        counts: pixels by their class in the reference and in the other mask ``[K, K]``.
    """

    names: tuple[str, ...]
    background: bool = False
    images: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def __post_init__(self) -> None:
        self.counts = np.zeros((len(self.names), len(self.names)), np.int64)

    @classmethod
    def of(cls, session: Session) -> Self | None:
        """The overlap of masks of a model; None if it makes none."""
        roles = session.roles
        return cls(roles.mask_classes, roles.one_map) if roles.segmentation else None

    def update(self, reference: Iterable[Mask], other: Iterable[Mask]) -> None:
        """Add the masks of images, in pairs of the same size."""
        count = len(self.names)
        for expected, found in zip(reference, other, strict=True):
            known = (expected != UNKNOWN) & (found != UNKNOWN)
            pairs = expected[known].astype(np.int64) * count + found[known]
            self.counts += np.bincount(pairs, minlength=count**2).reshape(count, count)
            self.images += 1

    @property
    def pixels(self) -> int:
        """Pixels that are known in both masks."""
        return int(self.counts.sum())

    @property
    def changed(self) -> int:
        """Pixels that have another class."""
        return self.pixels - int(np.trace(self.counts))

    @property
    def dice(self) -> NDArray[np.float64]:
        """Dice coefficient ``2 |A and B| / (|A| + |B|)`` of each class, over all images; NaN if it occurs in
        neither mask."""
        both = np.diag(self.counts).astype(np.float64)
        total = self.counts.sum(0) + self.counts.sum(1)
        dice = np.full(len(both), np.nan)
        np.divide(2 * both, total, out=dice, where=total > 0)
        return dice

    @property
    def iou(self) -> NDArray[np.float64]:
        """Intersection over union of each class, over all images; NaN if it occurs in neither mask."""
        return self.dice / (2 - self.dice)

    @property
    def mean_dice(self) -> float:
        """Mean `dice` of the classes that occur, without the background of a single map; 1 if none does."""
        return self._mean(self.dice)

    @property
    def mean_iou(self) -> float:
        """Mean `iou`, as `mean_dice`."""
        return self._mean(self.iou)

    def _mean(self, values: NDArray[np.float64]) -> float:
        counted = values[1:] if self.background else values
        return float(np.nanmean(counted)) if np.isfinite(counted).any() else 1.0

    def to_dict(self) -> OverlapDocument:
        """JSON values only."""
        rows = zip(self.names, self.dice, self.iou, strict=True)
        return {
            "images": self.images,
            "pixels": self.pixels,
            "changed": self.changed,
            "mean_dice": self.mean_dice,
            "mean_iou": self.mean_iou,
            "classes": [
                {"label": name, "dice": _known(dice), "iou": _known(iou)}
                for name, dice, iou in rows
            ],
        }


def overlap_of_session(
    session: Session, inputs: Iterable[NDArray[np.float32]], masks: NDArray[np.uint8]
) -> MaskOverlap:
    """How well the masks of a model overlap with the known ones.

    Args:
        session: a segmentation.
        inputs: prepared images.
        masks: theirs ``[N, H, W]``, in the size of the input.
    """
    overlap, scores = MaskOverlap.of(session), session.roles.scores
    assert overlap is not None
    assert scores is not None
    for _, outputs in session.run_batches(inputs, [scores]):
        made = session.roles.input_masks(outputs)
        overlap.update(masks[overlap.images :][: len(made)], made)
    return overlap


def check_above_constant(overlap: MaskOverlap, model: str, source: str) -> None:
    """Refuse masks that overlap no better with those of the data than one class everywhere.

    Args:
        overlap: of the data's masks, the reference, with a model's.
        model: what made them, and ``source`` the data, for the error.

    Raises:
        UsageError: the mean Dice is not above that of the best such mask.
    """
    best = 0.0
    for k in range(int(overlap.background), len(overlap.names)):
        constant = MaskOverlap(overlap.names, overlap.background)
        constant.counts[:, k] = overlap.counts.sum(1)
        best = max(best, constant.mean_dice)
    if overlap.mean_dice <= best:
        raise UsageError(
            f"The masks of {model} do not fit those of {source}.",
            f"Their mean Dice is {overlap.mean_dice:.4f}; a single class everywhere has {best:.4f}.",
            "Pass the data that it was trained on, or train it first.",
        )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def overlap_rows(document: OverlapDocument) -> list[Sequence[str]]:
    """The table of an overlap: class, Dice, IoU; the mean last."""

    def text(value: object) -> str:
        return "-" if value is None else f"{value:.4f}"

    rows: list[Sequence[str]] = [
        (str(each["label"]), text(each["dice"]), text(each["iou"])) for each in document["classes"]
    ]
    return [*rows, ("mean", text(document["mean_dice"]), text(document["mean_iou"]))]
