"""The command in the process of the tests: with the streams and the exit code that a shell sees."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from capsedge.cli import _run


def capsedge(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ``capsedge WORDS`` prints and returns."""
    arguments = ["capsedge", *map(str, words)]
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
    ):
        code = _run()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(arguments, code, out, err)
