"""The Python interpreters of this machine, by version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

NEWEST = (3, 14)


def supported() -> list[str]:
    """The versions that the package is made for, ``3.10`` to the newest."""
    oldest = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest is not None
    return [f"3.{minor}" for minor in range(int(oldest[1]), NEWEST[1] + 1)]


def here() -> dict[str, Path]:
    """The supported versions that this machine has, with that which runs the tests."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = {v: find(v) for v in supported() if v != own}
    return {own: Path(sys.executable)} | {v: p for v, p in others.items() if p is not None}


def find(version: str) -> Path | None:
    """An interpreter of a version: on the path, or of pyenv."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))]
    inside = [p for r in roots for p in sorted(r.glob(f"versions/{version}*/bin/python"))]
    command = shutil.which(f"python{version}")
    for candidate in [*inside, *([Path(command)] if command else [])]:
        said = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if said.stdout.strip() == version:
            return candidate
    return None
