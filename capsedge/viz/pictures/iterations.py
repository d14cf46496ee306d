"""Routing iterations side by side: how strong each class is after each, and what its pose decodes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.routing_trace import TracedLayer
from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.runtime.vision.pictures import overlay
from capsedge.viz.examples import MOST_CLASSES, Examples, best, class_names, read_examples
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import BEST, OTHER, SOFT, blank, fit, plain
from capsedge.viz.traced import check_classes, read_trace, strengths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_IMAGES = 4


@dataclass(frozen=True, eq=False)
class Iterated:
    """The iterations of one image.

    Attributes:
        classes: numbers of the classes shown, in their order in the model.
        names: of these classes.
        strengths: ``[T, K]``.
        winner: number of the best class.
        pictures: ``[T, C, H, W]``, what the decoder makes of the winner's pose; None without a decoder.
        moved: ``[T]``, distance of the winner's pose from that of the last iteration.
    """

    classes: tuple[int, ...]
    names: tuple[str, ...]
    strengths: NDArray[np.float64]
    winner: int
    pictures: NDArray[np.float32] | None
    moved: NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Iterations(Picture):
    """The class layer after each iteration.

    Attributes:
        examples: the images.
        found: one per image.
        measure: what a strength is.
    """

    examples: Examples
    found: tuple[Iterated, ...]
    measure: str

    title = "Routing iterations side by side"

    @property
    def description(self) -> str:
        """The strength of the winner after each iteration."""
        told = "; ".join(
            f"{image}, class {i.names[i.classes.index(i.winner)]}: "
            + ", ".join(f"{s:.3f}" for s in i.strengths[:, i.classes.index(i.winner)])
            for image, i in zip(self.examples.names, self.found, strict=True)
        )
        decoded = (
            "; the picture is what the decoder makes of the winner's pose at that point"
            if self._decoded
            else ""
        )
        return (
            f"The {self.measure} of each class after each routing iteration, the winner in blue{decoded}. "
            f"{told}."
        )

    @property
    def _decoded(self) -> bool:
        return self.found[0].pictures is not None

    def _figure(self) -> Figure:
        """A row per image: the input, then each iteration's bars, beside the winner's picture."""
        count, steps = len(self.found), len(self.found[0].strengths)
        each = 2 if self._decoded else 1
        ratios = [1.0, *([1.3, 0.8][:each] * steps)]
        width = 1.7 * sum(ratios)
        figure = blank(max(width, 5.0), 0.6 + 2.1 * count, self.title, self.model)
        rows = figure.subplots(count, 1 + each * steps, squeeze=False, width_ratios=ratios)
        for n, (image, *others) in enumerate(rows):
            image.imshow(self.examples.pixels[n], interpolation="none")
            image.axis("off")
            image.set_title(fit(self.examples.names[n], 18), fontsize=9, loc="left")
            for t in range(steps):
                self._bars(others[each * t], n, t)
                if self._decoded:
                    self._picture(others[each * t + 1], n, t)
        return figure

    def _bars(self, axis: Any, n: int, t: int) -> None:
        found = self.found[n]
        colours = [BEST if j == found.winner else OTHER for j in found.classes]
        axis.barh(range(len(found.classes)), found.strengths[t], color=colours)
        axis.set_yticks(range(len(found.classes)), [fit(name, 8) for name in found.names])
        axis.invert_yaxis()
        low, high = float(found.strengths.min()), float(found.strengths.max())
        axis.set_xlim(min(0.0, low) * 1.05, max(high, 1e-6) * 1.05)
        plain(axis, f"iteration {t + 1}", self.measure)

    def _picture(self, axis: Any, n: int, t: int) -> None:
        pictures = self.found[n].pictures
        assert pictures is not None
        axis.imshow(overlay(pictures[t : t + 1], [0]), interpolation="none")
        axis.axis("off")
        axis.set_title(f"{self.found[n].moved[t]:.2f} from the last", fontsize=7.5, color=SOFT)

    def numbers(self) -> dict[str, Any]:
        """Strengths and distances of each image by iteration."""
        return {
            "measure": self.measure,
            "images": [
                {
                    "image": image,
                    "classes": list(i.names),
                    "strengths": rounded(i.strengths),
                    "distance_from_last": rounded(i.moved),
                    "pictures": None if i.pictures is None else rounded(i.pictures),
                }
                for image, i in zip(self.examples.names, self.found, strict=True)
            ],
        }


def compute(session: Session, images: Images, *, invert: bool = False) -> Iterations:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.iterations`."""
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    last = read_trace(session, examples).layers[-1]
    count = len(examples.predictions[0].scores)
    check_classes(session, last, count)
    left_out = f"Only the {MOST_CLASSES} best of {count} classes are shown."
    found = [_iterated(session, last, n, p.scores) for n, p in enumerate(examples.predictions)]
    return Iterations(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if count > MOST_CLASSES else ()),
        examples=examples,
        found=tuple(found),
        measure=strengths(last, 0)[1],
    )


def _iterated(
    session: Session, layer: TracedLayer, image: int, scores: NDArray[np.float64]
) -> Iterated:
    classes = sorted(best(scores, MOST_CLASSES))
    winner = best(scores, 1)[0]
    poses = layer.poses[image].reshape(layer.iterations, -1, layer.poses.shape[-1])[:, winner]
    pictures = session.decode(poses, winner) if _decodes(session) else None
    return Iterated(
        tuple(classes),
        tuple(class_names(session, classes)),
        strengths(layer, image)[0][:, classes].astype(np.float64),
        winner,
        pictures,
        np.linalg.norm(poses.astype(np.float64) - poses[-1], axis=1),
    )


def _decodes(session: Session) -> bool:
    try:
        session.can.check_decode()
    except UsageError:
        return False
    return True
