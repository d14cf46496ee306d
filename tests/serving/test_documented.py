"""The programs and settings of docs/how-to/serve.md, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.serving.running import SECONDS, served

pytestmark = pytest.mark.thorough
PAGE = (ROOT / "docs/how-to/serve.md").read_text(encoding="utf-8")
IMAGE = "capsedge/zoo/samples/digit-7.png"


def run(folder: Path, program: str, *words: str) -> str:
    """What a program of the page prints, beside the package's folder as in a checkout."""
    found = re.search(
        rf"<!-- file: {re.escape(program)} -->\n```python\n(.*?)^```$", PAGE, re.M | re.S
    )
    assert found is not None
    (folder / program).write_text(found[1], encoding="utf-8")
    (folder / "capsedge").symlink_to(ROOT / "capsedge")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, program, *words], cwd=folder, env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_over_http(tmp_path: Path) -> None:
    assert run(tmp_path, "ask.py") == "7\n"


def test_over_grpc(tmp_path: Path) -> None:
    with served("digits-dynamic") as server:
        assert run(tmp_path, "ask_grpc.py", server.grpc, "digits-dynamic", IMAGE) == "7\n"
