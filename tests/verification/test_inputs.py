"""Samples of every kind, and the hard cases."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from capsedge.errors import UsageError
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.verification.sample_inputs import generated, hard_cases, load_samples, shipped_samples

PREP = Preprocessing(8, 8, 1, mean=(0.5,), std=(0.25,))
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8), np.uint8)
LABELS = np.arange(5)


def _idx(path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    data = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _images_of(samples) -> np.ndarray:
    return np.concatenate(list(samples.batches(2)))


WANTED = np.stack([prepare(i, PREP) for i in IMAGES])


def test_idx_folder_and_file(tmp_path) -> None:
    _idx(tmp_path / "t10k-images-idx3-ubyte.gz", IMAGES)
    _idx(tmp_path / "t10k-labels-idx1-ubyte.gz", LABELS)
    for source in (tmp_path, tmp_path / "t10k-images-idx3-ubyte.gz"):
        samples = load_samples(source, PREP, None)
        np.testing.assert_array_equal(_images_of(samples), WANTED)
        np.testing.assert_array_equal(samples.labels, LABELS)


def test_npz_of_pixels_and_of_floats(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS)
    np.savez(tmp_path / "b.npz", images=WANTED)
    for name, labels in (("a.npz", LABELS), ("b.npz", None)):
        samples = load_samples(tmp_path / name, PREP, None)
        np.testing.assert_array_equal(_images_of(samples), WANTED)
        assert (samples.labels is None) == (labels is None)
    assert len(load_samples(tmp_path / "b.npz", None, 2)) == 2


def test_folder_of_images_and_limit(tmp_path) -> None:
    for k, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{k}.png")
    samples = load_samples(tmp_path, PREP, 3)
    np.testing.assert_array_equal(_images_of(samples), WANTED[:3])
    assert samples.names == ("0.png", "1.png", "2.png")
    assert len(load_samples(tmp_path / "4.png", PREP, None)) == 1


def test_digest_is_of_the_pixels(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    np.savez_compressed(tmp_path / "b.npz", images=IMAGES)
    np.savez(tmp_path / "c.npz", images=IMAGES[::-1])
    a, b, c = (load_samples(tmp_path / n, PREP, None).digest() for n in ("a.npz", "b.npz", "c.npz"))
    assert a == b != c


@pytest.mark.parametrize(
    "arrays",
    [
        {"pictures": IMAGES},
        {"images": IMAGES, "labels": LABELS[:3]},
        {"images": IMAGES.astype(np.int32)},
        {"images": np.full((2, 1, 8, 8), np.nan, np.float32)},
        {"images": np.zeros((0, 8, 8), np.uint8)},
        {"images": np.array([{"a": 1}], dtype=object)},
    ],
    ids=["no images", "labels do not fit", "type", "nan", "none", "pickle"],
)
def test_bad_npz(tmp_path, arrays) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UsageError):
        load_samples(tmp_path / "a.npz", PREP, None)


def test_bad_files(tmp_path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0")
    empty = tmp_path / "empty"
    empty.mkdir()
    for source in (
        tmp_path / "a.npz",
        tmp_path / "t10k-images-idx3-ubyte",
        empty,
        tmp_path / "none",
    ):
        with pytest.raises(UsageError):
            load_samples(source, PREP, None)
    with pytest.raises(UsageError, match="prepared"):
        load_samples(tmp_path, None, None)


def test_hard_cases_are_hard() -> None:
    hard = hard_cases((1, 8, 8), PREP)
    names, images = hard.names, hard.images
    of = dict(zip(names, images, strict=True))
    assert len(names) == len(images) >= 12
    assert not of["zero input"].any()
    assert np.ptp(of["black"]) == 0
    assert of["black"].max() == pytest.approx(-2.0)  # (0 - 0.5) / 0.25
    assert of["white"].min() == pytest.approx(2.0)
    assert 0 < np.linalg.norm(of["tiny norm"]) < 1e-4
    assert np.linalg.norm(of["huge norm"]) > 1e3
    np.testing.assert_array_equal(of["mirror image"], of["mirror image"][..., ::-1])
    assert len(np.unique(of["checkerboard 1"])) == 2
    assert np.isfinite(images).all()


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_drawn_samples_of_any_shape(channels: int) -> None:
    prep = replace(PREP, channels=channels, mean=(0.0,), std=(1.0,))
    images = generated((channels, 12, 9), prep, 6)
    assert images.shape == (6, channels, 12, 9)
    assert 0 <= images.min() < images.max() <= 1.0001
    assert all(np.ptp(image) > 0.5 for image in images)
    np.testing.assert_array_equal(images, generated((channels, 12, 9), prep, 6))
    assert len(shipped_samples(prep, (channels, prep.height, prep.width), None)) >= 64


def test_shipped_pictures_come_first() -> None:
    samples = shipped_samples(Preprocessing(28, 28, 1), (1, 28, 28), 3)
    assert len(samples) == 3
    assert all(name.endswith(".png") for name in samples.names)
