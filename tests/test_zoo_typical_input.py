"""The criterion for nothing to see of the package's models."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import capsedge
from benchmarks.typical_input import SIDE, Pixels, patterns, random_noise, refused, smooth_noise
from capsedge.datasets import read_split, typical_input_from
from capsedge.models.checkpoint import load_checkpoint
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.typical_input import measure_all
from capsedge.runtime.session.session import Session
from capsedge.runtime.zoo import default_model, zoo_checkpoints
from tests.conftest import ROOT

BLOBS = "blobs"  # and patches: a few strokes in the middle, as those of digits


@pytest.fixture(scope="module")
def session() -> Session:
    return capsedge.load(default_model(), threads=1)


def test_every_model_states_it(session: Session) -> None:
    assert session.metadata is not None
    criterion = session.metadata.typical_input
    assert criterion is not None
    assert criterion.images == 60_000
    others = {path.stem: load_checkpoint(path).typical_input for path in zoo_checkpoints()}
    of_pairs, of_photographs = others.pop("digits-overlap"), others.pop("photos")
    in_clutter = others.pop("digits-clutter")
    assert set(others.values()) == {criterion}
    assert in_clutter is not None
    assert in_clutter.images == 20_000
    assert of_photographs is not None
    assert of_photographs.images == 50_000
    assert of_pairs is not None
    assert of_pairs != criterion


def test_the_samples_are_to_be_seen(session: Session) -> None:
    samples = sorted((ROOT / "capsedge" / "zoo" / "samples").glob("*.png"))
    for sample in samples:
        found = session.predict(sample, invert=sample.stem.startswith("paper"))[0]
        assert (found.atypical, found.hint) == ("", ""), sample
    assert len(samples) == 12


def test_paper_gets_the_hint(session: Session) -> None:
    found = session.predict(ROOT / "capsedge" / "zoo" / "samples" / "paper-5.png")[0]
    assert "--invert" in found.hint


def test_some_noise(session: Session) -> None:
    rng = np.random.default_rng(5)
    for mean, sigma in ((0, 20), (128, 60), (255, 20)):
        noise = np.clip(rng.normal(mean, sigma, (100, 28, 28)), 0, 255).astype(np.uint8)
        assert refused(session, noise) >= 0.99


def test_a_blank_image(session: Session) -> None:
    for size, level in product(((28, 28), (480, 640), (9, 100)), (0, 1, 128, 255)):
        assert session.predict(np.full(size, level, np.uint8))[0].atypical, (size, level)


@pytest.mark.slow
@pytest.mark.parametrize("family", [random_noise, smooth_noise, patterns])
def test_noise(session: Session, family: object) -> None:
    """In another draw than docs/reference/metadata.md has."""
    for name, images in family(200, np.random.default_rng(77)):  # type: ignore[operator]
        if "patch" in name:
            continue
        assert refused(session, images) >= (0.95 if BLOBS in name else 0.99), name


def test_test_images(session: Session, mnist: Path) -> None:
    """At most 0.1 % of the 10,000 are refused."""
    test = read_split(mnist, "test", Preprocessing(SIDE, SIDE, 1)).images
    assert session.metadata is not None
    criterion = session.metadata.typical_input
    assert criterion is not None
    inputs = (test.astype(np.float32) * np.float32(1 / 255)).transpose(0, 3, 1, 2)
    assert sum(bool(criterion.atypical_reason(found)) for found in measure_all(inputs)) <= 10


@pytest.mark.slow
def test_it_is_that_of_the_training_images(session: Session, mnist: Path) -> None:
    assert session.metadata is not None
    assert typical_input_from(mnist, Preprocessing(SIDE, SIDE, 1)) == session.metadata.typical_input


@pytest.mark.thorough
def test_int8_and_fp16_keep_it(session: Session, tmp_path: Path) -> None:
    assert session.metadata is not None
    for precision in ("fp16", "int8"):
        target = tmp_path / f"{precision}.onnx"
        pixels: Pixels = np.random.default_rng(0).integers(0, 256, (64, 28, 28, 1)).astype(np.uint8)
        capsedge.quantize(
            default_model(),
            target,
            precision=precision,
            calib_data=pixels,
        )
        quantized = capsedge.load(target)
        assert quantized.metadata is not None
        assert quantized.metadata.typical_input == session.metadata.typical_input
        assert quantized.predict(np.zeros((28, 28), np.uint8))[0].atypical
