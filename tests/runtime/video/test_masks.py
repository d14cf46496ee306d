"""A segmentation follows a moving picture: its masks have the size of the frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="videos need PyAV: pip install 'capsedge[video]'")

from capsedge.runtime.session.masks import overlaid
from capsedge.runtime.video.follow import Pace, follow
from capsedge.runtime.video.frame_sources import VideoFile
from capsedge.runtime.video.frames import Frame
from capsedge.runtime.video.outputs import open_output
from tests.runtime.test_masks import segmenter

RNG = np.random.default_rng(5)
SIZES = ((24, 40), (8, 8), (7, 13))
FRAMES = [
    Frame(RNG.integers(0, 256, (*size, 3), np.uint8), k, k / 10) for k, size in enumerate(SIZES)
]


@pytest.mark.parametrize("maps", [1, 3])
def test_masks_of_frames_are_those_of_images(maps: int) -> None:
    with segmenter(maps) as session:
        for seen in follow(session, FRAMES, Pace()):
            assert seen.frame is not None
            assert seen.prediction is not None
            (wanted,) = session.predict(seen.frame.pixels)
            assert seen.prediction.mask is not None
            assert seen.prediction.mask.shape == seen.frame.pixels.shape[:2]
            np.testing.assert_array_equal(seen.prediction.mask, wanted.mask)


def test_they_are_drawn(tmp_path: Path) -> None:
    with (
        segmenter() as session,
        open_output(tmp_path / "a.mp4", lambda: 10.0) as video,
        open_output(tmp_path / "a", lambda: 10.0) as pictures,
    ):
        for seen in follow(session, FRAMES, Pace()):
            assert seen.frame is not None
            assert seen.prediction is not None
            assert seen.prediction.mask is not None
            coloured = overlaid(seen.frame.pixels, seen.prediction.mask)
            assert (coloured != seen.frame.pixels).any()
            for output in (video, pictures):
                output.write(str(seen.frame.index), seen.frame, seen.prediction, {})
    assert len(list(VideoFile(tmp_path / "a.mp4"))) == len(list((tmp_path / "a").iterdir())) == 3
