"""A prediction drawn on a frame: this is the only place that does it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session.masks import overlaid
from capsedge.runtime.session.predictions import Prediction

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

_SHARE = 24  # a line of text is this part of the height of the frame
_LEAST = 10  # pixels of the height of a line
_LINES = 6  # drawn at most
_INK, _GROUND = (255, 255, 255), (0, 0, 0, 160)


def draw_prediction(pixels: NDArray[Any], prediction: Prediction) -> NDArray[np.uint8]:
    """A frame with what was predicted: labels with their scores, values, or the colours of a mask.

    Args:
        pixels: of a video ``[H, W, 3]`` uint8, RGB; of an image, as `read_image` returns them.

    Returns:
        A new frame of the same size, ``[H, W, 3]`` uint8.
    """
    from PIL import Image, ImageDraw

    coloured = _coloured(pixels)
    if prediction.mask is not None:
        coloured = overlaid(coloured, prediction.mask)
    picture = Image.fromarray(coloured)
    lines = texts(prediction)
    if lines:
        size = max(_LEAST, picture.height // _SHARE)
        margin, font, text = size // 3, _font(size), "\n".join(lines)
        _, _, right, below = ImageDraw.Draw(picture).multiline_textbbox(
            (margin, margin), text, font=font
        )
        corner = (0, 0, int(right) + margin, int(below) + margin)
        layer = Image.new("RGBA", corner[2:], _GROUND)
        ImageDraw.Draw(layer).multiline_text((margin, margin), text, fill=_INK, font=font)
        under = picture.crop(corner).convert("RGBA")
        picture.paste(Image.alpha_composite(under, layer).convert("RGB"))
    return np.array(picture)


@lru_cache(maxsize=8)
def _font(size: int) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def texts(prediction: Prediction) -> list[str]:
    """What is written on the frame, line by line."""
    lines = [str(value) for value in prediction.values]
    lines += [f"{label.name} {label.score:.2f}" for label in prediction.labels]
    lines += [f"{area.name} {area.share:.0%}" for area in prediction.areas if area.pixels]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"and {len(lines) - _LINES + 1} more"]
    return [*lines, "nothing to see"] if prediction.atypical else lines


def _coloured(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels ``[H, W, C]`` as RGB; what is transparent is black, as for the model."""
    values = pixels // 257 if pixels.dtype == np.uint16 else pixels
    if values.shape[-1] in (2, 4):
        values = values[..., :-1] * (values[..., -1:] / 255)
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)), np.uint8)
