"""Full disks: of outputs, of the folder of temporary files, and files that may grow no more; exit code 3."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.paths.table import IMAGE, ZOO, honest


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True, check=False
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def call(
    words: list[object], limit: Callable[[], None] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "capsedge", *map(str, words)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | environment,
        preexec_fn=limit,
    )  # fmt: skip


def assert_full(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 3, done.stdout + done.stderr
    assert "error: " in done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("older", [True, False])
def test_picture(small: Path, older: bool) -> None:
    target = small / "seen.png"
    if older:
        target.write_text("older")
    (small / "filler").write_bytes(bytes(60 << 10))
    assert_full(call(["infer", ROOT / "capsedge/zoo/samples", "--reconstruct", target]))
    assert sorted(p.name for p in small.iterdir()) == ["filler"] + ["seen.png"] * older
    assert not older or target.read_text() == "older"


@pytest.mark.thorough
def test_training(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data = honest(tmp_path / "honest")["train"]["data"][1]
    words = ["train", "--model", "digits-em", "--iters", "1", "--data", data, "--epochs", "1",
             "--batch", "16", "--limit", "16", "-o", small / "run"]  # fmt: skip
    assert_full(call(words))
    assert list((small / "run").iterdir()) == []


@pytest.mark.thorough
def test_export(small: Path) -> None:
    pytest.importorskip("torch")
    assert_full(call(["export", "-o", small / "new.onnx"]))
    assert list(small.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("room", [0, 16])
def test_temporary_files(small: Path, room: int) -> None:
    """None left, and so few that libraries stop in the middle of what they write."""
    (small / "filler").write_bytes(bytes((64 - room) << 10))
    model = ZOO / "digits-dynamic.onnx"
    words = ["profile", model, "--duration", "0.1", "--warmup", "0"]
    done = call(words, TMPDIR=str(small))
    if room == 0 and done.returncode == 0:
        return  # Python itself takes the next folder where the first takes nothing
    assert_full(done)
    assert [p.name for p in small.iterdir()] == ["filler"]


@pytest.mark.thorough
def test_files_that_may_grow_no_more(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))

    done = call(["infer", IMAGE, "--reconstruct", tmp_path / "seen.png"], limit)
    assert_full(done)
    assert list(tmp_path.iterdir()) == []
