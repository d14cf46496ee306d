"""The commands of docs/how-to/page.md, which need the built page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.page import browser
from tests.test_docs import blocks, commands


@pytest.mark.slow
def test_the_page_about_the_page(tmp_path: Path) -> None:
    if not (browser.SITE / "index.html").is_file():
        pytest.skip("needs the built page: make web")
    lines = [
        line
        for block in blocks(ROOT / "docs/how-to/page.md")
        if block.language == "console"
        for line in commands(block.body)
    ]
    assert sum("deploy web" in line for line in lines) == 2
    for line in lines:
        words = line.replace(" --open", "").split()
        subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, check=True)
    models = {path.name for path in (tmp_path / "page/models").glob("*.onnx")}
    assert models == {"net-1.onnx", "net-3.onnx"}
