"""Draw what the decoder makes from poses: reconstructions, segmentation, dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images.inputs import Images
from capsedge.runtime.session.classify import blend_class_pictures
from capsedge.runtime.session.session import Session
from capsedge.viz.examples import (
    MOST_CLASSES,
    Examples,
    best_classes,
    check_drawable,
    class_index,
    class_names,
    read_examples,
)
from capsedge.viz.figure import (
    BAD,
    BEST,
    GOOD,
    Picture,
    Tile,
    blank,
    draw_sheet,
    fit,
    rounded_lists,
    sheet_size,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# --- Reconstructions from each class capsule (Sabour et al. 2017, figure 3) ---


@dataclass(frozen=True, eq=False, kw_only=True)
class Reconstructions(Picture):
    """Each image beside the decoder's pictures for its classes.

    Attributes:
        examples: the images.
        classes: numbers of the classes shown, in their order in the model.
        names: names of these classes.
        pictures: ``[N, K, C, H, W]``, values 0 to 1.
        scores: ``[N, K]``.
        winners: number of each image's best class.
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
            pixels = blend_class_pictures(self.pictures[n, k : k + 1], [0])
            tiles.append(Tile(pixels, f"{self.scores[n, k]:.3f}", frame))
        return tiles

    def numbers(self) -> dict[str, Any]:
        """Scores and pictures of each image."""
        return {
            "classes": list(self.names),
            "images": [
                {
                    "image": name,
                    "scores": rounded_lists(self.scores[n]),
                    "pictures": rounded_lists(self.pictures[n]),
                }
                for n, name in enumerate(self.examples.names)
            ],
        }


def compute_reconstructions(
    session: Session, images: Images, *, invert: bool = False
) -> Reconstructions:
    """The data of the picture; arguments and errors as for `capsedge.viz.reconstructions`."""
    session.can.check_reconstruct()
    examples = read_examples(session, images, invert)
    pictures = session.reconstruct(examples.inputs, prepared=True)
    check_drawable(session, "pictures", pictures)
    scores = np.stack([p.scores for p in examples.predictions])
    classes = sorted(best_classes(scores.max(axis=0), MOST_CLASSES))
    left_out = f"Only the {MOST_CLASSES} best of {scores.shape[1]} classes are shown."
    return Reconstructions(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if scores.shape[1] > MOST_CLASSES else ()),
        examples=examples,
        classes=tuple(classes),
        names=tuple(class_names(session, classes)),
        pictures=pictures[:, classes],
        scores=scores[:, classes],
        winners=tuple(best_classes(row, 1)[0] for row in scores),
    )


# --- Segmentation of overlapping objects by two capsules (Sabour et al. 2017, figure 5) ---

Pair = tuple[int, int]

# Orange and blue add up to white if both classes have ink.
_FIRST, _SECOND = np.array((1.0, 0.55, 0.1)), np.array((0.0, 0.45, 0.9))
_UNEXPLAINED = 0.5  # brightness of ink that is in neither picture


@dataclass(frozen=True, eq=False)
class ImageSegmentation:
    """One image and the pairs of classes drawn over it.

    Attributes:
        predicted: the two best classes.
        labels: the true pair; None if unknown.
        forced: a pair that is drawn even if the model did not find it.
        pictures: by class ``[C, H, W]``, values 0 to 1.
        scores: by class.
        names: by class.
    """

    predicted: Pair
    labels: Pair | None
    forced: Pair
    pictures: dict[int, NDArray[np.float32]]
    scores: dict[int, float]
    names: dict[int, str]

    @property
    def right(self) -> bool | None:
        """Whether the two best classes are the labels; None if these are unknown."""
        return None if self.labels is None else set(self.labels) == set(self.predicted)

    def text(self, pair: Sequence[int]) -> str:
        """The names of a pair."""
        return ", ".join(fit(self.names[j], 9) for j in pair)


@dataclass(frozen=True, eq=False, kw_only=True)
class Segmentation(Picture):
    """Images with two objects, each overlaid with the pictures of two class capsules.

    Attributes:
        examples: the images.
        per_image: one per image.
    """

    examples: Examples
    per_image: tuple[ImageSegmentation, ...]

    title = "Overlapping objects told apart"

    @property
    def description(self) -> str:
        """The pairs of each image."""
        text = "; ".join(
            f"{name}: {s.text(s.predicted)}"
            + {True: " (right)", False: " (wrong)", None: ""}[s.right]
            for name, s in zip(self.examples.names, self.per_image, strict=True)
        )
        return (
            "R: the decoder's pictures of the two best capsules over the input, one orange, one blue, white "
            "where both have ink, grey where neither has; L: of the true labels, where they are known; "
            f"*: of a pair that was forced. {text}."
        )

    @property
    def _labelled(self) -> bool:
        return any(s.labels is not None for s in self.per_image)

    def _figure(self) -> Figure:
        """One row per image."""
        rows = [self._row(n, s) for n, s in enumerate(self.per_image)]
        names = [fit(n, 18) for n in self.examples.names]
        figure = blank(*sheet_size(rows, names), self.title, self.model)
        headings = [
            "input",
            "R: two best",
            "first",
            "second",
            *(["L: labels"] if self._labelled else []),
            "*: forced",
        ]
        draw_sheet(figure.subplots(), rows, headings, names)
        return figure

    def _row(self, n: int, s: ImageSegmentation) -> list[Tile]:
        pixels = self.examples.pixels[n]
        first, second = s.predicted
        frame = {True: GOOD, False: BAD, None: ""}[s.right]
        verdict = {True: "\nright", False: "\nwrong", None: ""}[s.right]
        tiles = [
            Tile(pixels),
            Tile(overlay_pair(pixels, s, s.predicted), s.text(s.predicted) + verdict, frame),
            Tile(
                overlay_pair(pixels, s, (first, None)), f"{s.text([first])}\n{s.scores[first]:.3f}"
            ),
            Tile(
                overlay_pair(pixels, s, (None, second)),
                f"{s.text([second])}\n{s.scores[second]:.3f}",
            ),
        ]
        if s.labels is not None:
            tiles.append(Tile(overlay_pair(pixels, s, s.labels), s.text(s.labels)))
        elif self._labelled:
            tiles.append(Tile(np.full_like(pixels, 255), "no labels"))
        return [*tiles, Tile(overlay_pair(pixels, s, s.forced), s.text(s.forced))]

    def numbers(self) -> dict[str, Any]:
        """Classes, scores and pictures of each image."""
        return {
            "images": [
                {
                    "image": name,
                    "predicted": [s.names[j] for j in s.predicted],
                    "labels": None if s.labels is None else [s.names[j] for j in s.labels],
                    "right": s.right,
                    "forced": [s.names[j] for j in s.forced],
                    "scores": {s.names[j]: round(score, 6) for j, score in s.scores.items()},
                    "pictures": {s.names[j]: rounded_lists(p) for j, p in s.pictures.items()},
                }
                for name, s in zip(self.examples.names, self.per_image, strict=True)
            ]
        }


def overlay_pair(
    pixels: NDArray[np.uint8], segmented: ImageSegmentation, pair: tuple[int | None, int | None]
) -> NDArray[np.uint8]:
    """The pictures of a pair over an image in orange and blue; ink in neither is grey.

    Args:
        pixels: ``[H, W, 3]``.
        segmented: holds the pictures.
        pair: two classes; None omits one.

    Returns:
        ``[H, W, 3]``.
    """
    ink = pixels.mean(axis=2) / 255.0
    explained = np.zeros_like(ink)
    total = np.zeros((*ink.shape, 3))
    for j, colour in zip(pair, (_FIRST, _SECOND), strict=True):
        if j is not None:
            picture = np.clip(segmented.pictures[j], 0.0, 1.0).mean(axis=0)
            total += picture[..., None] * colour
            explained = np.maximum(explained, picture)
    total += _UNEXPLAINED * np.clip(ink - explained, 0.0, 1.0)[..., None]
    return np.rint(np.clip(total, 0.0, 1.0) * 255.0).astype(np.uint8)


def compute_segmentation(
    session: Session,
    images: Images,
    *,
    labels: Sequence[Sequence[str]] = (),
    forced: Sequence[str] = (),
    invert: bool = False,
) -> Segmentation:
    """The data of the picture; arguments and errors as for `capsedge.viz.segmentation`."""
    session.can.check_reconstruct()
    examples = read_examples(session, images, invert)
    count = len(examples.predictions[0].scores)
    if count < 2:
        raise UsageError(f"{session.path} has one class.", "A pair needs two classes.", "")
    if labels and len(labels) != len(examples):
        raise UsageError(
            f"There are {len(labels)} pairs of labels for {len(examples)} images.",
            "",
            "Pass one pair per image, in the same order.",
        )
    pairs = [_pair(session, pair, count) for pair in labels]
    chosen = _pair(session, forced, count) if forced else None
    pictures = session.reconstruct(examples.inputs, prepared=True)
    check_drawable(session, "pictures", pictures)
    segmented = [
        _segmented(session, pictures[n], examples.predictions[n].scores, truth, chosen)
        for n, truth in enumerate(pairs or [None] * len(examples))
    ]
    return Segmentation(
        model=session.path.name, notes=examples.notes, examples=examples, per_image=tuple(segmented)
    )


def _segmented(
    session: Session,
    pictures: NDArray[np.float32],
    scores: NDArray[np.float64],
    labels: Pair | None,
    forced: Pair | None,
) -> ImageSegmentation:
    first, second, *_ = order = best_classes(scores, len(scores))
    # As in the paper: one class that is present, and one that is neither predicted nor a label.
    absent = [j for j in order if j not in (first, second, *(labels or ()))]
    forced = forced or (first, absent[0] if absent else second)
    used = sorted({first, second, *(labels or ()), *forced})
    return ImageSegmentation(
        (first, second),
        labels,
        forced,
        {j: pictures[j] for j in used},
        {j: float(scores[j]) for j in used},
        dict(zip(used, class_names(session, used), strict=True)),
    )


def _pair(session: Session, labels: Sequence[str], count: int) -> Pair:
    classes = [class_index(session, text, count) for text in labels]
    if len(classes) != 2 or classes[0] == classes[1]:
        raise UsageError(
            f"'{','.join(labels)}' is not a pair of classes.",
            "",
            "Choose two different classes, for example 2,4.",
        )
    return classes[0], classes[1]


# --- Dimensions: pictures as a single one varies (Sabour et al. 2017, figure 4) ---

STEPS = np.round(np.arange(-5, 6) * 0.05, 2)  # as in the paper: from -0.25 to 0.25
MOST_IMAGES = 3  # a sheet for each, side by side
MOST_DIMENSIONS = 32
_MIDDLE = len(STEPS) // 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Dimensions(Picture):
    """The decoder's pictures of one class capsule while one dimension of its pose varies.

    Attributes:
        examples: the images.
        classes: for each image, number of the capsule that is varied.
        names: names of these classes.
        poses: ``[N, P]``, the poses that are varied.
        pictures: ``[N, D, S, C, H, W]``: the first D dimensions, each at S offsets.
    """

    examples: Examples
    classes: tuple[int, ...]
    names: tuple[str, ...]
    poses: NDArray[np.float32]
    pictures: NDArray[np.float32]

    title = "The dimensions of a pose"

    @property
    def description(self) -> str:
        """The class whose capsule is varied."""
        varied = "; ".join(
            f"{image}: class {name}"
            for image, name in zip(self.examples.names, self.names, strict=True)
        )
        return (
            "Each row varies one dimension, counted from 0, of the pose of a class capsule, from "
            f"{STEPS[0]:+.2f} to {STEPS[-1]:+.2f} in steps of {STEPS[1] - STEPS[0]:.2f}; the column in the "
            f"middle, framed in the first row, is the pose as it is. {varied}."
        )

    def _figure(self) -> Figure:
        """A sheet per image."""
        sheets = [self._rows(n) for n in range(len(self.examples))]
        width, height = sheet_size(sheets[0])
        scale = min(1.0, 6.4 / height, 15 / (len(sheets) * width))
        width, height = scale * width, scale * height
        figure = blank(len(sheets) * width, height + 0.4, self.title, self.model)
        axes = figure.subplots(1, len(sheets), squeeze=False)[0]
        headings = [f"{step:+.2f}" if k % 5 == 0 else "" for k, step in enumerate(STEPS)]
        for n, (axis, rows) in enumerate(zip(axes, sheets, strict=True)):
            draw_sheet(axis, rows, headings, [str(d) for d in range(len(rows))])
            name = f"{fit(self.examples.names[n], 20)}: class {fit(self.names[n])}"
            axis.set_title(name, fontsize=9, pad=16)
        return figure

    def _rows(self, n: int) -> list[list[Tile]]:
        return [
            [
                Tile(
                    blend_class_pictures(picture[None], [0]),
                    frame=BEST if (d, s) == (0, _MIDDLE) else "",
                )
                for s, picture in enumerate(row)
            ]
            for d, row in enumerate(self.pictures[n])
        ]

    def numbers(self) -> dict[str, Any]:
        """Poses and pictures by image, dimension and offset."""
        return {
            "offsets": STEPS.tolist(),
            "images": [
                {
                    "image": image,
                    "class": self.names[n],
                    "pose": rounded_lists(self.poses[n]),
                    "pictures": rounded_lists(self.pictures[n]),
                }
                for n, image in enumerate(self.examples.names)
            ],
        }


def compute_dimensions(
    session: Session, images: Images, *, of: str = "", invert: bool = False
) -> Dimensions:
    """The data of the picture; arguments and errors as for `capsedge.viz.dimensions`."""
    session.can.check_decode()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    scores = np.stack([p.scores for p in examples.predictions])
    chosen = [p.labels[0].index for p in examples.predictions]
    if of:
        chosen = [class_index(session, of, scores.shape[1])] * len(examples)
    poses = np.stack([p.poses[j] for p, j in zip(examples.predictions, chosen, strict=True)])
    size = poses.shape[1]
    pictures = [varied(session, pose, j) for pose, j in zip(poses, chosen, strict=True)]
    left_out = f"Only the first {MOST_DIMENSIONS} of {size} dimensions are shown."
    return Dimensions(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if size > MOST_DIMENSIONS else ()),
        examples=examples,
        classes=tuple(chosen),
        names=tuple(session.class_name(j) for j in chosen),
        poses=poses,
        pictures=np.stack(pictures),
    )


def varied(session: Session, pose: NDArray[np.float32], of: int) -> NDArray[np.float32]:
    """Pictures ``[D, S, C, H, W]`` of a class with pose ``[P]``, one dimension varied by `STEPS`."""
    dimensions = min(len(pose), MOST_DIMENSIONS)
    poses = np.tile(pose, (dimensions, len(STEPS), 1))
    for d in range(dimensions):
        poses[d, :, d] += STEPS.astype(pose.dtype)
    pictures = session.decode(poses.reshape(-1, len(pose)), of)
    check_drawable(session, "pictures", pictures)
    return pictures.reshape(dimensions, len(STEPS), *pictures.shape[1:])
