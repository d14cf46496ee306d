"""The example ``camera.cpp``, with a stand-in for the camera below it: never run on a real one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from capsedge.runtime.images.decoding import read_image
from capsedge.runtime.zoo import default_model
from tests.cli.examples import config, needs_library, run, tool
from tests.conftest import ROOT

pytestmark = [
    needs_library,
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="Video4Linux is Linux's"),
]
SEVEN = ROOT / "capsedge/zoo/samples/digit-7.png"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, the stand-in, and the picture that it shows."""
    folder = tmp_path_factory.mktemp("camera")
    source = Path(config("examples")) / "camera.cpp"
    flags = shlex.split(config("cflags", "libs"))
    run(tool("c++", "g++"), "-std=c++17", *STRICT, source, "-o", folder / "camera", *flags)
    stand_in = Path(__file__).parent / "video4linux.c"
    run(tool("cc", "gcc"), "-shared", "-fPIC", stand_in, "-o", folder / "camera.so", "-ldl")
    (folder / "picture").write_bytes(read_image(SEVEN)[..., 0].tobytes())
    return folder


def camera(folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"CAMERA_STAND_IN": "/dev/video7", "CAMERA_PICTURE": str(folder / "picture")}
    return subprocess.run(
        [str(folder / "camera"), *map(str, words)],
        env={**os.environ, "LD_PRELOAD": str(folder / "camera.so"), **given, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_what_it_prints_until_the_camera_is_unplugged(folder: Path) -> None:
    done = camera(folder, default_model(), "/dev/video7", CAMERA_FRAMES="6")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1:3] for line in lines] == [["7", "0.9576"]] * 3
    assert done.returncode == 3
    assert done.stderr == "error: /dev/video7 gives no more frames: No such device\n"


def test_a_number_of_frames(folder: Path) -> None:
    done = camera(folder, default_model(), "/dev/video7", 2, CAMERA_FRAMES="99")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert done.stderr.startswith("2 frames, ")
    assert done.stderr.endswith(" 2 dropped\n")


def test_cameras_that_cannot_be_read(folder: Path) -> None:
    busy = camera(folder, default_model(), "/dev/video7", CAMERA_BUSY="1")
    assert busy.stderr == "error: /dev/video7 cannot be opened: Device or resource busy\n"
    missing = camera(folder, default_model(), "/dev/video8")
    assert missing.stderr == "error: /dev/video8 cannot be opened: No such file or directory\n"
    file = camera(folder, default_model(), SEVEN)
    assert file.stderr == f"error: {SEVEN} is not a camera\n"
    assert busy.returncode == missing.returncode == file.returncode == 3
    assert camera(folder).returncode == 2
