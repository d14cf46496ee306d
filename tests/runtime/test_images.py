"""Images of every kind become the input that the metadata describes; bad ones are refused in words."""

from __future__ import annotations

import contextlib
import io
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageOps

from capsedge.errors import UsageError
from capsedge.runtime.images.decoding import read_image
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.spec import limits

GREY = Preprocessing(4, 4, 1, scale=1.0)
COLOUR = Preprocessing(4, 4, 3, scale=1.0)


def saved(tmp_path: Path, picture: Image.Image, name: str = "a.png", **options: object) -> Path:
    picture.save(tmp_path / name, **options)
    return tmp_path / name


def ramp(mode: str = "L") -> Image.Image:
    return Image.fromarray(np.arange(0, 256, 16, dtype=np.uint8).reshape(4, 4)).convert(mode)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, depth: int = 8, colour: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


# What is read


def test_grey_png_is_exact(tmp_path: Path):
    found = prepare(saved(tmp_path, ramp()), GREY)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found[0], np.arange(0, 256, 16).reshape(4, 4))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P"])
def test_grey_in_any_mode_is_the_same(tmp_path: Path, mode: str):
    """A grey pixel keeps its value exactly through the luma."""
    path = saved(tmp_path, ramp(mode))
    np.testing.assert_array_equal(prepare(path, GREY)[0], np.arange(0, 256, 16).reshape(4, 4))


@given(hnp.arrays(np.uint8, (4, 4)))
def test_grey_keeps_its_value_through_rgb(pixels: np.ndarray):
    rgb = np.repeat(pixels[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(prepare(rgb, GREY)[0], pixels)
    np.testing.assert_array_equal(prepare(pixels, COLOUR), np.stack([pixels] * 3))


def test_colour_to_grey_is_luma():
    pixel = np.zeros((4, 4, 3), np.uint8)
    pixel[...] = (200, 100, 50)
    wanted = (19595 * 200 + 38470 * 100 + 7471 * 50) / 65536
    np.testing.assert_array_equal(prepare(pixel, GREY)[0], np.float32(wanted))


def test_jpeg(tmp_path: Path):
    path = saved(tmp_path, Image.new("RGB", (16, 16), (10, 200, 30)), "a.jpg", quality=95)
    np.testing.assert_allclose(prepare(path, COLOUR)[:, 0, 0], (10, 200, 30), atol=3)


def test_cmyk_jpeg_is_converted(tmp_path: Path):
    path = saved(tmp_path, Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "a.jpg")
    np.testing.assert_allclose(prepare(path, COLOUR), 255, atol=2)


def test_one_bit_png(tmp_path: Path):
    picture = Image.fromarray(np.eye(4, dtype=bool))
    np.testing.assert_array_equal(prepare(saved(tmp_path, picture), GREY)[0], 255 * np.eye(4))


def test_sixteen_bit_grey_keeps_its_precision(tmp_path: Path):
    values = (np.arange(16, dtype=np.uint16) * 1000 + 7).reshape(4, 4)
    path = saved(tmp_path, Image.fromarray(values))
    wanted = values.astype(np.float32) / np.float32(257)
    np.testing.assert_array_equal(prepare(path, GREY)[0], wanted)
    np.testing.assert_array_equal(prepare(values, GREY)[0], wanted)
    assert prepare(np.full((4, 4), 65535, np.uint16), GREY).max() == 255


def test_sixteen_bit_colour_is_its_high_byte(tmp_path: Path):
    row = b"\0" + struct.pack(">3H", 0x12FF, 0x3400, 0xFFFF) * 4
    path = tmp_path / "a.png"
    path.write_bytes(png(4, 4, row * 4, depth=16, colour=2))
    np.testing.assert_array_equal(prepare(path, COLOUR)[:, 0, 0], (0x12, 0x34, 0xFF))


def test_sixteen_bit_grey_with_a_transparent_value(tmp_path: Path):
    header = struct.pack(">IIBBBBB", 4, 4, 16, 0, 0, 0, 0)
    row = b"\0" + struct.pack(">4H", 257, 514, 65535, 65535)
    path = tmp_path / "a.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"tRNS", struct.pack(">H", 514))
        + chunk(b"IDAT", zlib.compress(row * 4))
        + chunk(b"IEND", b"")
    )
    np.testing.assert_array_equal(prepare(path, GREY)[0, 0], (1, 0, 255, 255))


def test_transparent_is_black_to_the_model():
    white = np.full((4, 4, 4), 255, np.uint8)
    white[0, 0, 3] = 0
    white[0, 1, 3] = 51
    found = prepare(white, GREY)[0]
    assert found[0, 0] == 0
    assert found[0, 1] == pytest.approx(51, rel=1e-6)
    assert found[1, 1] == 255


def test_transparent_is_black_to_the_model_also_inverted():
    """Black ink on a transparent ground, inverted: white ink on black."""
    picture = np.zeros((4, 4, 2), np.uint8)
    picture[1, :, 1] = 255
    found = prepare(picture, GREY, invert=True)[0]
    np.testing.assert_array_equal(found[1], 255)
    assert (found[[0, 2, 3]] == 0).all()


def test_palette_with_transparency(tmp_path: Path):
    picture = Image.new("P", (4, 4), 1)
    picture.putpalette([255, 255, 255, 0, 0, 255])
    picture.putpixel((0, 0), 0)
    path = saved(tmp_path, picture, transparency=0)
    found = prepare(path, COLOUR)
    np.testing.assert_array_equal(found[:, 0, 0], 0)
    np.testing.assert_array_equal(found[:, 1, 1], (0, 0, 255))


def test_invert():
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    np.testing.assert_array_equal(prepare(pixels, GREY, invert=True)[0], 255 - pixels.astype(int))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_exif_orientation(tmp_path: Path, orientation: int, suffix: str):
    picture = Image.fromarray(np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, picture, f"a.{suffix}", exif=exif, quality=95)
    with Image.open(path) as opened:
        wanted = np.asarray(ImageOps.exif_transpose(opened))
    np.testing.assert_array_equal(read_image(path)[..., 0], wanted)


def test_damaged_exif_is_no_orientation(tmp_path: Path):
    path = saved(tmp_path, ramp(), "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\xff")
    assert read_image(path).shape == (4, 4, 1)


def test_float_and_bool_arrays():
    np.testing.assert_array_equal(prepare(np.eye(4), GREY)[0], 255 * np.eye(4))
    np.testing.assert_array_equal(prepare(np.eye(4, dtype=bool), GREY)[0], 255 * np.eye(4))


def test_pillow_image_needs_no_file():
    np.testing.assert_array_equal(prepare(ramp(), GREY)[0], np.arange(0, 256, 16).reshape(4, 4))


def test_normalization_order():
    p = Preprocessing(4, 4, 3, scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    pixels = np.full((4, 4, 3), 77, np.uint8)
    f = np.float32
    wanted = [(f(77) * f(1 / 255) - f(m)) / f(s) for m, s in zip(p.mean, p.std, strict=True)]
    np.testing.assert_array_equal(prepare(pixels, p)[:, 2, 2], np.array(wanted, f))


def test_other_channel_counts_take_arrays(tmp_path: Path):
    p = Preprocessing(4, 4, 2, scale=1.0)
    pixels = np.arange(32, dtype=np.uint8).reshape(4, 4, 2)
    np.testing.assert_array_equal(prepare(pixels, p), pixels.transpose(2, 0, 1))
    with pytest.raises(UsageError, match="2 channels"):
        prepare(saved(tmp_path, ramp("LA")), p)


# Sizes


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from(["stretch", "pad", "crop", "center"]),
    st.sampled_from([1, 3]),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_every_size_gives_the_models_input(
    h: int, w: int, c: int, rule: str, channels: int, height: int, width: int
):
    pixels = np.full((h, w, c), 255, np.uint8)
    found = prepare(pixels, Preprocessing(height, width, channels, scale=1.0, resize=rule))
    assert found.shape == (channels, height, width)
    assert found.min() >= 0
    assert found.max() <= 255 * (1 + 1e-5)
    if rule in ("stretch", "crop"):
        np.testing.assert_allclose(found, 255, rtol=1e-5)


def test_pad_centres_on_black():
    found = prepare(np.full((10, 5), 255, np.uint8), Preprocessing(10, 10, 1, 1.0, resize="pad"))
    np.testing.assert_allclose(found[0, :, 2:7], 255)
    assert (found[0, :, :2] == 0).all()
    assert (found[0, :, 7:] == 0).all()


def test_pad_stays_black_inverted():
    pixels = np.zeros((10, 5), np.uint8)
    found = prepare(pixels, Preprocessing(10, 10, 1, 1.0, resize="pad"), invert=True)
    assert found[0, 0, 0] == 0
    assert found[0, 0, 5] == 255


def test_crop_takes_the_middle():
    pixels = np.zeros((4, 10), np.uint8)
    pixels[:, 3:7] = 100
    np.testing.assert_array_equal(
        prepare(pixels, Preprocessing(4, 4, 1, 1.0, resize="crop")), np.full((1, 4, 4), 100)
    )


def test_center_cuts_and_pads_without_scaling():
    pixels = np.arange(40, dtype=np.uint8).reshape(10, 4)
    found = prepare(pixels, Preprocessing(6, 6, 1, 1.0, resize="center"))[0]
    np.testing.assert_array_equal(found[:, 1:5], pixels[2:8])
    assert (found[:, [0, 5]] == 0).all()


@pytest.mark.parametrize("rule", ["stretch", "pad", "crop", "center"])
def test_extreme_aspect_ratios(rule: str):
    for shape in ((1, 30000), (30000, 1)):
        found = prepare(np.ones(shape, np.uint8), Preprocessing(28, 28, 1, resize=rule))
        assert found.shape == (1, 28, 28)


# Bad input


def test_no_such_file(tmp_path: Path):
    with pytest.raises(UsageError, match="There is no file"):
        read_image(tmp_path / "none.png")


def test_folder(tmp_path: Path):
    with pytest.raises(UsageError, match="It is a folder"):
        read_image(tmp_path)


def test_empty_file(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UsageError, match="0 bytes"):
        read_image(tmp_path / "a.png")


def test_other_format(tmp_path: Path):
    path = saved(tmp_path, ramp(), "a.ppm").rename(tmp_path / "a.png")
    with pytest.raises(UsageError, match="not those of a PNG, JPEG, GIF, BMP, TIFF or WebP file"):
        read_image(path)


def test_truncated_png_at_every_length(tmp_path: Path):
    rng = np.random.default_rng(0)
    whole = saved(tmp_path, Image.fromarray(rng.integers(0, 256, (9, 9), np.uint8))).read_bytes()
    path = tmp_path / "cut.png"
    for length in range(1, len(whole) - 20):  # past it only checksums and the end mark are missing
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            read_image(path)


def test_truncated_jpeg(tmp_path: Path):
    whole = saved(tmp_path, Image.effect_noise((64, 64), 50), "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="damaged"):
        read_image(tmp_path / "a.jpg")


@given(st.data())
def test_corrupt_files_never_raise_anything_else(data: st.DataObject):
    buffer = io.BytesIO()
    ramp("RGB").save(buffer, data.draw(st.sampled_from(["PNG", "JPEG"])))
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corrupt.png"
        path.write_bytes(content)
        with contextlib.suppress(UsageError):
            assert prepare(path, COLOUR).shape == (3, 4, 4)


def test_huge_dimensions_are_refused_before_decoding(tmp_path: Path):
    """A decompression bomb: a few bytes that promise 65,535 x 65,535 pixels."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png(65535, 65535, b"\0" * 1000))
    with pytest.raises(UsageError, match="too large"):
        read_image(path)


@pytest.mark.parametrize("size", [(9000, 9000), (40000, 2)])
def test_too_many_pixels(tmp_path: Path, size: tuple[int, int]):
    path = tmp_path / "large.png"
    path.write_bytes(png(*size, b"\0"))
    with pytest.raises(UsageError, match="too large"):
        read_image(path)
    with pytest.raises(UsageError, match="too large"):
        prepare(np.zeros(size, np.uint8), GREY)


def test_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IMAGE_FILE_BYTES", 50)
    with pytest.raises(UsageError, match=r"has \d+ bytes, the limit is 50"):
        read_image(saved(tmp_path, ramp()))


@pytest.mark.parametrize("shape", [(4,), (2, 4, 4, 3), (4, 4, 5), (3, 4, 7), (0, 4), (4, 0, 3)])
def test_wrong_shapes(shape: tuple[int, ...]):
    with pytest.raises(UsageError):
        prepare(np.zeros(shape, np.uint8), COLOUR)


def test_wrong_channels_names_found_and_wanted():
    with pytest.raises(UsageError, match=r"5 channels(.|\n)*1, 2, 3 or 4"):
        prepare(np.zeros((4, 4, 5), np.uint8), GREY, name="image 3")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_array(bad: float):
    pixels = np.zeros((4, 4), np.float32)
    pixels[1, 2] = bad
    with pytest.raises(UsageError, match="NaN or infinite"):
        prepare(pixels, GREY)


def test_float_array_out_of_range():
    with pytest.raises(UsageError, match="from 0 to 255"):
        prepare(np.linspace(0, 255, 16).reshape(4, 4), GREY)


@pytest.mark.parametrize("dtype", ["int64", "int8", "complex64", "U1", "O"])
def test_wrong_types(dtype: str):
    with pytest.raises(UsageError, match="type"):
        prepare(np.zeros((4, 4), dtype), GREY)


def test_not_an_image():
    with pytest.raises(UsageError, match="has the type dict"):
        prepare({}, GREY)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="mode 'F'"):
        prepare(Image.new("F", (4, 4)), GREY)
