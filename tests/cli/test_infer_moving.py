"""``capsedge infer`` on videos, cameras and watched folders: what it prints, writes, refuses and returns."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("av", reason="videos need PyAV: pip install 'capsedge[video]'")

from capsedge.cli import _moving
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.video.follow import KEPT, Pace, StepDurations
from capsedge.runtime.video.frame_sources import Camera, VideoFile
from capsedge.runtime.video.frames import Frame
from tests.cli.running import capsedge
from tests.paths.test_signals import heard
from tests.runtime.models import capsule_model, save
from tests.runtime.video.clips import write_clip

LEFT = np.zeros((32, 32, 3), np.uint8)
LEFT[:, :16] = 255
RIGHT = LEFT[:, ::-1].copy()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a clip, and a clip that is cut off."""
    folder = tmp_path_factory.mktemp("moving")
    save(capsule_model(), folder / "plain.onnx")
    write_clip(folder / "clip.mp4", [LEFT, RIGHT, RIGHT, RIGHT])
    noise = [np.random.default_rng(k).integers(0, 256, (64, 96, 3), np.uint8) for k in range(12)]
    write_clip(folder / "cut.mp4", noise, options={"movflags": "faststart"})
    data = (folder / "cut.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(data[: len(data) // 2])
    return folder


def infer(place: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return capsedge("infer", "--model", place / "plain.onnx", *words, CAPSEDGE_OPS_LIBRARY="")


def lines_of(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.stdout.splitlines()]


class Given:
    """A camera that gives what a test has made."""

    rate = None
    dropped = 2

    def __init__(self, *frames: np.ndarray, then: BaseException) -> None:
        self._frames, self._then = frames, then

    def __iter__(self) -> Iterator[Frame]:
        for k, pixels in enumerate(self._frames):
            yield Frame(pixels, k, k / 10)
        raise self._then


def test_summary(place: Path) -> None:
    run = infer(place, place / "clip.mp4")
    assert run.returncode == 0
    lines = [line.split() for line in run.stdout.splitlines() if line]
    assert lines[0][0] == "plain.onnx,"
    assert lines[1:4] == [
        ["class", "frames", "share"],
        ["right", "3", "75.0%"],
        ["left", "1", "25.0%"],
    ]
    assert lines[4:6] == [["milliseconds"], ["step", "p50", "p90", "p99", "share"]]
    assert [line[0] for line in lines[6:-1]] == ["decode", "wait", "prepare", "network"]
    assert lines[-1][:4] == [f"{place / 'clip.mp4'}:", "4", "frames", "in"]
    assert "dropped" not in run.stdout
    assert "frame 0: 'left'" in run.stderr


def test_lines_of_json(place: Path) -> None:
    run = infer(place, place / "clip.mp4", "--json", "--top", 2)
    assert (run.returncode, run.stderr) == (0, "")
    *frames, last = lines_of(run)
    assert [f["frame"] for f in frames] == [0, 1, 2, 3]
    assert [f["seconds"] for f in frames] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert [f["labels"][0]["label"] for f in frames] == ["left", "right", "right", "right"]
    assert all(len(f["labels"]) == 2 for f in frames)
    summary = last["summary"]
    assert (summary["frames"], summary["dropped"], summary["interrupted"]) == (4, 0, False)
    assert set(summary["steps"]) == {"decode", "wait", "prepare", "network"}
    assert summary["frames_per_second"] > 0


@pytest.mark.parametrize("name", ["out.mp4", "out.jsonl", "out"])
def test_outputs(name: str, place: Path, tmp_path: Path) -> None:
    run = infer(place, place / "clip.mp4", "-o", tmp_path / name)
    assert run.returncode == 0
    assert f"wrote {tmp_path / name}" in run.stderr
    if name == "out.mp4":
        assert len(list(VideoFile(tmp_path / name))) == 4
    elif name == "out.jsonl":
        assert len((tmp_path / name).read_text().splitlines()) == 4
    else:
        assert len(list((tmp_path / name).iterdir())) == 4


def test_a_broken_video_gives_its_frames_and_one_error(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    run = infer(place, place / "cut.mp4", "-o", target)
    assert run.returncode == 2
    assert run.stderr.count("error: ") == 1
    assert "cannot be read beyond frame" in run.stderr
    count = len(target.read_text().splitlines())
    assert count >= 2
    run = infer(place, place / "cut.mp4", "--json")
    assert run.returncode == 2
    *frames, error, last = lines_of(run)
    assert len(frames) == last["summary"]["frames"] == count
    assert (error["exit_code"], error["fix"]) == (
        2,
        "The frames before were used. Get the file again.",
    )


def test_a_video_that_cannot_be_read(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.mp4"
    path.write_text("text")
    run = infer(place, path, "-o", tmp_path / "out.mp4")
    assert run.returncode == 2
    assert "error: " in run.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_a_camera_that_vanishes(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = EnvironmentProblem("The camera gives no picture.", "It was unplugged.", "Plug it in.")
    monkeypatch.setattr(_moving, "Camera", lambda device: Given(LEFT, then=gone))
    run = infer(place, 0, "-o", tmp_path / "out.mp4")
    assert run.returncode == 3
    assert "It was unplugged." in run.stderr
    assert len(list(VideoFile(tmp_path / "out.mp4"))) == 1


def test_ctrl_c_ends_a_camera_and_finishes_its_video(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = KeyboardInterrupt()
    monkeypatch.setattr(_moving, "Camera", lambda device: Given(LEFT, RIGHT, then=stop))
    run = infer(place, "/dev/video0", "--json", "-o", tmp_path / "out.mp4")
    assert run.returncode == 130
    assert lines_of(run)[-1]["summary"]["interrupted"] is True
    assert lines_of(run)[-1]["summary"]["dropped"] == 2
    assert len(list(VideoFile(tmp_path / "out.mp4"))) == 2


def test_a_camera_that_is_not_there(place: Path) -> None:
    run = infer(place, "/dev/video999", "--json")
    assert run.returncode == 2
    assert json.loads(run.stdout)["error"] == "There is no camera /dev/video999."
    assert isinstance(_moving._source(Path("0"), False), Camera)


@pytest.mark.thorough
def test_a_watched_folder_until_ctrl_c(place: Path, tmp_path: Path) -> None:
    Image.fromarray(LEFT).save(tmp_path / "a.png")
    words = [sys.executable, "-m", "capsedge", "infer", tmp_path, "--watch", "--json", "--model"]
    process = subprocess.Popen(
        [*map(str, words), str(place / "plain.onnx")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (Path(first["image"]).name, first["labels"][0]["label"]) == ("a.png", "left")
        (tmp_path / "b.png").write_bytes(b"no image")
        bad = json.loads(process.stdout.readline())
        assert (Path(bad["image"]).name, bad["fix"]) == ("b.png", "Check the path.")
        Image.fromarray(RIGHT).save(tmp_path / "c.png")
        assert json.loads(process.stdout.readline())["labels"][0]["label"] == "right"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert json.loads(out)["summary"]["failed"] == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["clip.mp4", "clip.mp4"], "infer takes one moving picture"),
        (["--watch"], "--watch needs a folder"),
        (["clip.mp4", "--watch"], "It is not a folder"),
        (["clip.mp4", "--reconstruct", "x.png"], "--reconstruct is not for moving pictures"),
        ([".", "--watch", "-o", "x.mp4"], "cannot be made of a folder"),
        ([".", "--watch", "-o", "."], "It is watched for new images"),
        (["clip.mp4", "-o", "clip.mp4/frames"], "Cannot create the folder clip.mp4/frames"),
        (["clip.mp4", "-o", "nowhere/x.mp4"], "Cannot write nowhere/x.mp4"),
        (["clip.mp4", "-o", "clip.mp4"], "It is an input of the same command"),
    ],
)  # fmt: skip
def test_refusals(
    words: list[str], says: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    run = infer(place, *words)
    assert run.returncode == 2
    assert says in run.stderr


def test_without_pyav(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    run = infer(place, place / "clip.mp4")
    assert run.returncode == 3
    assert "pip install 'capsedge[video]'" in run.stderr


def test_an_ensemble(place: Path, tmp_path: Path) -> None:
    save(capsule_model(reconstruction=True), tmp_path / "full.onnx")
    run = infer(place, "--model", tmp_path / "full.onnx", place / "clip.mp4", "--json")
    assert run.returncode == 0
    *frames, last = lines_of(run)
    assert [f["labels"][0]["label"] for f in frames] == ["left", "right", "right", "right"]
    assert len(last["summary"]["models"]) == 2


def test_the_range_of_a_value() -> None:
    seen = _moving._Range("degrees")
    for value in (1.0, -3.0, 5.0):
        seen.add(value)
    assert seen.cells() == ["-3°", "1°", "5°"]


def test_durations_take_a_bounded_memory() -> None:
    durations = StepDurations()
    for k in range(KEPT + 10):
        durations.add(0.0 if k < 10 else 1.0)
    assert durations.percentiles() == (1.0, 1.0, 1.0)
    assert (durations.count, durations.total) == (KEPT + 10, KEPT)
    assert StepDurations().percentiles() == (0.0, 0.0, 0.0)
    assert Pace().rate == Pace().seconds == Pace().share("wait") == 0.0
