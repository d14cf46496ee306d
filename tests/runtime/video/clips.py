"""Small videos of our own: frames whose content says which they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 48, 32


def numbered(index: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> NDArray[np.uint8]:
    """A frame ``[H, W, 3]`` in grey, whose left part is bright: ``4 * index`` columns, cyclically."""
    pixels = np.full((*size, 3), 32, np.uint8)
    pixels[:, : 1 + 4 * index % size[1]] = 220
    return pixels


def write_clip(
    path: Path,
    frames: int | Sequence[NDArray[np.uint8]] = 8,
    codec: str = "libx264",
    *,
    rate: int = 10,
    times: Callable[[int], float] | None = None,
    container: str | None = None,
    options: dict[str, str] | None = None,
    pixel_format: str = "yuv420p",
) -> Path:
    """Write a video of `numbered` frames, or of given ones.

    Args:
        times: seconds of each frame, by its index; by default those of the rate.
        options: of the container.
    """
    pictures = [numbered(k) for k in range(frames)] if isinstance(frames, int) else frames
    with av.open(path, "w", format=container, options=options or {}) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = pixel_format
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.gop_size = 4
        for k, pixels in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.time_base = Fraction(1, rate if times is None else 1000)
            frame.pts = k if times is None else round(1000 * times(k))
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def number_of(pixels: NDArray[np.uint8]) -> int:
    """The index of a `numbered` frame, as far as its width tells."""
    bright = int((pixels[len(pixels) // 2, :, 1] > 128).sum())
    return round((bright - 1) / 4)
