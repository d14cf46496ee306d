"""The process of its own for untrusted files: every bound holds."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from capsedge.runtime.files.sandbox import SandboxLimits, run_in_sandbox, stream_from_sandbox

ROOMY = SandboxLimits(60, 4 << 30, 1 << 20)
ENTER = (
    "from capsedge.runtime.files.sandbox import forbid_new_files, enter_sandbox\nenter_sandbox()\n"
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module ``program``; an empty file unless a test writes it."""
    path = tmp_path / "program.py"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}")
    return path


def run(program: Path, text: str, bounds: SandboxLimits = ROOMY) -> tuple[int | None, bytes, str]:
    program.write_text(ENTER + text)
    with program.open("rb") as file, run_in_sandbox("program", file, bounds) as ended:
        return ended.exit_code, ended.output.read(), ended.log


def test_it_reads_the_file_and_answers(program: Path) -> None:
    code, answer, _ = run(program, "import sys\nprint(len(sys.stdin.buffer.read()))\n")
    assert (code, int(answer)) == (0, program.stat().st_size)


def test_words_arrive(program: Path) -> None:
    program.write_text(ENTER.replace("enter_sandbox()\n", "print(enter_sandbox())\n"))
    with (
        program.open("rb") as file,
        run_in_sandbox("program", file, ROOMY, words=["free", "2"]) as ended,
    ):
        assert ended.output.read() == b"['free', '2']\n"


def test_time(program: Path) -> None:
    started = time.monotonic()
    code, _, _ = run(program, "while True: pass\n", SandboxLimits(1, 4 << 30, 1 << 20))
    assert code is None
    assert time.monotonic() - started < 30


def test_memory(program: Path) -> None:
    code, _, said = run(program, "bytearray(1 << 30)\n", SandboxLimits(60, 1 << 29, 1 << 20))
    assert code == 1
    assert "MemoryError" in said


def test_memory_is_not_limited_where_libraries_alone_may_exceed_the_bound(program: Path) -> None:
    """macOS starts a new process, without this limit: PyTorch alone takes more before it reads."""
    reserve = "import mmap\nmmap.mmap(-1, 1 << 30)\n"  # pages that nobody touches cost no time
    program.write_text(f"import sys\nsys.platform = 'darwin'\n{ENTER}{reserve}")
    bounds = SandboxLimits(60, 1 << 29, 1 << 20)
    with program.open("rb") as file, run_in_sandbox("program", file, bounds) as ended:
        assert (ended.exit_code, ended.log) == (0, "")


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
    code, _, said = run(program, f"import socket\nforbid_new_files()\n{opening}\n")
    assert code == 1
    assert "Too many open files" in said


def test_closed_doors_stay_closed(program: Path) -> None:
    text = (
        "import resource\nforbid_new_files()\n"
        "try: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "except (ValueError, OSError): print('closed')\n"
    )
    code, answer, _ = run(program, text)
    if os.geteuid():  # the administrator may raise hard limits
        assert (code, answer) == (0, b"closed\n")


def fork(program: Path, text: str, bounds: SandboxLimits = ROOMY) -> tuple[int | None, bytes, str]:
    body = "".join(f"    {line}\n" for line in text.splitlines())
    program.write_text(
        f"import os\n{ENTER.splitlines()[0]}\ndef main():\n    enter_sandbox()\n{body}"
    )
    with program.open("rb") as file, run_in_sandbox("program", file, bounds, fork=True) as ended:
        return ended.exit_code, ended.output.read(), ended.log


@pytest.fixture
def importable(program: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module ``program``, which a fork of this process imports."""
    monkeypatch.syspath_prepend(program.parent)
    return program


def test_a_fork_has_what_its_parent_has(importable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "a change of the parent's")
    text = "import sys\nos.write(1, os.read(0, 9) + sys.byteorder.encode())"
    code, answer, said = fork(importable, text)
    if sys.platform == "linux":  # elsewhere it is a new process, which calls no `main`
        assert (code, answer, said) == (0, b"import osa change of the parent's", "")


@pytest.mark.skipif(sys.platform != "linux", reason="forks are Linux's")
@pytest.mark.parametrize(
    ("text", "code", "answer", "said"),
    [
        ("len(bytearray(1 << 27))", 0, b"", ""),
        ("bytearray(1 << 30)", 1, b"", "MemoryError"),
        ("forbid_new_files()\nopen('/etc/hostname')", 1, b"", "Too many open files"),
        (
            "os.write(1, str(len(os.listdir('/proc/self/fd'))).encode())",
            0,
            b"4",
            "",
        ),  # and the listing
        ("raise SystemExit(28)", 28, b"", ""),
        ("os.abort()", -signal.SIGABRT, b"", ""),
        pytest.param("while True: pass", None, b"", "", marks=pytest.mark.thorough),
    ],
)
def test_forks(importable: Path, text: str, code: int | None, answer: bytes, said: str) -> None:
    bounds = SandboxLimits(
        20 if code is not None else 1, 1 << 29, 1 << 20
    )  # its parent's memory is not its own
    held = bytearray(1 << 29)
    ended = fork(importable, text, bounds)
    assert len(held) == 1 << 29
    assert ended[:2] == (code, answer)
    assert said in ended[2]


# --- A stream ---


def read_all(
    program: Path, text: str, size: int, patience: float = 60
) -> tuple[list[bytes], bool, int, str]:
    """The buffers that were filled, whether it was late, its exit code, and what it said."""
    program.write_text(ENTER + text)
    found: list[bytes] = []
    with (
        program.open("rb") as file,
        stream_from_sandbox("program", file, ROOMY, patience) as stream,
    ):
        buffer = bytearray(size)
        while stream.fill(memoryview(buffer)):
            found.append(bytes(buffer))
        return found, stream.late, *stream.ended()


def test_a_stream_is_read_while_it_is_written(program: Path) -> None:
    text = "import sys\nfor k in range(3): sys.stdout.buffer.write(bytes([k]) * (1 << 20))\n"
    found, late, code, said = read_all(program, text, 1 << 20)
    assert found == [bytes([k]) * (1 << 20) for k in range(3)]
    assert (late, code, said) == (False, 0, "")


def test_a_stream_that_breaks_off(program: Path) -> None:
    found, late, code, said = read_all(program, "print('abcdef', flush=True)\nx\n", 4)
    assert (found, late, code) == ([b"abcd"], False, 1)
    assert "NameError" in said


def test_a_stream_that_stays_silent(program: Path) -> None:
    _, late, code, _ = read_all(program, "import time\nwhile True: time.sleep(1)\n", 1, 0.5)
    assert late
    assert code == -signal.SIGKILL


def test_a_stream_that_is_no_longer_read_ends(program: Path) -> None:
    program.write_text(ENTER + "import os\nos.write(1, str(os.getpid()).encode().zfill(9))\n"
                       "while True: os.write(1, bytes(1 << 20))\n")  # fmt: skip
    number = bytearray(9)
    with program.open("rb") as file, stream_from_sandbox("program", file, ROOMY, 60) as stream:
        assert stream.fill(memoryview(number))
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)
