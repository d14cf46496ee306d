"""Overlapping objects told apart by the pictures of two capsules (Sabour et al. 2017, figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.viz.examples import (
    Examples,
    best,
    check_finite,
    class_index,
    class_names,
    read_examples,
)
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import BAD, GOOD, Tile, blank, draw_sheet, fit, sheet_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = tuple[int, int]

# Orange and blue add up to white where both classes have ink.
_FIRST, _SECOND = np.array((1.0, 0.55, 0.1)), np.array((0.0, 0.45, 0.9))
_UNEXPLAINED = 0.5  # brightness of ink that neither picture has


@dataclass(frozen=True, eq=False)
class Segmented:
    """One image and the pairs of classes that are drawn over it.

    Attributes:
        predicted: the two best classes.
        labels: the true pair; None if it is not known.
        forced: a pair that is drawn although the model did not find it.
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
        """Whether both of the two best classes are the labels; None if these are not known."""
        return None if self.labels is None else set(self.labels) == set(self.predicted)

    def text(self, pair: Sequence[int]) -> str:
        """The names of a pair."""
        return ", ".join(fit(self.names[j], 9) for j in pair)


@dataclass(frozen=True, eq=False, kw_only=True)
class Segmentation(Picture):
    """Images with two objects, and the pictures of two class capsules over each.

    Attributes:
        examples: the images.
        found: one per image.
    """

    examples: Examples
    found: tuple[Segmented, ...]

    title = "Overlapping objects told apart"

    @property
    def description(self) -> str:
        """The pairs of each image."""
        told = "; ".join(
            f"{name}: {s.text(s.predicted)}"
            + {True: " (right)", False: " (wrong)", None: ""}[s.right]
            for name, s in zip(self.examples.names, self.found, strict=True)
        )
        return (
            "R: the decoder's pictures of the two best capsules over the input, one orange, one blue, white "
            "where both have ink, grey where neither has; L: of the true labels, where they are known; "
            f"*: of a pair that was forced. {told}."
        )

    @property
    def _labelled(self) -> bool:
        return any(s.labels is not None for s in self.found)

    def _figure(self) -> Figure:
        """One row per image."""
        rows = [self._row(n, s) for n, s in enumerate(self.found)]
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

    def _row(self, n: int, s: Segmented) -> list[Tile]:
        pixels = self.examples.pixels[n]
        first, second = s.predicted
        frame = {True: GOOD, False: BAD, None: ""}[s.right]
        verdict = {True: "\nright", False: "\nwrong", None: ""}[s.right]
        tiles = [
            Tile(pixels),
            Tile(over(pixels, s, s.predicted), s.text(s.predicted) + verdict, frame),
            Tile(over(pixels, s, (first, None)), f"{s.text([first])}\n{s.scores[first]:.3f}"),
            Tile(over(pixels, s, (None, second)), f"{s.text([second])}\n{s.scores[second]:.3f}"),
        ]
        if s.labels is not None:
            tiles.append(Tile(over(pixels, s, s.labels), s.text(s.labels)))
        elif self._labelled:
            tiles.append(Tile(np.full_like(pixels, 255), "no labels"))
        return [*tiles, Tile(over(pixels, s, s.forced), s.text(s.forced))]

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
                    "pictures": {s.names[j]: rounded(p) for j, p in s.pictures.items()},
                }
                for name, s in zip(self.examples.names, self.found, strict=True)
            ]
        }


def over(
    pixels: NDArray[np.uint8], segmented: Segmented, pair: tuple[int | None, int | None]
) -> NDArray[np.uint8]:
    """The pictures of a pair over an image: orange and blue, ink of neither grey.

    Args:
        pixels: ``[H, W, 3]``.
        segmented: has the pictures.
        pair: two classes; None leaves one out.

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


def compute(
    session: Session,
    images: Images,
    *,
    labels: Sequence[Sequence[str]] = (),
    forced: Sequence[str] = (),
    invert: bool = False,
) -> Segmentation:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.segmentation`."""
    session.can.check_reconstruct()
    examples = read_examples(session, images, invert)
    count = len(examples.predictions[0].scores)
    if count < 2:
        raise UsageError(f"{session.path} has one class.", "A pair needs two.", "")
    if labels and len(labels) != len(examples):
        raise UsageError(
            f"There are {len(labels)} pairs of labels for {len(examples)} images.",
            "",
            "Give one pair per image, in their order.",
        )
    pairs = [_pair(session, pair, count) for pair in labels]
    chosen = _pair(session, forced, count) if forced else None
    pictures = session.reconstruct(examples.inputs, prepared=True)
    check_finite(session, "pictures", pictures)
    found = [
        _segmented(session, pictures[n], examples.predictions[n].scores, truth, chosen)
        for n, truth in enumerate(pairs or [None] * len(examples))
    ]
    return Segmentation(
        model=session.path.name, notes=examples.notes, examples=examples, found=tuple(found)
    )


def _segmented(
    session: Session,
    pictures: NDArray[np.float32],
    scores: NDArray[np.float64],
    labels: Pair | None,
    forced: Pair | None,
) -> Segmented:
    first, second, *_ = order = best(scores, len(scores))
    # As in the paper, one class that is there and one that is neither predicted nor a label.
    absent = [j for j in order if j not in (first, second, *(labels or ()))]
    forced = forced or (first, absent[0] if absent else second)
    used = sorted({first, second, *(labels or ()), *forced})
    return Segmented(
        (first, second),
        labels,
        forced,
        {j: pictures[j] for j in used},
        {j: float(scores[j]) for j in used},
        dict(zip(used, class_names(session, used), strict=True)),
    )


def _pair(session: Session, given: Sequence[str], count: int) -> Pair:
    found = [class_index(session, text, count) for text in given]
    if len(found) != 2 or found[0] == found[1]:
        raise UsageError(
            f"'{','.join(given)}' is not a pair of classes.",
            "",
            "Name two different classes, for example 2,4.",
        )
    return found[0], found[1]
