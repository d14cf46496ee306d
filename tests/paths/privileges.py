"""Running a command as one whom permissions bind, which they do not bind the superuser."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_PR_CAPBSET_DROP = 24
_CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def _bind() -> None:
    """Give up what lets the superuser pass permissions, for what is executed next."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _CAPABILITIES:
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def unprivileged(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command with the permissions of an ordinary user; skips where they cannot be given up."""
    try:
        return subprocess.run(
            [str(word) for word in command],
            capture_output=True, text=True, check=False, preexec_fn=_bind, **options,
        )  # fmt: skip
    except subprocess.SubprocessError:
        pytest.skip("runs as the superuser, whose capabilities cannot be dropped here")


@contextmanager
def closed(folder: Path, mode: int = 0) -> Iterator[Path]:
    """A folder that its owner may not search either."""
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    try:
        yield folder
    finally:
        folder.chmod(0o700)
