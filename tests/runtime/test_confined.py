"""The process of its own for untrusted files: every bound holds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from capsedge.runtime.files.confined import Bounds, confined

ROOMY = Bounds(60, 4 << 30, 1 << 20)
CONFINE = "from capsedge.runtime.files.confined import close_doors, confine\nconfine()\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module ``program``; an empty file unless a test writes it."""
    path = tmp_path / "program.py"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}")
    return path


def run(program: Path, text: str, bounds: Bounds = ROOMY) -> tuple[int | None, bytes, str]:
    program.write_text(CONFINE + text)
    with program.open("rb") as file, confined("program", file, bounds) as ended:
        return ended.code, ended.answer.read(), ended.said


def test_it_reads_the_file_and_answers(program: Path) -> None:
    code, answer, _ = run(program, "import sys\nprint(len(sys.stdin.buffer.read()))\n")
    assert (code, int(answer)) == (0, program.stat().st_size)


def test_words_arrive(program: Path) -> None:
    program.write_text(CONFINE.replace("confine()\n", "print(confine())\n"))
    with program.open("rb") as file, confined("program", file, ROOMY, words=["free", "2"]) as ended:
        assert ended.answer.read() == b"['free', '2']\n"


def test_time(program: Path) -> None:
    started = time.monotonic()
    code, _, _ = run(program, "while True: pass\n", Bounds(1, 4 << 30, 1 << 20))
    assert code is None
    assert time.monotonic() - started < 30


def test_memory(program: Path) -> None:
    code, _, said = run(program, "bytearray(1 << 30)\n", Bounds(60, 1 << 29, 1 << 20))
    assert code == 1
    assert "MemoryError" in said


def test_output(program: Path) -> None:
    _, answer, _ = run(program, "import os\nwhile True: os.write(1, bytes(1 << 20))\n")
    assert len(answer) == 1 << 20


@pytest.mark.parametrize(
    "opening",
    [
        "open('/etc/hostname')",
        "open('new', 'w')",
        "__import__('socket').socket()",
        "__import__('os').pipe()",
    ],
)
def test_closed_doors(program: Path, opening: str) -> None:
    code, _, said = run(program, f"import socket\nclose_doors()\n{opening}\n")
    assert code == 1
    assert "Too many open files" in said


def test_closed_doors_stay_closed(program: Path) -> None:
    text = (
        "import resource\nclose_doors()\n"
        "try: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "except (ValueError, OSError): print('closed')\n"
    )
    code, answer, _ = run(program, text)
    if os.geteuid():  # the administrator may raise hard limits
        assert (code, answer) == (0, b"closed\n")
