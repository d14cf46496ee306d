"""How well two sets of masks overlap: pixels that change class, Dice and IoU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.session.masks import Mask
from capsedge.spec.fields import UNKNOWN

if TYPE_CHECKING:
    from typing_extensions import Self

    from capsedge.runtime.session.session import Session


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
