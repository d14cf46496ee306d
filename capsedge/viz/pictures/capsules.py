"""What any model says of an image: the score of each class, and the pose of its capsule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.viz.examples import (
    MOST_CLASSES,
    Examples,
    best,
    class_names,
    read_examples,
    score_name,
)
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import BEST, OTHER, SOFT, blank, colour_bar, fit, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # images; each takes a row of charts


@dataclass(frozen=True, eq=False, kw_only=True)
class Capsules(Picture):
    """Scores and poses of the class capsules.

    Attributes:
        examples: the images.
        classes: by image, numbers of the classes shown, in their order in the model.
        names: by image, of these classes.
        scores: by image ``[K]``.
        poses: by image ``[K, P]``; ``[K, 0]`` for a model without poses.
        measure: what a score is.
    """

    examples: Examples
    classes: tuple[tuple[int, ...], ...]
    names: tuple[tuple[str, ...], ...]
    scores: tuple[NDArray[np.float64], ...]
    poses: tuple[NDArray[np.float32], ...]
    measure: str

    title = "Scores and poses of the classes"

    @property
    def description(self) -> str:
        """The best class of each image."""
        won = "; ".join(
            f"{name}: {p.label} ({p.labels[0].score:.3f})"
            for name, p in zip(self.examples.names, self.examples.predictions, strict=True)
        )
        return (
            "The input of the model; the score of each class, the best in blue; and the pose of each class "
            f"capsule, a row of values from negative (orange) to positive (purple). {won}."
        )

    def _figure(self) -> Figure:
        """One row per image: input, bars, poses as a table of colours."""
        count = len(self.examples)
        tallest = max(map(len, self.classes))
        figure = blank(9, 0.6 + count * max(1.6, 0.4 + 0.2 * tallest), self.title, self.model)
        axes = figure.subplots(count, 3, squeeze=False, width_ratios=[1, 1.4, 2])
        bound = max((float(np.abs(p).max(initial=0.0)) for p in self.poses), default=0.0) or 1.0
        for n, (image, bars, poses) in enumerate(axes):
            image.imshow(self.examples.pixels[n], interpolation="none")
            image.axis("off")
            image.set_title(fit(self.examples.names[n], 20), fontsize=9, loc="left")
            self._bars(bars, n)
            self._table(poses, n, bound)
        if tables := [axis for axis in axes[:, 2] if axis.images]:
            colour_bar(figure, tables[0].images[0], tables, "value of the pose")
        return figure

    def _bars(self, axis: Any, n: int) -> None:
        scores = self.scores[n]
        colours = [BEST if k == int(scores.argmax()) else OTHER for k in range(len(scores))]
        bars = axis.barh(range(len(scores)), scores, color=colours)
        axis.bar_label(bars, [f"{s:.3f}" for s in scores], padding=2, fontsize=7, color=SOFT)
        axis.set_yticks(range(len(scores)), [fit(name, 16) for name in self.names[n]])
        axis.invert_yaxis()
        axis.set_xlim(0, max(1.0, float(scores.max())) * 1.2)
        plain(axis, "score", self.measure)

    def _table(self, axis: Any, n: int, bound: float) -> None:
        poses = self.poses[n]
        if poses.shape[1] == 0:
            axis.axis("off")
            axis.text(0.5, 0.5, "The model has no poses.", ha="center", fontsize=8, color=SOFT)
            return
        axis.imshow(poses, cmap="PuOr", vmin=-bound, vmax=bound, aspect="auto")
        axis.set_yticks(range(len(poses)), [fit(name, 16) for name in self.names[n]])
        plain(axis, "pose", "dimension, from 0")
        axis.xaxis.get_major_locator().set_params(integer=True)

    def numbers(self) -> dict[str, Any]:
        """Scores and poses of each image."""
        return {
            "images": [
                {
                    "image": name,
                    "classes": list(self.names[n]),
                    "scores": rounded(self.scores[n]),
                    "poses": rounded(self.poses[n]),
                }
                for n, name in enumerate(self.examples.names)
            ]
        }


def compute(session: Session, images: Images, *, invert: bool = False) -> Capsules:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.capsules`."""
    examples = read_examples(session, images, invert, MOST)
    scores = [p.scores for p in examples.predictions]
    classes = [tuple(sorted(best(row, MOST_CLASSES))) for row in scores]
    count = len(scores[0])
    left_out = f"Only the {MOST_CLASSES} best of {count} classes are shown."
    return Capsules(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if count > MOST_CLASSES else ()),
        examples=examples,
        classes=tuple(classes),
        names=tuple(tuple(class_names(session, chosen)) for chosen in classes),
        scores=tuple(row[list(c)] for row, c in zip(scores, classes, strict=True)),
        measure=score_name(session),
        poses=tuple(p.poses[list(c)] for p, c in zip(examples.predictions, classes, strict=True)),
    )
