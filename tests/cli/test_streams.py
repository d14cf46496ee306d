"""The command as it ends: interrupted, read by nobody, with streams closed, full or of few letters."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.paths.test_signals import heard

COMMAND = [sys.executable, "-m", "capsedge"]
SEVEN = ROOT / "capsedge/zoo/samples/digit-7.png"
MODEL = ROOT / "capsedge/zoo/digits-dynamic.onnx"


@contextmanager
def running(*words: object, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command that hears signals, even where the tests ignore them, and ends with the block."""
    with subprocess.Popen([*COMMAND, *map(str, words)], preexec_fn=heard, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(words: str, stream: IO[bytes]) -> str:
    """Read lines until one holds the words."""
    seen = ""
    while words not in seen:
        line = stream.readline()
        assert line, f"ended without '{words}':\n{seen}"
        seen += line.decode()
    return seen


def shell(
    command: str, folder: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which ``capsedge`` is this one."""
    line = f'capsedge() {{ "{sys.executable}" -m capsedge "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


@pytest.mark.thorough
def test_interrupted(tmp_path: Path):
    report = tmp_path / "report.html"
    with running(
        "profile", MODEL, "--duration", "600", "--report", report,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        wait_for("batch 1: 600 s", process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "interrupted: no unfinished file is left behind"
    assert "Traceback" not in err.decode()
    assert out == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_interrupted_training_says_how_to_go_on(tmp_path: Path, terminal: bool):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (64, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.arange(64) % 10)
    master, slave = pty.openpty() if terminal else os.pipe()
    with running(
        "train", "--model", "digits-em", "--iters", "1", "--data", tmp_path, "-o", tmp_path / "run",
        "--batch", "16", "--epochs", "100000", "--threads", "1",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave,
    ) as process:  # fmt: skip
        os.close(slave)
        with open(master, "rb", buffering=0) as stream:
            wait_for("epoch 1/100000", stream)
            process.send_signal(signal.SIGINT)
            said = wait_for("interrupted: finished epochs are kept", stream)
        assert process.wait(timeout=60) == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "history.jsonl",
        "last.pt",
        "model.safetensors",
    }


@pytest.mark.thorough
def test_nobody_reads():
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (
        ["inspect", MODEL, "--json"],
        ["infer", SEVEN, "none.png"],
        ["infer", "--help"],
        ["--help"],
        ["--version"],
        [],
    ):
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)], stdout=writer, stderr=subprocess.PIPE, text=True
        )
        assert done.returncode == 141, arguments
        assert "Traceback" not in done.stderr
        assert "Broken" not in done.stderr
    os.close(writer)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove a current folder")
def test_the_current_folder_is_gone(tmp_path: Path):
    """It has no path then, which is no bug of capsedge."""
    done = shell("mkdir gone && cd gone && rmdir ../gone && capsedge inspect digits-em/", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: The current folder is gone.")


@pytest.mark.thorough
def test_closed_streams(tmp_path: Path):
    done = shell(f"capsedge infer '{SEVEN}' >&-")
    assert (done.returncode, done.stderr) == (0, "")
    done = shell("capsedge infer none.png --json 2>&-", tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n"), "messages went into the results"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command", ["infer capsedge/zoo/samples --json", "infer capsedge/zoo/samples"]
)
def test_full_disk(command: str):
    done = shell(f"capsedge {command} > /dev/full")
    assert done.returncode == 3
    assert done.stderr.splitlines()[:2] == ["error: Writing failed.", "No space left on device."]
    assert "Exception" not in done.stderr


def test_letters_that_the_output_does_not_know(tmp_path: Path):
    (tmp_path / "zahl äöü 数.png").write_bytes(SEVEN.read_bytes())
    done = shell("capsedge infer *.png", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"zahl \xe4\xf6\xfc \u6570.png" in done.stdout


def test_completion():
    code = "import sys; sys.argv[0] = 'capsedge'; from capsedge.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "_CAPSEDGE_COMPLETE": "bash_complete",
            "COMP_WORDS": "capsedge infer --re",
            "COMP_CWORD": "2",
        },
    )
    assert done.stdout.split() == ["plain,--reconstruct"], done.stderr
