"""Draw the masks of a segmentation: over the input, against those of the data, with couplings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet
from capsedge.datasets.mask_folders import read_mask_split
from capsedge.errors import UsageError
from capsedge.runtime.images.inputs import Images
from capsedge.runtime.session.masks import Mask, MaskOverlap, class_areas, mask_values, overlaid
from capsedge.runtime.session.session import Session
from capsedge.spec.fields import UNKNOWN
from capsedge.viz.examples import best_classes, preprocessing_of, read_examples, shown
from capsedge.viz.figure import (
    Picture,
    Pixels,
    Tile,
    blank,
    draw_sheet,
    fit,
    rounded_lists,
    sheet_size,
)
from capsedge.viz.trace_data import Floats, layer_named, read_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsedge.runtime.session.routing_trace import TracedLayer

MOST_TYPES = 4  # maps of couplings of an image
# Of pixels with another class than in the data: the background instead, instead of it, or two other classes.
MISSED, EXTRA, CONFUSED = (230, 159, 0), (0, 114, 178), (204, 121, 167)


@dataclass(frozen=True, eq=False)
class ImageMask:
    """The mask of one image.

    Attributes:
        name: of the image.
        pixels: the input ``[H, W, 3]``.
        mask: the predicted classes ``[H, W]``.
        truth: those of the data ``[H, W]``; None if they are not known.
        dice: mean Dice of both; None if the data's are not known.
    """

    name: str
    pixels: Pixels
    mask: Mask
    truth: Mask | None = None
    dice: float | None = None


@dataclass(frozen=True, eq=False)
class CouplingMaps:
    """Mean couplings of the children at each position, after the last iteration.

    Attributes:
        layer: name of the routed layer.
        types: numbers of the parents shown, strongest first.
        shares: ``[N, K, H', W']``.
    """

    layer: str
    types: tuple[int, ...]
    shares: NDArray[np.float64]

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest of them."""
        return float(self.shares.min()), float(self.shares.max())


@dataclass(frozen=True, eq=False, kw_only=True)
class Masks(Picture):
    """Images with their masks.

    Attributes:
        images: one for each row.
        classes: names of the classes, by number.
        couplings: of a routed layer; None if the file has no trace.
        overall: mean Dice of a whole data set, of which these are the worst images; None for single images.
        described: the data set.
    """

    images: tuple[ImageMask, ...]
    classes: tuple[str, ...]
    couplings: CouplingMaps | None = None
    overall: float | None = None
    described: str = ""

    @property
    def title(self) -> str:
        """The heading; of a data set with its mean Dice."""
        if self.overall is None:
            return "Masks"
        return f"Masks with the least overlap: mean Dice {self.overall:.4f} of all"

    @property
    def description(self) -> str:
        """What the columns show, and the largest class or the Dice of each image."""
        text = "The input of the model, and over it the mask in the colours of PASCAL VOC."
        if self.overall is not None:
            text = (
                f"The {len(self.images)} images of {self.described} whose masks overlap least: the input, "
                "the mask of the data, the model's, and the pixels that differ, orange where the model has "
                f"the background ('{self.classes[0]}') instead, blue where it has a class instead of the "
                "background, pink between two classes."
            )
        if self.couplings is not None:
            low, high = self.couplings.range
            text += (
                f" Maps of the layer {self.couplings.layer}: the mean coupling of the children at each "
                f"position to {', '.join(self._types)} after the last iteration, from {low:.3f} (dark) to "
                f"{high:.3f} (bright)."
            )
        return f"{text} {'; '.join(f'{each.name}: {self._result(each)}' for each in self.images)}."

    @property
    def _types(self) -> list[str]:
        return [] if self.couplings is None else [f"type {j}" for j in self.couplings.types]

    def _result(self, image: ImageMask) -> str:
        if image.dice is not None:
            return f"Dice {image.dice:.4f}"
        areas = sorted(class_areas(image.mask, self.classes), key=lambda area: -area.pixels)
        return ", ".join(f"{area.name} {area.share:.1%}" for area in areas if area.pixels)

    def _figure(self) -> Figure:
        """A row for each image."""
        rows = [self._row(n) for n in range(len(self.images))]
        known = self.overall is not None
        columns = ["input", *(["true mask"] if known else []), "mask"]
        columns += ["difference"] if known else []
        names = [fit(each.name) for each in self.images]
        figure = blank(*sheet_size(rows, names), self.title, self.model)
        draw_sheet(figure.subplots(), rows, [*columns, *self._types], names)
        return figure

    def _row(self, n: int) -> list[Tile]:
        image = self.images[n]
        tiles = [Tile(image.pixels)]
        if image.truth is not None:
            tiles.append(Tile(overlaid(image.pixels, image.truth)))
        tiles.append(Tile(overlaid(image.pixels, image.mask)))
        if image.truth is not None:
            drawn = difference(image.pixels, image.truth, image.mask)
            tiles.append(Tile(drawn, f"Dice {image.dice:.3f}"))
        if self.couplings is not None:
            low, high = self.couplings.range
            tiles += [
                Tile(
                    _heat((share - low) / max(high - low, 1e-9)),
                    f"{share.min():.3f}–{share.max():.3f}",
                )
                for share in self.couplings.shares[n]
            ]
        return tiles

    def numbers(self) -> dict[str, Any]:
        """Masks as in `capsedge infer --json`, Dice, and mean couplings."""
        routed = self.couplings
        document: dict[str, Any] = {
            "images": [
                {
                    "image": each.name,
                    "mask": mask_values(each.mask, self.classes),
                    **({} if each.dice is None else {"dice": round(each.dice, 6)}),
                    **({} if routed is None else {"couplings": rounded_lists(routed.shares[n])}),
                }
                for n, each in enumerate(self.images)
            ]
        }
        if self.overall is not None:
            document |= {"data": self.described, "mean_dice": round(self.overall, 6)}
        if routed is not None:
            document |= {"layer": routed.layer, "types": list(routed.types)}
        return document


def difference(pixels: Pixels, truth: Mask, mask: Mask) -> Pixels:
    """A pale image ``[H, W, 3]`` with the colours of pixels whose class is not that of the data."""
    grey = pixels.astype(np.uint16).mean(axis=2, keepdims=True)
    drawn = np.repeat((160 + grey * 0.35).astype(np.uint8), 3, axis=2)
    wrong = (truth != mask) & (truth != UNKNOWN) & (mask != UNKNOWN)
    drawn[wrong] = CONFUSED
    drawn[wrong & (mask == 0)] = MISSED
    drawn[wrong & (truth == 0)] = EXTRA
    drawn[truth == UNKNOWN] = 0
    return drawn


def _heat(shares: NDArray[np.float64]) -> Pixels:
    """Shares from 0 to 1 as colours."""
    import matplotlib

    colours: Pixels = matplotlib.colormaps["viridis"](shares, bytes=True)[..., :3]
    return colours


def _routed(
    session: Session, inputs: NDArray[np.float32], layer: str = ""
) -> tuple[CouplingMaps | None, tuple[str, ...]]:
    """The couplings of prepared images ``[N, C, H, W]``, and notes; None if the file has no trace."""
    if not session.can.traces:
        return None, ()
    chosen = layer_named(read_trace(session, inputs), layer)
    count = chosen.couplings.shape[-1]
    most = f"Only the {MOST_TYPES} of {count} types with the largest couplings are shown."
    return coupling_maps(chosen), (most,) if count > MOST_TYPES else ()


def coupling_maps(layer: TracedLayer) -> CouplingMaps:
    """The couplings of a routed layer, of the parents that get the largest shares."""
    couplings: Floats = layer.couplings[:, -1].astype(np.float64)
    if layer.grid == (1, 1):
        couplings = couplings[:, None, None]
    means = couplings.mean(axis=3)  # over the children: [N, H', W', J]
    types = best_classes(means.mean(axis=(0, 1, 2)), MOST_TYPES)
    return CouplingMaps(layer.name, tuple(types), np.moveaxis(means[..., types], 3, 1))


def compute_masks(
    session: Session, images: Images, *, layer: str = "", invert: bool = False
) -> Masks:
    """The data of the picture; arguments and errors as for `capsedge.viz.masks`."""
    session.can.check_masks()
    if layer:
        session.can.check_trace()
    examples = read_examples(session, images, invert)
    masks = [each.mask for each in examples.predictions]
    routed, notes = _routed(session, examples.inputs, layer)
    rows = zip(examples.names, examples.pixels, masks, strict=True)
    return Masks(
        model=session.path.name,
        notes=examples.notes + notes,
        images=tuple(ImageMask(name, pixels, m) for name, pixels, m in rows if m is not None),
        classes=session.roles.mask_classes,
        couplings=routed,
    )


def compute_hardest_masks(
    session: Session, data: ImageSet | Path | str, *, count: int, limit: int | None = None
) -> Masks:
    """The images of a data set whose masks overlap least; arguments as for `capsedge.viz.hardest`."""
    session.can.check_masks()
    names, metadata = session.roles.mask_classes, session.metadata
    image_set = data
    if not isinstance(image_set, ImageSet):
        rule = None if metadata is None else metadata.training_split
        prep = preprocessing_of(session)
        image_set = read_mask_split(Path(image_set), "test", prep, names, limit, rule)
    if image_set.masks is None:
        raise UsageError(
            f"{image_set.source} has no masks.",
            "The picture compares the masks of the model with those of the data.",
            "Pass a folder with images/ and masks/ (docs/reference/data.md).",
        )
    whole, masks, dice = _overlaps(session, image_set, image_set.masks)
    order = np.argsort(dice, kind="stable")[:count]
    inputs = np.stack(list(image_set.take(order).inputs()))
    routed, notes = _routed(session, inputs)
    named = image_set.names or tuple(f"image {k + 1}" for k in range(len(image_set)))
    return Masks(
        model=session.path.name,
        notes=notes,
        images=tuple(
            ImageMask(named[k], pixels, masks[k], image_set.masks[k], dice[k])
            for k, pixels in zip(order.tolist(), shown(session, inputs), strict=True)
        ),
        classes=names,
        couplings=routed,
        overall=whole.mean_dice,
        described=image_set.described,
    )


def _overlaps(
    session: Session, data: ImageSet, truths: Sequence[Mask] | NDArray[np.uint8]
) -> tuple[MaskOverlap, list[Mask], list[float]]:
    """The overlap of all masks, the predicted ones, and the mean Dice of each."""
    names, one = session.roles.mask_classes, session.roles.one_map
    whole, masks, dice = MaskOverlap(names, one), list[Mask](), list[float]()
    predictions = session.stream(data.inputs(), prepared=True, batch_size=64)
    for prediction, truth in zip(predictions, truths, strict=True):
        assert prediction.mask is not None  # the model segments images
        each = MaskOverlap(names, one)
        each.update([truth], [prediction.mask])
        whole.update([truth], [prediction.mask])
        masks.append(prediction.mask)
        dice.append(each.mean_dice)
    return whole, masks, dice
