"""The images of a data set that a model finds hardest, and what it takes them for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet, read_images
from capsedge.errors import UsageError
from capsedge.runtime.session import Session
from capsedge.viz.examples import class_names, preprocessing_of, shown
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import BAD, GOOD, Tile, blank, draw_sheet, fit, sheet_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 30
_ACROSS = 10  # tiles in a row


@dataclass(frozen=True, eq=False, kw_only=True)
class Hardest(Picture):
    """Images with the smallest margin between the score of their class and the best of the others.

    Attributes:
        numbers_in_set: of the images, from 0 on, hardest first.
        pixels: ``[N, H, W, 3]``.
        true: name of each image's class.
        rivals: name of the best of the other classes.
        margins: ``[N]``, below 0 for a mistake.
        mistaken: ``[N]``, whether the model prefers the rival.
        images: size of the data set.
        data: which images they are.
        mistakes: in the whole data set.
    """

    numbers_in_set: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    true: tuple[str, ...]
    rivals: tuple[str, ...]
    margins: NDArray[np.float64]
    mistaken: NDArray[np.bool_]
    images: int
    data: str
    mistakes: int

    @property
    def title(self) -> str:
        """With the number of mistakes."""
        return f"Hardest images: {self.mistakes} of {self.images:,} mistaken"

    @property
    def description(self) -> str:
        """What the sheet shows."""
        return (
            f"The {len(self.margins)} hardest of {self.images:,} images ({self.data}; {self.mistakes:,} "
            "are mistaken): the true class, and the strongest of the others, after an arrow if the model "
            "prefers it (framed in red), in brackets if it does not; below, the margin between their scores."
        )

    def _figure(self) -> Figure:
        """Ten images in a row."""
        tiles = [self._tile(n) for n in range(len(self.margins))]
        rows = [tiles[n : n + _ACROSS] for n in range(0, len(tiles), _ACROSS)]
        figure = blank(*sheet_size(rows), self.title, self.model)
        draw_sheet(figure.subplots(), rows)
        return figure

    def _tile(self, n: int) -> Tile:
        true, rival = fit(self.true[n], 7), fit(self.rivals[n], 7)
        classes = f"{true} → {rival}" if self.mistaken[n] else f"{true} ({rival})"
        frame = BAD if self.mistaken[n] else GOOD
        return Tile(self.pixels[n], f"{classes}\n{self.margins[n]:+.3f}", frame)

    def numbers(self) -> dict[str, Any]:
        """Number, classes and margin of each image."""
        columns = (
            self.numbers_in_set,
            self.true,
            self.rivals,
            self.mistaken,
            rounded(self.margins),
        )
        return {
            "size": self.images,
            "mistakes": self.mistakes,
            "images": [
                {
                    "number": int(number),
                    "class": true,
                    "rival": rival,
                    "mistaken": bool(mistaken),
                    "margin": margin,
                }
                for number, true, rival, mistaken, margin in zip(*columns, strict=True)
            ],
        }


def compute(
    session: Session, data: ImageSet | Path | str, *, count: int = SHOWN, limit: int | None = None
) -> Hardest:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.hardest`."""
    preprocessing = preprocessing_of(session)
    found = data if isinstance(data, ImageSet) else read_images(data, preprocessing, "test", limit)
    scores = np.stack(
        [p.scores for p in session.stream(found.inputs(), prepared=True, batch_size=64)]
    )
    labels = _checked(found.classes, scores.shape[1])
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = -np.inf
    rivals = others.argmax(axis=1)
    margins = scores[rows, labels] - scores[rows, rivals]
    # Of equal scores the first class is preferred, as in a prediction.
    mistaken = scores.argmax(axis=1) != labels
    order = np.lexsort((rows, margins, ~mistaken))[:count]
    inputs = np.stack(list(found.take(order).inputs()))
    return Hardest(
        model=session.path.name,
        numbers_in_set=order,
        pixels=shown(session, inputs),
        true=tuple(class_names(session, labels[order])),
        rivals=tuple(class_names(session, rivals[order])),
        margins=margins[order],
        mistaken=mistaken[order],
        images=len(found),
        data=found.described,
        mistakes=int(mistaken.sum()),
    )


def _checked(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if classes < 2 or len(wrong):
        what = (
            f"Image {wrong[0]} has the label {labels[wrong[0]]}."
            if len(wrong)
            else "A margin needs two."
        )
        raise UsageError(
            "The data does not fit the model.",
            f"The model has {classes} classes, counted from 0. {what}",
            "Name the data that the model was trained for.",
        )
    return labels
