"""The npm package reads ``spec/vectors`` as the vectors say, in one process of Node.js."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import vectors

SCRIPT = Path(__file__).with_name("vectors.mjs")


def test_reading(compiled: Path) -> None:
    assert cases(compiled, "read") > 400


@pytest.mark.thorough
def test_predictions(compiled: Path) -> None:
    assert cases(compiled, "predict") > 60


def cases(compiled: Path, part: str) -> int:
    """Run a part; the number of its cases."""
    shutil.copy(SCRIPT, compiled)
    done = subprocess.run(
        ["node", SCRIPT.name, str(vectors.FOLDER), part],
        cwd=compiled, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *faults, summary = done.stdout.splitlines()
    assert not faults, "\n".join(faults)
    return int(summary.split()[0])
