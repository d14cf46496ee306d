"""Where in an image the parts of a class lie: couplings followed back to the primary capsules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.viz.examples import Examples, best, class_index, class_names, read_examples
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.positions import Grid, grid_over_input
from capsedge.viz.style import blank, colour_bar, fit
from capsedge.viz.traced import check_classes, read_trace, shares_of_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_IMAGES = 6
MOST_CLASSES = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Responsibilities(Picture):
    """Maps of the shares that children have in the winning classes, over the input.

    Attributes:
        examples: the images.
        classes: numbers of the classes of each image.
        names: of these classes.
        shares: ``[N, K, H, W]``; each map adds up to one.
        grid: where its cells lie on the input.
        layer: name of the layer whose children the cells are.
    """

    examples: Examples
    classes: tuple[tuple[int, ...], ...]
    names: tuple[tuple[str, ...], ...]
    shares: NDArray[np.float64]
    grid: Grid
    layer: str

    title = "Where the parts of a class lie"

    @property
    def description(self) -> str:
        """What the maps are, and whose."""
        whose = "; ".join(
            f"{image}: {', '.join(names)}"
            for image, names in zip(self.examples.names, self.names, strict=True)
        )
        rows, columns = self.grid.cells
        return (
            f"Over the input, the share that the capsules at each of {rows} x {columns} positions have in "
            "a class, by the routing of the last iteration, followed back through routed layers; the "
            f"shares of a map add up to 100 %. {whose}."
        )

    def _figure(self) -> Figure:
        """One row per image: the input, then a map for each class."""
        count, shown = self.shares.shape[:2]
        figure = blank(2.0 * (shown + 1), 0.5 + 2.1 * count, self.title, self.model)
        axes = figure.subplots(count, shown + 1, squeeze=False)
        most = 100 * float(self.shares.max())
        for n, (image, *maps) in enumerate(axes):
            self._input(image, n)
            image.set_title(fit(self.examples.names[n], 24), fontsize=8.5)
            for k, axis in enumerate(maps):
                drawn = self._map(axis, n, k, most)
        colour_bar(figure, drawn, axes[:, 1:], "share of a position, %")
        return figure

    def _input(self, axis: Any, n: int) -> None:
        high, wide = self.examples.pixels.shape[1:3]
        axis.imshow(self.examples.pixels[n], interpolation="none")
        axis.set_xlim(-0.5, wide - 0.5)
        axis.set_ylim(high - 0.5, -0.5)
        axis.axis("off")

    def _map(self, axis: Any, n: int, k: int, most: float) -> Any:
        self._input(axis, n)
        drawn = axis.imshow(
            100 * self.shares[n, k], extent=self.grid.extent, cmap="viridis", alpha=0.6, vmin=0.0,
            vmax=most, interpolation="none", zorder=2,
        )  # fmt: skip
        high, wide = self.examples.pixels.shape[1:3]
        axis.set_xlim(-0.5, wide - 0.5)
        axis.set_ylim(high - 0.5, -0.5)
        score = self.examples.predictions[n].scores[self.classes[n][k]]
        axis.set_title(f"{fit(self.names[n][k])}: {score:.3f}", fontsize=8.5)
        return drawn

    def numbers(self) -> dict[str, Any]:
        """The maps, and where their cells lie, in pixels of the input."""
        return {
            "grid": {"start": list(self.grid.start), "step": list(self.grid.step)},
            "images": [
                {
                    "image": image,
                    "classes": list(self.names[n]),
                    "shares": rounded(self.shares[n]),
                }
                for n, image in enumerate(self.examples.names)
            ],
        }


def compute(
    session: Session, images: Images, *, of: str = "", invert: bool = False
) -> Responsibilities:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.responsibilities`."""
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    trace = read_trace(session, examples)
    count = len(examples.predictions[0].scores)
    check_classes(session, trace.layers[-1], count)
    classes = [best(p.scores, MOST_CLASSES) for p in examples.predictions]
    if of:
        classes = [[class_index(session, of, count)]] * len(examples)
    found = [
        [shares_of_class(trace.layers, n, j) for j in chosen] for n, chosen in enumerate(classes)
    ]
    cells = found[0][0].shares.shape
    high, wide = examples.pixels.shape[1:3]
    grid, known = grid_over_input(session.path, (high, wide), (cells[0], cells[1]))
    unknown = (
        "The file does not tell where the cells lie on the input; they are spread over it evenly."
    )
    return Responsibilities(
        model=session.path.name,
        notes=examples.notes + (() if known else (unknown,)),
        examples=examples,
        classes=tuple(map(tuple, classes)),
        names=tuple(tuple(class_names(session, chosen)) for chosen in classes),
        shares=np.stack([[s.shares for s in row] for row in found]),
        grid=grid,
        layer=found[0][0].layer,
    )
