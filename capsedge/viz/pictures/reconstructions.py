"""Images and what the decoder makes of each class capsule (Sabour et al. 2017, figure 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.runtime.vision.pictures import overlay
from capsedge.viz.examples import (
    MOST_CLASSES,
    Examples,
    best,
    check_finite,
    class_names,
    read_examples,
)
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import BEST, Tile, blank, draw_sheet, fit, sheet_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, kw_only=True)
class Reconstructions(Picture):
    """Each image beside the decoder's pictures of its classes.

    Attributes:
        examples: the images.
        classes: numbers of the classes shown, in their order in the model.
        names: of these classes.
        pictures: ``[N, K, C, H, W]``, values 0 to 1.
        scores: ``[N, K]``.
        winners: number of the best class of each image.
    """

    examples: Examples
    classes: tuple[int, ...]
    names: tuple[str, ...]
    pictures: NDArray[np.float32]
    scores: NDArray[np.float64]
    winners: tuple[int, ...]

    title = "Reconstruction of each class"

    @property
    def description(self) -> str:
        """Which class won in each image."""
        won = [
            f"{name}: {prediction.label} ({prediction.labels[0].score:.3f})"
            for name, prediction in zip(self.examples.names, self.examples.predictions, strict=True)
        ]
        return (
            "On the left the input of the model; on its right what the decoder draws from the pose of each "
            f"class capsule alone, with the score of the class; the best is framed. {'; '.join(won)}."
        )

    def _figure(self) -> Figure:
        """One row per image."""
        rows = [self._row(n) for n in range(len(self.examples))]
        names = [fit(n, 18) for n in self.examples.names]
        figure = blank(*sheet_size(rows, names), self.title, self.model)
        headings = ["input", *map(fit, self.names)]
        draw_sheet(figure.subplots(), rows, headings, names)
        return figure

    def _row(self, n: int) -> list[Tile]:
        tiles = [Tile(self.examples.pixels[n])]
        for k, j in enumerate(self.classes):
            frame = BEST if j == self.winners[n] else ""
            pixels = overlay(self.pictures[n, k : k + 1], [0])
            tiles.append(Tile(pixels, f"{self.scores[n, k]:.3f}", frame))
        return tiles

    def numbers(self) -> dict[str, Any]:
        """Scores and pictures of each image."""
        return {
            "classes": list(self.names),
            "images": [
                {
                    "image": name,
                    "scores": rounded(self.scores[n]),
                    "pictures": rounded(self.pictures[n]),
                }
                for n, name in enumerate(self.examples.names)
            ],
        }


def compute(session: Session, images: Images, *, invert: bool = False) -> Reconstructions:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.reconstructions`."""
    session.can.check_reconstruct()
    examples = read_examples(session, images, invert)
    pictures = session.reconstruct(examples.inputs, prepared=True)
    check_finite(session, "pictures", pictures)
    scores = np.stack([p.scores for p in examples.predictions])
    classes = sorted(best(scores.max(axis=0), MOST_CLASSES))
    left_out = f"Only the {MOST_CLASSES} best of {scores.shape[1]} classes are shown."
    return Reconstructions(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if scores.shape[1] > MOST_CLASSES else ()),
        examples=examples,
        classes=tuple(classes),
        names=tuple(class_names(session, classes)),
        pictures=pictures[:, classes],
        scores=scores[:, classes],
        winners=tuple(best(row, 1)[0] for row in scores),
    )
