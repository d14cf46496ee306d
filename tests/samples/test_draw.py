"""The sample images are what the script draws, and look like digits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.runtime import zoo
from tools import draw_samples


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["samples", "clutter"])
def test_committed_images_are_what_the_script_draws(kind: str):
    drawn = draw_samples.cluttered() if kind == "clutter" else draw_samples.samples()
    folder = zoo.samples_folder().with_name(kind)
    committed = {p.name for p in folder.glob("*.png")}
    assert committed == set(drawn)
    for name, picture in drawn.items():
        found = np.asarray(Image.open(folder / name)).astype(int)
        # One level of room: mathematics libraries differ in the last bit, which may turn a rounding.
        assert found.shape == picture.shape, name
        assert np.abs(found - picture).max() <= 1, name


@pytest.mark.parametrize("value", range(10))
@pytest.mark.parametrize("hand", draw_samples.HANDS, ids=range(len(draw_samples.HANDS)))
def test_digit_is_laid_out_as_in_mnist(value: int, hand: draw_samples.Hand):
    picture = draw_samples.digit(value, hand, np.random.default_rng(value)).astype(float) / 255
    assert picture.shape == (28, 28)
    y, x = np.mgrid[0:28, 0:28] + 0.5
    centre = (picture * y).sum() / picture.sum(), (picture * x).sum() / picture.sum()
    assert centre == pytest.approx((14, 14), abs=0.1)
    rows, columns = (np.flatnonzero(picture.max(axis=a) > 0.5) for a in (1, 0))
    assert 18 <= max(np.ptp(rows), np.ptp(columns)) + 1 <= 21
    # soft edges and a pen of two to three pixels
    assert ((picture > 0) & (picture < 1)).sum() > 15
    assert picture.max() == 1


def test_hands_and_seeds_differ_and_repeat():
    def one(hand: int, seed: int) -> np.ndarray:
        return draw_samples.digit(3, draw_samples.HANDS[hand], np.random.default_rng(seed))

    assert (one(0, 1) == one(0, 1)).all()
    assert (one(0, 1) != one(0, 2)).any()
    assert (one(0, 1) != one(1, 1)).any()


def test_shift_moves_the_digit():
    hand = draw_samples.HANDS[0]
    still = draw_samples.digit(6, hand, np.random.default_rng(0))
    moved = draw_samples.digit(6, hand, np.random.default_rng(0), shift=(2, -1))
    assert np.abs(np.roll(still.astype(int), (-1, 2), (0, 1)) - moved).max() <= 1


def test_overlapping_keeps_both_digits():
    hand, rng = draw_samples.HANDS[0], np.random.default_rng(0)
    a, b = draw_samples.digit(1, hand, rng), draw_samples.digit(0, hand, rng)
    both = draw_samples.overlapping(a, b, shift=(4, 0), side=36)
    assert both.shape == (36, 36)
    assert (both[4:32, 0:28] >= a).all()
    assert (both[4:32, 8:36] >= b).all()


@pytest.mark.thorough
def test_command_writes_the_images(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-m", "tools.draw_samples", "--out", tmp_path / "new", "--each", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(list((tmp_path / "new").glob("*.png"))) == 10 * len(draw_samples.HANDS)
    assert str(tmp_path / "new") in run.stdout


@pytest.mark.thorough
def test_command_says_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    assert draw_samples.main(["--out", str(tmp_path / "file")]) == 2
    assert "Cannot create the folder" in capsys.readouterr().err
