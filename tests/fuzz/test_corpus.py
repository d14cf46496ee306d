"""What once did harm stays harmless: every reader, its seeds, and inputs made to break it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.hostile import HOSTILE
from tests.fuzz.readers import READERS

WATCHDOG = 300  # seconds for all inputs of a reader, on a busy machine


def test_every_reader_has_hostile_inputs() -> None:
    assert HOSTILE.keys() == READERS.keys()


@pytest.mark.parametrize("name", READERS)
def test_hostile_inputs(name: str) -> None:
    """In a process of its own, which a crash ends, and whose memory is its own."""
    command = [sys.executable, "-m", "tests.fuzz.replay", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    failed = [line for line in done.stdout.splitlines() if "FAILED" in line]
    assert (done.returncode, failed) == (0, []), done.stderr[-2000:]
