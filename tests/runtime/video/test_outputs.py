"""What is drawn and written of frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("av", reason="videos need PyAV: pip install 'capsedge[video]'")

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.session.predictions import Label, Prediction, RegressionValue
from capsedge.runtime.video import outputs
from capsedge.runtime.video.frame_sources import VideoFile
from capsedge.runtime.video.frames import Frame
from capsedge.runtime.video.outputs import check_times, draw_prediction, open_output, texts

NONE = np.empty(0, np.float32)


def labelled(*names: str, atypical: str = "") -> Prediction:
    labels = tuple(Label(name, k, 0.9 - k / 10, NONE) for k, name in enumerate(names))
    return Prediction(
        labels, np.zeros(3), np.zeros((3, 0), np.float32), "length", atypical=atypical
    )


VALUES = Prediction(
    (), np.empty(0), np.zeros((0, 0), np.float32), "",
    (RegressionValue("yaw", -12.345, "degrees"), RegressionValue("depth", 2.0, "m")),
)  # fmt: skip


def test_texts() -> None:
    assert texts(labelled("cat", "dog")) == ["cat 0.90", "dog 0.80"]
    assert texts(VALUES) == ["yaw -12.35°", "depth 2 m"]
    assert texts(labelled(*"abcdefgh"))[-1] == "and 3 more"
    assert texts(labelled(atypical="too dark")) == ["nothing to see"]
    assert texts(labelled()) == []


def test_a_prediction_is_drawn_in_the_corner_and_nowhere_else() -> None:
    pixels = np.full((120, 200, 3), 90, np.uint8)
    drawn = draw_prediction(pixels, VALUES)
    assert drawn.shape == pixels.shape
    changed = np.argwhere((drawn != pixels).any(-1))
    assert changed.min() == 0
    assert (changed.max(0) < (60, 150)).all()
    assert drawn[:40, :90].min(-1).max() > 200  # ink
    assert np.array_equal(draw_prediction(pixels, labelled()), pixels)
    assert (pixels == 90).all()


@pytest.mark.parametrize(
    ("pixels", "wanted"),
    [
        (np.full((9, 9, 1), 50, np.uint8), (50, 50, 50)),
        (np.full((9, 9, 1), 257 * 50, np.uint16), (50, 50, 50)),
        (np.full((9, 9, 4), (10, 20, 30, 255), np.uint8), (10, 20, 30)),
        (np.full((9, 9, 4), (10, 20, 30, 0), np.uint8), (0, 0, 0)),
        (np.full((9, 9, 2), (50, 255), np.uint8), (50, 50, 50)),
    ],
)
def test_images_of_every_kind_are_shown_in_colour(
    pixels: np.ndarray, wanted: tuple[int, ...]
) -> None:
    assert (draw_prediction(pixels, labelled()) == wanted).all()


def frames(*sizes: tuple[int, int], step: float = 0.1) -> list[Frame]:
    return [
        Frame(np.full((*size, 3), 40 * (k + 1), np.uint8), k, k * step)
        for k, size in enumerate(sizes)
    ]


def write(path: Path, given: list[Frame], rate: float | None = 10) -> None:
    with open_output(path, lambda: rate) as output:
        for frame in given:
            output.write(f"{frame.index:06}", frame, labelled(), {"frame": frame.index})


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "A.MOV"])
def test_a_video_keeps_times_and_has_the_size_of_its_first_frame(name: str, tmp_path: Path) -> None:
    given = frames((32, 48), (32, 48), (64, 96))
    given.append(Frame(given[0].pixels, 3, 7.5))
    write(tmp_path / name, given)
    found = list(VideoFile(tmp_path / name))
    assert [f.pixels.shape for f in found] == [(32, 48, 3)] * 4
    assert [f.seconds for f in found] == pytest.approx([0, 0.1, 0.2, 7.5], abs=0.001)
    levels = [int(f.pixels.mean()) for f in found]
    assert levels == pytest.approx([40, 80, 120, 40], abs=4)


def test_odd_sizes_and_frames_without_times(tmp_path: Path) -> None:
    given = [Frame(f.pixels, f.index, None) for f in frames((33, 47), (33, 47))]
    write(tmp_path / "a.mp4", given, rate=None)
    found = list(VideoFile(tmp_path / "a.mp4"))
    assert [f.pixels.shape for f in found] == [(32, 46, 3)] * 2
    assert [f.seconds for f in found] == pytest.approx([0, 1 / 30], abs=0.001)


def test_times_that_stand_still_move_on(tmp_path: Path) -> None:
    write(tmp_path / "a.mkv", frames((32, 48), (32, 48), (32, 48), step=0))
    assert len(list(VideoFile(tmp_path / "a.mkv"))) == 3


def test_lines_and_pictures(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", frames((8, 8), (8, 8)))
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"frame": 0}, {"frame": 1}]
    write(tmp_path / "pictures", frames((8, 9)))
    write(tmp_path / "pictures", frames((8, 9), (8, 9)))  # it may be there already
    found = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert found == ["000000.png", "000001.png"]
    assert Image.open(tmp_path / "pictures" / found[1]).getpixel((8, 7)) == (80, 80, 80)


@pytest.mark.parametrize("name", ["a.mp4", "a.jsonl"])
def test_a_failure_keeps_the_older_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"older")
    frame = frames((32, 48))[0]
    with pytest.raises((AttributeError, TypeError)), open_output(path, lambda: 10) as output:
        output.write("0", frame, None, {"frame": {1}})  # type: ignore[arg-type]
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("older", [b"older", None])
def test_without_a_frame_there_is_no_video(older: bytes | None, tmp_path: Path) -> None:
    """As when a camera is interrupted before its first one."""
    path = tmp_path / "a.mp4"
    if older is not None:
        path.write_bytes(older)
    write(path, [])
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if older is None else [older])


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be made of a folder"):
        check_times(Path("a.mp4"), timed=False)
    check_times(Path("a.jsonl"), timed=False)
    check_times(Path("a.mp4"), timed=True)
    monkeypatch.setattr(outputs, "_ENCODERS", ("none",))
    with pytest.raises(EnvironmentProblem, match="none of the encoders none"):
        write(tmp_path / "a.mp4", frames((8, 8)))
