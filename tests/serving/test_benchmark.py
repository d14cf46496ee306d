"""`benchmarks.serving` from end to end, with few clients and for a moment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving_page import render
from tests.conftest import ROOT
from tests.serving.running import SECONDS

pytestmark = pytest.mark.slow
pytest.importorskip("fastapi", reason="FastAPI is not installed: make bench-serve")


def test_all_servers_give_the_right_answers(tmp_path: Path) -> None:
    example = [] if shutil.which("c++") else ["--no-example"]
    output = tmp_path / "serving.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving", "digits-em", "--clients", "1,12", "--seconds", "0.5",
         "--rounds", "1", "--no-faults", *example, "-o", str(output)],
        cwd=ROOT, capture_output=True, text=True, timeout=3 * SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong or lost answers: 0" in done.stdout
    document = json.loads(output.read_text())
    (model,) = document["models"]
    servers = ["capsedge", "capsedge --batch 1", "FastAPI", *([] if example else ["C++ example"])]
    wanted = [("session alone", 1), *((name, n) for n in (1, 12) for name in servers)]
    assert [(row["server"], row["clients"]) for row in model["rows"]] == wanted
    for row in model["rows"]:
        assert row["requests"] > 0, row
        assert row["errors"] == row["wrong"] == row["lost"] == 0, row
    assert "| FastAPI | 12 |" in render(document)
