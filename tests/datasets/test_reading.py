"""Every source gives the same images; what is none, or too much, is refused before room is made for it."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capsedge.datasets import ImageSet, array_files, cifar, from_iterable, read_images
from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.fuzz.hostile import HOSTILE

PREP = Preprocessing(height=10, width=10, channels=1)


def _pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 10, 10), dtype=np.uint8)


def _idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def test_every_source_gives_the_same_inputs(tmp_path: Path) -> None:
    pixels, labels = _pixels(4), np.array([0, 1, 2, 0])
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    _idx(tmp_path / "x-images-idx3-ubyte.gz", pixels)
    _idx(tmp_path / "x-labels-idx1-ubyte.gz", labels)
    folder = tmp_path / "folder"
    folder.mkdir()
    for k, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{k}.png")
    found = [
        read_images(tmp_path / "a.npz", PREP, "train"),
        read_images(tmp_path / "x-images-idx3-ubyte.gz", PREP, "train"),
        read_images(folder, PREP, "train"),
        from_iterable(iter(pixels), PREP),
    ]
    wanted = (pixels / np.float32(255))[:, None].astype(np.float32)
    for each in found:
        np.testing.assert_allclose(next(each.batches(10)), wanted, atol=1e-6)
    assert found[0].digest() == found[1].digest()
    for one in found:  # pixels or prepared floats, the same images
        for other in found:
            assert one.occurs_in(other).all()
    assert found[0].labels is not None
    assert found[1].labels is not None
    assert found[1].labels.tolist() == labels.tolist()
    assert found[2].labels is None


def test_the_digest_is_of_images_and_labels() -> None:
    pixels, labels = _pixels(4)[..., None], np.array([0, 1, 2, 0])
    one = ImageSet("a", pixels, labels, PREP)
    content = b"images |u1 4,10,10,1\n" + pixels.tobytes() + b"labels <i8 4\n"
    content += labels.astype("<i8").tobytes()
    assert one.digest() == hashlib.sha256(content).hexdigest()
    unlabelled = b"images |u1 4,10,10,1\n" + pixels.tobytes() + b"labels none\n"
    assert ImageSet("a", pixels).digest() == hashlib.sha256(unlabelled).hexdigest()
    # Neither the place, the preprocessing nor the layout in memory counts; order, values, shape and type do.
    other_prep = Preprocessing(height=20, width=20, channels=1)
    layout = np.asfortranarray(pixels)
    assert ImageSet("b", layout, labels, other_prep, split="test").digest() == one.digest()
    big_endian = ImageSet("a", pixels.astype(">f4"), labels)
    assert big_endian.digest() == ImageSet("a", pixels.astype("<f4"), labels).digest()
    for changed in (
        one.take(np.array([1, 0, 2, 3])),
        one.first(3),
        ImageSet("a", pixels, labels + 1),
        ImageSet("a", pixels.reshape(4, 5, 20, 1), labels),
        ImageSet("a", pixels.view(np.int8), labels),
    ):
        assert changed.digest() != one.digest()
    assert len(one.first(0).digest()) == 64


def test_images_of_another_size_are_compared_as_the_model_sees_them() -> None:
    small = ImageSet("a", np.full((2, 10, 10, 1), 7, np.uint8), None, PREP)
    large = ImageSet("b", np.full((1, 20, 20, 1), 7, np.uint8), None, PREP)
    assert large.occurs_in(small).tolist() == [True]
    assert small.without(large).digest() == small.first(0).digest()


def test_a_draw_is_seeded_and_within(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=_pixels(50), labels=np.arange(50))
    whole = read_images(tmp_path / "a.npz", PREP, "train")
    one, same, other = whole.draw(10, 1), whole.draw(10, 1), whole.draw(10, 2)
    assert one.digest() == same.digest() != other.digest()
    assert one.labels is not None
    assert len(set(one.labels.tolist())) == 10
    assert len(whole.draw(99)) == 50


def test_bad_data(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "none.npz", images=np.zeros((0, 10, 10), np.uint8))
    nan = np.zeros((3, 1, 10, 10), np.float32)
    nan[1, 0, 2, 2] = np.nan
    np.savez(tmp_path / "nan.npz", images=nan)
    np.savez(tmp_path / "shape.npz", images=np.zeros((3, 10), np.uint8))
    np.savez(tmp_path / "labels.npz", images=_pixels(3), labels=np.zeros(2, int))
    np.savez(tmp_path / "below.npz", images=_pixels(2), labels=np.array([0, -1]))
    np.savez(tmp_path / "scalar.npz", images=np.uint8(1), labels=np.zeros(2, int))
    whole = (tmp_path / "labels.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with open(tmp_path / "array.npz", "wb") as f:
        np.save(f, _pixels(3))
    for name, word in (
        ("empty", "no data"),
        ("none.npz", "no images"),
        ("nan.npz", "1 of 3 images"),
        ("shape.npz", "must be uint8"),
        ("labels.npz", "for 3 images"),
        ("below.npz", "labels below 0"),
        ("cut.npz", "BadZipFile"),
        ("scalar.npz", "must be uint8"),
        ("array.npz", "BadZipFile"),
        ("missing.npz", "There is no"),
    ):
        with pytest.raises(UsageError, match=word):
            read_images(tmp_path / name, PREP, "train")
    with pytest.raises(UsageError, match="no images"):
        from_iterable([], PREP)
    with pytest.raises(UsageError, match="1 of 2 images"):
        from_iterable([nan[0], nan[1]], None)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["npz", "idx", "cifar"])
def test_hostile_files_are_refused(kind: str, tmp_path: Path) -> None:
    """In words, with exit code 2; that they take no memory is what tests/fuzz looks at."""
    path = tmp_path / {"npz": "a.npz", "idx": "x-idx.gz", "cifar": "data_batch_1"}[kind]
    for name, data in HOSTILE[kind]().items():
        path.write_bytes(data)
        with pytest.raises(UsageError) as caught:
            cifar.read(path) if kind == "cifar" else read_images(path, PREP, "test")
        assert caught.value.why, name


def test_a_limit_reads_no_more(tmp_path: Path) -> None:
    pixels = _pixels(6)
    np.savez_compressed(tmp_path / "a.npz", images=pixels, labels=np.arange(6))
    _idx(tmp_path / "x-images-idx3-ubyte.gz", pixels)
    whole = (tmp_path / "x-images-idx3-ubyte.gz").read_bytes()
    (tmp_path / "x-images-idx3-ubyte.gz").write_bytes(whole[:-40])  # the last image is cut off
    for name in ("a.npz", "x-images-idx3-ubyte.gz"):
        found = read_images(tmp_path / name, PREP, "test", 3)
        assert np.array_equal(found.images[..., 0], pixels[:3])
        assert not found.whole
    with pytest.raises(UsageError, match="not a complete"):
        read_images(tmp_path / "x-images-idx3-ubyte.gz", PREP, "test")


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "<f2", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy_come_back(dtype: str, order: str, save: Any, tmp_path: Path) -> None:
    array = np.asarray(np.random.default_rng(0).random((5, 4, 3)) * 200).astype(dtype).copy(order)
    save(tmp_path / "a.npz", images=array, scalar=np.float32(3), none=np.zeros((0, 3)))
    with array_files.opened_arrays(tmp_path / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays.read("images"), array)
        np.testing.assert_array_equal(arrays.read("images", 2), array[:2])
        assert arrays.read("scalar") == 3
        assert arrays.read("none").shape == (0, 3)
        assert "more" not in arrays
