"""The npm package reads ``spec/vectors`` as the vectors say, in one process of Node.js."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests import vectors

SCRIPT = Path(__file__).with_name("vectors.mjs")


def test_vectors(compiled: Path) -> None:
    shutil.copy(SCRIPT, compiled)
    done = subprocess.run(
        ["node", SCRIPT.name, str(vectors.FOLDER)],
        cwd=compiled, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *faults, summary = done.stdout.splitlines()
    assert not faults, "\n".join(faults)
    assert int(summary.split()[0]) > 400
