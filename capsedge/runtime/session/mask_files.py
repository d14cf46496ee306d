"""Masks and pictures of them as PNG files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.session.masks import Mask, palette

CLASSES_KEY = "classes"  # text chunk of a mask: the names of the classes, as a JSON list


def mask_png(mask: Mask, classes: Sequence[str]) -> bytes:
    """An indexed PNG of a mask: its values are the numbers of the classes, 255 unknown; the names of the
    classes are in the text chunk `CLASSES_KEY`."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    image = Image.frombytes("P", (mask.shape[1], mask.shape[0]), mask.tobytes())
    image.putpalette(palette().tobytes())
    info = PngInfo()
    info.add_itxt(CLASSES_KEY, json.dumps(list(classes), ensure_ascii=False))
    buffer = io.BytesIO()
    # Pillow leaves out colours past the largest value; all are kept, so that every file has the same palette.
    image.save(buffer, "PNG", pnginfo=info, bits=8)
    return buffer.getvalue()


def picture_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of an RGB picture ``[H, W, 3]``."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def mask_names(files: Iterable[Path], folder: Path) -> list[Path]:
    """The file of each image's mask: its own name with the suffix .png, in a folder.

    Raises:
        UsageError: two images would have the same file.
    """
    taken: dict[str, Path] = {}
    names = []
    for file in files:
        name = ("stdin" if str(file) == "-" else file.stem) + ".png"
        if name in taken:
            raise UsageError(
                f"{taken[name]} and {file} would have the same mask, {folder / name}.",
                "A mask has the name of its image.",
                "Rename one of them, or pass the folders one by one.",
            )
        taken[name] = file
        names.append(folder / name)
    return names
