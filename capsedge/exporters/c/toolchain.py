"""Start compilers and other tools so that none of them outlives an interrupted command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any


def start(
    words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, **streams: Any
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, which `end` ends as a whole.

    Args:
        words: the program and its arguments.
        folder: where it runs.
        environment: its variables; by default, this process's.
        streams: ``stdin``, ``stdout`` and ``stderr`` as of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True, **streams)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and everything that it started."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform != "win32":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        _close(stream)


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(OSError):  # what was still to be written has no reader
            stream.close()


def run(
    words: Sequence[str],
    folder: Path,
    *,
    seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end; if that is interrupted, nothing that it started goes on.

    Args:
        words, folder, environment: as for `start`.
        seconds: the longest time that it may take.

    Returns:
        Its exit code and what it printed.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it took longer.
    """
    pipe = subprocess.PIPE
    process = start(words, folder, environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        printed = process.communicate(timeout=seconds)
    except BaseException:
        end(process)
        raise
    texts = (part.decode(errors="replace") for part in printed)
    return subprocess.CompletedProcess(words, process.returncode, *texts)
