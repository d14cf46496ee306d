"""What each dimension of a pose means: the picture while it alone varies (Sabour et al. 2017, figure 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.runtime.vision.pictures import overlay
from capsedge.viz.examples import Examples, check_finite, class_index, read_examples
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import BEST, Tile, blank, draw_sheet, fit, sheet_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = np.round(np.arange(-5, 6) * 0.05, 2)  # the paper's: from -0.25 to 0.25
MOST_IMAGES = 3  # a sheet for each, side by side
MOST_DIMENSIONS = 32
_MIDDLE = len(STEPS) // 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Dimensions(Picture):
    """The decoder's pictures of one class capsule while one dimension of its pose varies.

    Attributes:
        examples: the images.
        classes: number of the capsule that is varied, by image.
        names: of these classes.
        poses: ``[N, P]``, the poses that are varied.
        pictures: ``[N, D, S, C, H, W]``: of the first D dimensions, each at S offsets.
    """

    examples: Examples
    classes: tuple[int, ...]
    names: tuple[str, ...]
    poses: NDArray[np.float32]
    pictures: NDArray[np.float32]

    title = "The dimensions of a pose"

    @property
    def description(self) -> str:
        """Whose capsule is varied."""
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
                Tile(overlay(picture[None], [0]), frame=BEST if (d, s) == (0, _MIDDLE) else "")
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
                    "pose": rounded(self.poses[n]),
                    "pictures": rounded(self.pictures[n]),
                }
                for n, image in enumerate(self.examples.names)
            ],
        }


def compute(session: Session, images: Images, *, of: str = "", invert: bool = False) -> Dimensions:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.dimensions`."""
    session.can.check_decode()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    scores = np.stack([p.scores for p in examples.predictions])
    chosen = [p.labels[0].index for p in examples.predictions]
    if of:
        chosen = [class_index(session, of, scores.shape[1])] * len(examples)
    poses = np.stack([p.poses[j] for p, j in zip(examples.predictions, chosen, strict=True)])
    size = poses.shape[1]
    found = [varied(session, pose, j) for pose, j in zip(poses, chosen, strict=True)]
    left_out = f"Only the first {MOST_DIMENSIONS} of {size} dimensions are shown."
    return Dimensions(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if size > MOST_DIMENSIONS else ()),
        examples=examples,
        classes=tuple(chosen),
        names=tuple(session.class_name(j) for j in chosen),
        poses=poses,
        pictures=np.stack(found),
    )


def varied(session: Session, pose: NDArray[np.float32], of: int) -> NDArray[np.float32]:
    """The pictures of a class with a pose ``[P]``, one dimension varied at a time.

    Returns:
        ``[D, S, C, H, W]``, values 0 to 1: of the first dimensions, each at the offsets `STEPS`.
    """
    dimensions = min(len(pose), MOST_DIMENSIONS)
    poses = np.tile(pose, (dimensions, len(STEPS), 1))
    for d in range(dimensions):
        poses[d, :, d] += STEPS.astype(pose.dtype)
    found = session.decode(poses.reshape(-1, len(pose)), of)
    check_finite(session, "pictures", found)
    return found.reshape(dimensions, len(STEPS), *found.shape[1:])
