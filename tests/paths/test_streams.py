"""Closed and full standard streams, for every verb: documented exit codes, and results that stay whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.paths.table import IMAGE, callbacks

COMMAND = f'"{sys.executable}" -m capsedge'
FULL = Path("/dev/full")
NOISE = ("Traceback", "Exception ignored", "lost sys.stderr", "is a bug")
MISSING = {
    "train": "--model digits-em --data none -o none",
    "export": "--checkpoint none.pt",
    "verify": "none.onnx",
    "quantize": "none.onnx --calib-data none",
    "cascade": "none.onnx none.onnx --data none",
    "sweep": "--data none --checkpoint none.pt",
    "build": "none.onnx",
    "infer": f"{IMAGE} -m none.onnx",
    "profile": "none.onnx",
    "inspect": "none.onnx",
}


def bash(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.sample(1)
@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", sorted(callbacks()))
def test_help(verb: str, tmp_path: Path) -> None:
    """One call a stream in one line of bash; the exit codes come last."""
    help_ = f"{COMMAND} {verb} --help"
    cases = {
        ">/dev/full": 3, ">&-": 0, "2>/dev/full": 0, "2>&-": 0, ">&- 2>&-": 0,
        ">/dev/full 2>/dev/full": 3, "<&- >&- 2>&-": 0,
    }  # fmt: skip
    line = "; ".join(f"{help_} >/dev/null {streams}; codes+=($?)" for streams in cases)
    done = bash(f'{line}; echo "${{codes[@]}}"', tmp_path)
    assert done.stdout.split()[-len(cases) :] == [str(code) for code in cases.values()]
    assert not any(noise in done.stderr for noise in NOISE), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample(1)
@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", sorted(MISSING))
def test_errors(verb: str, tmp_path: Path) -> None:
    """What is wrong decides about the exit code, not whether it can be said."""
    pytest.importorskip("torch", reason="the verbs run: pip install 'capsedge[export]'")
    failing = f"{COMMAND} {verb} {MISSING[verb]}"
    cases = ("2>/dev/full", "--json >&- 2>&-", "--json >/dev/full 2>/dev/full")
    line = "; ".join(f"{failing} {streams}; codes+=($?)" for streams in cases)
    done = bash(f'{line}; echo "${{codes[@]}}"', tmp_path)
    assert done.stdout.split()[-len(cases) :] == ["2"] * len(cases), done.stderr
    assert not any(noise in done.stderr for noise in NOISE), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_results_without_messages(tmp_path: Path) -> None:
    """The work is done, and its results are whole, where messages cannot be written."""
    for streams in ("2>/dev/full", "2>&-"):
        picture = tmp_path / "seen.png"
        done = bash(
            f"{COMMAND} infer '{IMAGE}' none.png --json --reconstruct '{picture}' {streams}",
            tmp_path,
        )
        assert done.returncode == 2, done.stderr
        assert json.loads(done.stdout)["failed"] == 1
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


def test_files_get_no_number_of_a_stream(tmp_path: Path) -> None:
    """What libraries print to a closed stream does not land in an output."""
    code = (
        "import os; from capsedge.cli import _process as _streams; _streams.prepare()\n"
        "handle = os.open('out', os.O_WRONLY | os.O_CREAT)\n"
        "assert handle > 2, handle\n"
        "for number in (1, 2): os.write(number, b'noise')"
    )
    done = bash(f"'{sys.executable}' -c \"{code}\" <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "out").read_bytes() == b""
