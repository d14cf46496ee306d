"""Frames of cameras as RGB: by the equations of the standards, as PyAV converts them, and what is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import libcapsedge
from .libcapsedge import USAGE, Failed, Frame

pytestmark = pytest.mark.skipif(
    libcapsedge.library_path() is None,
    reason="libcapsedge is not built: pip install -e . with a C++ compiler",
)
NV12, YUYV, BGR = range(3)
BT601, BT709 = range(2)
LIMITED, FULL = range(2)
NAMES = {NV12: "nv12", YUYV: "yuyv422", BGR: "bgr24"}
Planes = list[NDArray[np.uint8]]


def frame_of(planes: Planes, height: int, width: int, **fields: Any) -> Frame:
    frame: Frame = libcapsedge.sized(Frame, height=height, width=width, **fields)
    for k, plane in enumerate(planes):
        frame.planes[k], frame.strides[k] = plane.ctypes.data, plane.strides[0]
    return frame


def to_rgb(frame: Frame, room: int | None = None) -> NDArray[np.uint8]:
    height, width = max(0, min(frame.height, 512)), max(0, min(frame.width, 512))
    rgb = np.full((height, width, 3), 77, np.uint8)
    libcapsedge.call(
        "capsedge_frame_to_rgb",
        ctypes.byref(frame),
        ctypes.c_void_p(rgb.ctypes.data),
        ctypes.c_size_t(rgb.nbytes if room is None else room),
    )
    return rgb


def made(layout: int, height: int, width: int) -> tuple[Planes, tuple[NDArray[np.uint8], ...]]:
    """Random planes, and Y, U and V of every pixel, or red, green and blue."""
    random = np.random.default_rng(height * width)

    def values(*shape: int) -> NDArray[np.uint8]:
        return random.integers(0, 256, shape, np.uint8)

    down, pairs = (height + 1) // 2, (width + 1) // 2
    if layout == BGR:
        pixels = values(height, width, 3)
        return [pixels.reshape(height, -1)], tuple(pixels[..., c] for c in (2, 1, 0))
    if layout == NV12:
        y, uv = values(height, width), values(down, pairs, 2)
        whole = uv.repeat(2, 0).repeat(2, 1)[:height, :width]
        return [y, uv.reshape(down, -1)], (y, whole[..., 0], whole[..., 1])
    packed = values(height, pairs, 4)
    y = packed[..., ::2].reshape(height, -1)[:, :width]
    u, v = (packed[..., k].repeat(2, 1)[:, :width] for k in (1, 3))
    return [packed.reshape(height, -1)], (y, u, v)


def equations(y: Any, u: Any, v: Any, matrix: int, full: int) -> NDArray[np.float64]:
    """BT.601-7 and BT.709-6, in floating point."""
    red, blue = (0.2126, 0.0722) if matrix == BT709 else (0.299, 0.114)
    luma = y / 255 if full else (y - 16.0) / 219
    u, v = ((c - 128.0) / (255 if full else 224) for c in (u, v))
    green = luma - (2 * blue * (1 - blue) * u + 2 * red * (1 - red) * v) / (1 - red - blue)
    rgb = np.stack([luma + 2 * (1 - red) * v, green, luma + 2 * (1 - blue) * u], -1)
    return np.clip(255 * rgb, 0, 255)


@pytest.mark.parametrize("size", [(2, 2), (7, 5), (48, 64), (1, 1)])
@pytest.mark.parametrize("full", [LIMITED, FULL])
@pytest.mark.parametrize("matrix", [BT601, BT709])
@pytest.mark.parametrize("layout", [NV12, YUYV])
def test_equations(layout: int, matrix: int, full: int, size: tuple[int, int]) -> None:
    planes, channels = made(layout, *size)
    frame = frame_of(planes, *size, format=layout, matrix=matrix, range=full)
    wanted = equations(*channels, matrix, full)
    assert np.abs(to_rgb(frame) - wanted).max() < 0.51


@pytest.mark.parametrize("size", [(7, 5), (48, 64)])
def test_bgr(size: tuple[int, int]) -> None:
    planes, channels = made(BGR, *size)
    found = to_rgb(frame_of(planes, *size, format=BGR))
    assert np.array_equal(found, np.stack(channels, -1))


@pytest.mark.parametrize("full", [LIMITED, FULL])
@pytest.mark.parametrize("matrix", [BT601, BT709])
@pytest.mark.parametrize("layout", [NV12, YUYV, BGR])
def test_pyav(layout: int, matrix: int, full: int) -> None:
    """FFmpeg's exact conversion; its fast one, the default, is up to 3 levels off."""
    av = pytest.importorskip("av", reason="needs PyAV: pip install 'capsedge[video]'")
    from av.video.reformatter import ColorRange, Colorspace, Interpolation

    height, width = 32, 64
    planes, _ = made(layout, height, width)
    if layout != BGR:
        planes[-1][:] = planes[-1] // 4 + 96  # colours that RGB has
        planes[0][:, :: 2 if layout == YUYV else 1] //= 2
        planes[0][:, :: 2 if layout == YUYV else 1] += 60
    frame = av.VideoFrame(width, height, NAMES[layout])
    for plane, given in zip(frame.planes, planes, strict=True):
        padded = np.zeros((plane.height, plane.line_size), np.uint8)
        padded[:, : given.shape[1]] = given
        plane.update(padded)
    theirs = frame.reformat(
        format="rgb24",
        src_colorspace=Colorspace.ITU709 if matrix == BT709 else Colorspace.ITU601,
        src_color_range=ColorRange.JPEG if full else ColorRange.MPEG,
        dst_color_range=ColorRange.JPEG,
        interpolation=Interpolation.POINT
        | Interpolation.ACCURATE_RND
        | Interpolation.FULL_CHR_H_INT,
    ).to_ndarray()
    ours = to_rgb(frame_of(planes, height, width, format=layout, matrix=matrix, range=full))
    assert np.abs(ours.astype(int) - theirs).max() <= (0 if layout == BGR else 1)


@pytest.mark.parametrize("layout", [NV12, YUYV, BGR])
def test_rows_with_gaps_and_upside_down(layout: int) -> None:
    planes, _ = made(layout, 6, 10)
    wanted = to_rgb(frame_of(planes, 6, 10, format=layout))
    for flip in (False, True):
        padded = [np.full((len(p), p.shape[1] + 13), 9, np.uint8) for p in planes]
        given = []
        for target, plane in zip(padded, planes, strict=True):
            target[:, : plane.shape[1]] = plane[::-1] if flip else plane
            given.append(target[::-1] if flip else target)
        assert np.array_equal(to_rgb(frame_of(given, 6, 10, format=layout)), wanted)
    dense = frame_of(planes, 6, 10, format=layout)
    dense.strides[0] = dense.strides[1] = 0
    assert np.array_equal(to_rgb(dense), wanted)


def set_null(frame: Frame) -> None:
    frame.planes[1] = None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: setattr(f, "format", 3), "frame.format is 3"),
        (lambda f: setattr(f, "matrix", -1), "frame.matrix is -1"),
        (lambda f: setattr(f, "range", 2), "frame.range is 2"),
        (lambda f: setattr(f, "width", 0), "has 0x4 pixels"),
        (lambda f: setattr(f, "height", 1 << 30), "pixels"),
        (lambda f: setattr(f, "size", 0), "size is 0"),
        (lambda f: f.strides.__setitem__(0, 3), r"strides\[0\] is 3"),
        (lambda f: f.strides.__setitem__(1, -3), r"strides\[1\] is -3"),
        (set_null, r"planes\[1\] is null"),
    ],
)
def test_refusals(change: Any, says: str) -> None:
    planes, _ = made(NV12, 4, 4)
    frame = frame_of(planes, 4, 4, format=NV12)
    change(frame)
    with pytest.raises(Failed, match=says) as failed:
        to_rgb(frame)
    assert failed.value.code == USAGE


def test_too_little_room() -> None:
    planes, _ = made(BGR, 4, 4)
    with pytest.raises(Failed, match=r"room for 47 bytes\.\nExpected: 48"):
        to_rgb(frame_of(planes, 4, 4, format=BGR), room=47)
