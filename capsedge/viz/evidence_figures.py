"""Draw why a model decides as it does: responsible parts, class capsules, hardest images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet, read_images
from capsedge.errors import UsageError
from capsedge.runtime.images.inputs import Images
from capsedge.runtime.session.session import Session
from capsedge.viz.examples import (
    MOST_CLASSES,
    Examples,
    best_classes,
    class_index,
    class_names,
    preprocessing_of,
    read_examples,
    score_name,
    shown,
)
from capsedge.viz.figure import (
    BAD,
    BEST,
    GOOD,
    OTHER,
    SOFT,
    Picture,
    Tile,
    blank,
    colour_bar,
    draw_sheet,
    fit,
    label_axes,
    rounded_lists,
    sheet_size,
)
from capsedge.viz.trace_data import (
    Grid,
    check_parents_are_classes,
    grid_over_input,
    read_trace,
    shares_of_class,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# --- Responsibilities: couplings traced back to the primary capsules ---

MOST_IMAGES = 6
MOST_EXPLAINED_CLASSES = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Responsibilities(Picture):
    """Maps, over the input, of each child's share in the winning classes.

    Attributes:
        examples: the images.
        classes: numbers of the classes of each image.
        names: names of these classes.
        shares: ``[N, K, H, W]``; each map adds up to one.
        grid: positions of its cells on the input.
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
        """What the maps show, and for which classes."""
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
        """The maps, and the positions of their cells in pixels of the input."""
        return {
            "grid": {"start": list(self.grid.start), "step": list(self.grid.step)},
            "images": [
                {
                    "image": image,
                    "classes": list(self.names[n]),
                    "shares": rounded_lists(self.shares[n]),
                }
                for n, image in enumerate(self.examples.names)
            ],
        }


def compute_responsibilities(
    session: Session, images: Images, *, of: str = "", invert: bool = False
) -> Responsibilities:
    """The data of the picture; arguments and errors as for `capsedge.viz.responsibilities`."""
    session.can.check_classes()
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    trace = read_trace(session, examples.inputs)
    count = len(examples.predictions[0].scores)
    check_parents_are_classes(session, trace.layers[-1], count)
    classes = [best_classes(p.scores, MOST_EXPLAINED_CLASSES) for p in examples.predictions]
    if of:
        classes = [[class_index(session, of, count)]] * len(examples)
    rows = [
        [shares_of_class(trace.layers, n, j) for j in chosen] for n, chosen in enumerate(classes)
    ]
    cells = rows[0][0].shares.shape
    high, wide = examples.pixels.shape[1:3]
    grid, known = grid_over_input(session.path, (high, wide), (cells[0], cells[1]))
    unknown = "The file does not record where the cells lie on the input, so they are spread evenly over it."
    return Responsibilities(
        model=session.path.name,
        notes=examples.notes + (() if known else (unknown,)),
        examples=examples,
        classes=tuple(map(tuple, classes)),
        names=tuple(tuple(class_names(session, chosen)) for chosen in classes),
        shares=np.stack([[s.shares for s in row] for row in rows]),
        grid=grid,
        layer=rows[0][0].layer,
    )


# --- Capsules: each class's score, and the pose of its capsule ---

MOST = 6  # images; each has a row of charts


@dataclass(frozen=True, eq=False, kw_only=True)
class Capsules(Picture):
    """Scores and poses of the class capsules.

    Attributes:
        examples: the images.
        classes: for each image, numbers of the classes shown, in their order in the model.
        names: for each image, of these classes.
        scores: by image ``[K]``.
        poses: by image ``[K, P]``; ``[K, 0]`` for a model without poses.
        measure: what a score measures.
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
        label_axes(axis, "score", self.measure)

    def _table(self, axis: Any, n: int, bound: float) -> None:
        poses = self.poses[n]
        if poses.shape[1] == 0:
            axis.axis("off")
            axis.text(0.5, 0.5, "The model has no poses.", ha="center", fontsize=8, color=SOFT)
            return
        axis.imshow(poses, cmap="PuOr", vmin=-bound, vmax=bound, aspect="auto")
        axis.set_yticks(range(len(poses)), [fit(name, 16) for name in self.names[n]])
        label_axes(axis, "pose", "dimension, from 0")
        axis.xaxis.get_major_locator().set_params(integer=True)

    def numbers(self) -> dict[str, Any]:
        """Scores and poses of each image."""
        return {
            "images": [
                {
                    "image": name,
                    "classes": list(self.names[n]),
                    "scores": rounded_lists(self.scores[n]),
                    "poses": rounded_lists(self.poses[n]),
                }
                for n, name in enumerate(self.examples.names)
            ]
        }


def compute_capsules(session: Session, images: Images, *, invert: bool = False) -> Capsules:
    """The data of the picture; arguments and errors as for `capsedge.viz.capsules`."""
    session.can.check_classes()
    examples = read_examples(session, images, invert, MOST)
    scores = [p.scores for p in examples.predictions]
    classes = [tuple(sorted(best_classes(row, MOST_CLASSES))) for row in scores]
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


# --- Hardest images of a data set, and the classes that the model confuses them with ---

SHOWN = 30
_ACROSS = 10  # tiles in a row


@dataclass(frozen=True, eq=False, kw_only=True)
class Hardest(Picture):
    """Images with the smallest margin between the score of their class and the best other score.

    Attributes:
        numbers_in_set: of the images, from 0, hardest first.
        pixels: ``[N, H, W, 3]``.
        true: name of each image's class.
        rivals: name of the best of the other classes.
        margins: ``[N]``, below 0 for a mistake.
        mistaken: ``[N]``, whether the model prefers the rival.
        images: size of the data set.
        data: name of the images.
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
        """The heading, with the number of mistakes."""
        return f"Hardest images: {self.mistakes} of {self.images:,} mistaken"

    @property
    def description(self) -> str:
        """What the sheet shows."""
        return (
            f"The {len(self.margins)} hardest of {self.images:,} images ({self.data}; {self.mistakes:,} "
            "mistaken): the true class, and the strongest of the others, after an arrow if the model "
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
            rounded_lists(self.margins),
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


def compute_hardest(
    session: Session, data: ImageSet | Path | str, *, count: int = SHOWN, limit: int | None = None
) -> Hardest:
    """The data of the picture; arguments and errors as for `capsedge.viz.hardest`."""
    session.can.check_classes()
    preprocessing = preprocessing_of(session)
    rule = session.metadata.training_split if session.metadata is not None else None
    named = session.metadata.class_names if session.metadata is not None else ()
    image_set = (
        data
        if isinstance(data, ImageSet)
        else read_images(data, preprocessing, "test", limit, rule=rule, named=named)
    )
    scores = np.stack(
        [p.scores for p in session.stream(image_set.inputs(), prepared=True, batch_size=64)]
    )
    labels = _checked(image_set.classes, scores.shape[1])
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = -np.inf
    rivals = others.argmax(axis=1)
    margins = scores[rows, labels] - scores[rows, rivals]
    # Among equal scores the first class wins, as in a prediction.
    mistaken = scores.argmax(axis=1) != labels
    order = np.lexsort((rows, margins, ~mistaken))[:count]
    inputs = np.stack(list(image_set.take(order).inputs()))
    return Hardest(
        model=session.path.name,
        numbers_in_set=order,
        pixels=shown(session, inputs),
        true=tuple(class_names(session, labels[order])),
        rivals=tuple(class_names(session, rivals[order])),
        margins=margins[order],
        mistaken=mistaken[order],
        images=len(image_set),
        data=image_set.described,
        mistakes=int(mistaken.sum()),
    )


def _checked(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if classes < 2 or len(wrong):
        what = (
            f"Image {wrong[0]} has the label {labels[wrong[0]]}."
            if len(wrong)
            else "A margin needs two classes."
        )
        raise UsageError(
            "The data does not fit the model.",
            f"The model has {classes} classes, counted from 0. {what}",
            "Pass data with the classes that the model was trained on.",
        )
    return labels
