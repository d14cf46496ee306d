"""The images that callers give: every kind gives the same input, or is refused with a way out."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import capsedge
from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.spec import limits
from tests.runtime.models import SIDE
from tests.runtime.pictures import COLOUR, LEFT, PLAIN, encoded, inputs, quick


class Arrays:
    """Libraries that are not installed, by the protocol that they offer."""

    class Numpy:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self.array

    class Interface:
        def __init__(self, array: np.ndarray) -> None:
            self.array, self.__array_interface__ = array, array.__array_interface__

    class DLPack:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **how: Any) -> object:
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    class Cupy:
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def get(self) -> np.ndarray:
            return self.array

    class Elsewhere:
        def __dlpack__(self, **how: Any) -> object:
            raise BufferError("the memory is on a GPU")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0


# Kinds of images


def kinds(folder: Path) -> Iterator[tuple[str, Any, int]]:
    """One picture in every kind that is taken, with the number of images."""
    (folder / "images").mkdir(parents=True)
    path = folder / "images" / "left.png"
    path.write_bytes(encoded(LEFT))
    (folder / "images" / "notes.txt").write_text("no image")
    data = path.read_bytes()
    yield from (
        ("text", str(path), 1),
        ("path", path, 1),
        ("bytes", data, 1),
        ("bytearray", bytearray(data), 1),
        ("view of bytes", memoryview(data), 1),
        ("stream", io.BytesIO(data), 1),
        ("file", path.open("rb"), 1),
        ("unbuffered file", path.open("rb", buffering=0), 1),
        ("folder", folder / "images", 1),
        ("Pillow", Image.fromarray(LEFT), 1),
        ("array", LEFT, 1),
        ("view of an array", memoryview(LEFT), 1),
        ("__array__", Arrays.Numpy(LEFT), 1),
        ("__array_interface__", Arrays.Interface(LEFT), 1),
        ("__dlpack__", Arrays.DLPack(LEFT.copy()), 1),
        ("CuPy", Arrays.Cupy(LEFT), 1),
        ("list", [path, data, io.BytesIO(data), LEFT, Image.fromarray(LEFT)], 5),
        ("tuple", (LEFT, LEFT), 2),
        ("generator", (image for image in [LEFT] * 3), 3),
        ("batches", (np.stack([LEFT] * 2) for _ in range(3)), 6),
        ("array of paths", np.array([str(path)] * 2), 2),
        ("folders and files", [folder / "images", path], 2),
        ("[N, H, W]", np.stack([LEFT] * 5), 5),
        ("[N, 1, H, W]", np.stack([LEFT] * 5)[:, None], 5),
        ("[N, H, W, 1]", np.stack([LEFT] * 5)[..., None], 5),
        ("floats [N, 1, H, W]", np.stack([LEFT / 255] * 5)[:, None], 5),
        ("floats [N, H, W, 3]", np.stack([LEFT / 255] * 3, -1)[None].astype(np.float16), 1),
        ("none of them", [], 0),
        ("no rows", np.zeros((0, SIDE, SIDE), np.uint8), 0),
    )


def test_every_kind_is_read(session: capsedge.Session, tmp_path: Path) -> None:
    wanted = session.prepare(LEFT)
    for name, images, count in kinds(tmp_path / "once"):
        found = inputs(images)
        assert len(found) == count, name
        assert all(np.array_equal(image, wanted) for image in found), name
    for name, images, count in kinds(tmp_path / "twice"):
        assert [p.label for p in session(images)] == ["left"] * count, name


def test_tensors_of_torch(session: capsedge.Session) -> None:
    torch = pytest.importorskip("torch")
    pixels = torch.from_numpy(LEFT)
    floats = (pixels / 255)[None, None].requires_grad_()
    for tensor in (pixels, pixels[None], floats, floats.bfloat16(), floats.half(), [floats[0]] * 2):
        assert {p.label for p in session.predict(tensor)} == {"left"}
    np.testing.assert_array_equal(
        session.run(floats)["poses"], session.run(session.prepare(LEFT)[None])["poses"]
    )
    batches = list(session.run_batches([floats[0]] * 3, batch_size=2))
    assert [len(batch) for batch, _ in batches] == [2, 1]
    for tensor in (floats.to("meta"), pixels.to_sparse()):
        with pytest.raises(UsageError, match="Tensor and cannot be read as an array"):
            session.predict(tensor)


def test_a_data_loader(session: capsedge.Session) -> None:
    data = pytest.importorskip("torch.utils.data")
    import torch

    images = torch.from_numpy(np.stack([LEFT] * 5))[:, None] / 255
    loader = data.DataLoader(data.TensorDataset(images, torch.arange(5)), batch_size=2)
    assert [p.label for p in session.predict(x for x, _ in loader)] == ["left"] * 5
    with pytest.raises(UsageError, match=r"for image, label in loader"):
        session.predict(loader)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (None, "image 0 is None"),
        (3, "has the type int"),
        (np.ndarray, "has the type type"),
        ({"image": LEFT}, r"item\['image'\]"),
        ({"a.png"}, "a list, so that the order is defined"),
        ([LEFT, None], "image 1 is None"),
        ([[LEFT]], "image 0 has the type list"),
        (LEFT.tolist(), "image 0 has the type list"),
        (b"", "image 0 is empty"),
        ("", "path of an image is empty"),
        (LEFT.tobytes(), "or pixels as an array"),
        ([LEFT, np.arange(5)], "image, label in loader"),
        (b"hello", "image 0 is not a readable image"),
        (io.BytesIO(), r"(?s)image 0 is empty.*file.seek\(0\)"),
        (io.StringIO("text"), r"(?s)opened as a text file.*'rb'"),
        ("images/*.png", r"(?s)There is no file.*glob\('\*.png'\)"),
        ("https://example.org/7.png", "(?s)not a file.*urllib.request.urlopen"),
        (np.frombuffer(b"\x89PNG" * 9, np.uint8), r"array.tobytes\(\)"),
        (np.zeros((1, 1, 1, SIDE, SIDE), np.uint8), "Reshape the array"),
        (LEFT.astype(np.int64), r"astype\(np.uint8\)"),
        (LEFT.astype(complex), "has the type complex128"),
        (np.ma.masked_array(LEFT, LEFT > 9), "has masked values"),
        (Arrays.Elsewhere(), "the memory is on a GPU"),
    ],
)
def test_what_is_no_image_is_refused_in_words(images: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        inputs(images)


def test_an_image_of_pillow_that_fails(tmp_path: Path) -> None:
    """Pillow reads a file when its pixels are needed."""
    data = encoded(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    (tmp_path / "a.png").write_bytes(data)
    (tmp_path / "cut.png").write_bytes(data[:1000])
    closed = Image.open(tmp_path / "a.png")
    closed.close()
    for image in (closed, Image.open(tmp_path / "cut.png")):
        with pytest.raises(UsageError, match="image 0 is damaged"):
            inputs(image)


def test_a_file_that_fails(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(LEFT))
    closed = (tmp_path / "a.png").open("rb")
    closed.close()
    with pytest.raises(UsageError, match="cannot be read"):
        inputs(closed)
    with (
        (tmp_path / "a.png").open(encoding="latin-1") as text,
        pytest.raises(UsageError, match="as a text file"),
    ):
        inputs(text)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"folder .* has no images"):
        inputs(tmp_path / "empty")


# Layouts


@quick
@given(
    pixels=hnp.arrays(
        np.uint8,
        st.tuples(st.integers(1, 5), *[st.integers(5, 12)] * 2, st.sampled_from([1, 3, 4])),
    ),
    preprocessing=st.sampled_from([PLAIN, COLOUR]),
    how=st.sampled_from([np.uint8, np.uint16, np.float32, np.float64]),
    first=st.booleans(),
    stated=st.booleans(),
)
def test_channels_first_or_last(
    pixels: np.ndarray, preprocessing: Preprocessing, how: Any, first: bool, stated: bool
) -> None:
    """Sides of five and more leave one reading of four dimensions; types change nothing."""
    if how is np.uint16:
        typed = pixels.astype(np.uint16) * np.uint16(257)
    else:
        typed = pixels if how is np.uint8 else (pixels / 255).astype(how)
    batch = typed.transpose(0, 3, 1, 2) if first else typed
    layout = ("NCHW" if first else "NHWC") if stated else None
    own = batch.shape[1:] == preprocessing.shape and how in (np.float32, np.float64)
    prepared = False if own and preprocessing is COLOUR else None
    found = inputs(batch, preprocessing, layout=layout, prepared=prepared)
    wanted = [prepare(image, preprocessing) for image in pixels]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    one = inputs(
        batch[0], preprocessing, layout=layout or ("CHW" if first else "HWC"), prepared=False
    )
    np.testing.assert_allclose(one, wanted[:1], atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((3, SIDE, SIDE), ("CHW", "NHW")),  # three grey images, or one of RGB
        ((4, 20, 20), ("CHW", "NHW")),
        ((3, 9, 3), ("HWC", "CHW")),
        ((1, 9, 1), ("HWC", "CHW")),
        ((5, 3, 9, 3), ("NHWC", "NCHW")),
        ((5, 1, 9, 1), ("NHWC", "NCHW")),
    ],
)
def test_two_readings_are_asked_about(shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with pytest.raises(ShapeError) as caught:
        inputs(pixels)
    assert str(list(shape)) in caught.value.what
    assert all(f"layout='{name}'" in caught.value.fix for name in names)
    sizes = [len(inputs(pixels, layout=name)) for name in names]
    assert sizes == [shape[0] if name.startswith("N") else 1 for name in names]


@pytest.mark.parametrize(
    "shape", [(5, 30, 40), (SIDE, SIDE, 5), (0,), (), (2, 5, 9, 9), (2, 9, 9, 6)]
)
def test_no_reading_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="Images are"):
        inputs(np.zeros(shape, np.uint8))


def test_three_dimensions_of_a_colour_model() -> None:
    """One image ``[C, H, W]``; several grey ones only where the layout is stated."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE), dtype=np.uint8)
    np.testing.assert_array_equal(
        inputs(pixels, COLOUR), [prepare(pixels.transpose(1, 2, 0), COLOUR)]
    )
    assert len(inputs(pixels, COLOUR, layout="NHW")) == 3
    with pytest.raises(ShapeError, match="layout='NHW'"):
        inputs(np.zeros((5, SIDE, SIDE), np.uint8), COLOUR)


def test_layouts_have_names() -> None:
    with pytest.raises(UsageError, match=r"layout is 'WHC'.(.|\n)*NCHW"):
        inputs(LEFT, layout="WHC")
    with pytest.raises(ShapeError, match="layout 'NCHW' has 3 dimensions"):
        inputs(LEFT, layout="NCHW")


# Limits, which hold for every kind


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that declares a large image."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@pytest.mark.parametrize("size", [(100_000, 1), (30_000, 30_000)])
def test_image_bombs(size: tuple[int, int], tmp_path: Path) -> None:
    data = bomb(*size)
    (tmp_path / "a.png").write_bytes(data)
    forms = (data, bytearray(data), io.BytesIO(data), tmp_path / "a.png", tmp_path, [data])
    for images in (*forms, iter([data])):
        with pytest.raises(UsageError, match="is too large"):
            inputs(images)
    pixels = np.broadcast_to(np.uint8(0), size)  # no memory of its own
    with pytest.raises(UsageError, match="is too large"):
        inputs(pixels)


def test_the_size_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = encoded(LEFT)
    monkeypatch.setattr(limits, "IMAGE_FILE_BYTES", len(data))
    assert len(inputs([data, io.BytesIO(data)])) == 2
    monkeypatch.setattr(limits, "IMAGE_FILE_BYTES", len(data) - 1)
    (tmp_path / "a.png").write_bytes(data)
    for images in (data, memoryview(data), io.BytesIO(data), tmp_path / "a.png", tmp_path):
        with pytest.raises(UsageError, match="is too large"):
            inputs(images)


def test_an_endless_file_is_read_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            assert size > 0
            part = bytes(min(size, 1000))
            self.given += len(part)
            return part

    monkeypatch.setattr(limits, "IMAGE_FILE_BYTES", 10_000)
    file = Endless()
    with pytest.raises(UsageError, match="is too large"):
        inputs(file)
    assert file.given == 10_001


def test_the_files_of_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"{k}.png").write_bytes(encoded(LEFT))
    monkeypatch.setattr(limits, "FOLDER_FILES", 2)
    with pytest.raises(UsageError, match="has over 2 files"):
        inputs(tmp_path)
