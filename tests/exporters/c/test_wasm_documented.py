"""The commands and programs of docs/how-to/small-page.md."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capsedge.exporters.c import wasm
from tests.conftest import ROOT
from tests.test_docs import blocks, commands
from tests.web import browser
from tests.web import package as node_package

GUIDE = ROOT / "docs/how-to/small-page.md"
JAVASCRIPT = ROOT / "capsedge/exporters/c/javascript"


def files() -> dict[str, str]:
    return {block.file: block.body for block in blocks(GUIDE) if block.file}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled network of the guide, with its programs."""
    if not wasm.is_available():
        pytest.skip("needs ziglang: pip install 'capsedge[wasm]'")
    place = tmp_path_factory.mktemp("guide")
    lines = [
        line
        for block in blocks(GUIDE)
        if block.language == "console"
        for line in commands(block.body)
    ]
    for line in lines:
        if line.startswith("capsedge "):
            words = [sys.executable, "-m", *shlex.split(line)]
            subprocess.run(words, cwd=place, check=True, capture_output=True)
    for name, body in files().items():
        (place / name).write_text(body)
    shutil.copy(ROOT / "capsedge/zoo/samples/digit-7.png", place / "digit.png")
    return place


def printed(words: list[str], folder: Path) -> list[str]:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_the_program_in_node(folder: Path) -> None:
    if "Node.js" in node_package.missing():
        pytest.skip(node_package.missing())
    first, *ranking, last = printed(["node", "small.mjs"], folder)
    assert first == "digits fp32 1x1x28x28"
    assert re.fullmatch(r"1 [01]\.\d{3}", ranking[0])
    assert len(ranking) == 3
    assert last == "1 160"


@pytest.mark.thorough
def test_the_program_in_a_wasi_host(folder: Path) -> None:
    if importlib.util.find_spec("wasmtime") is None:
        pytest.skip("needs wasmtime: pip install wasmtime")
    (line,) = printed([sys.executable, "host.py"], folder)
    assert re.fullmatch(r"1 [01]\.\d+", line)


@pytest.mark.slow
def test_the_page_in_a_browser(folder: Path) -> None:
    if browser.missing():
        pytest.skip(browser.missing())
    (folder / "node_modules").symlink_to(node_package.WEB / "node_modules")
    assert re.fullmatch(r"7 0\.\d{4}", browser.text_of(folder, "small.html", "#answer"))


def test_every_function_is_in_the_guide() -> None:
    """What the types declare, and what a host calls."""
    guide = GUIDE.read_text()
    types = (JAVASCRIPT / "module.d.mts").read_text()
    network = re.search(r"class Network \{(.*?)^\}", types, re.DOTALL | re.MULTILINE)
    assert network is not None
    members = re.findall(r"^  (?:readonly )?(\w+)[(:]", network[1], re.MULTILINE)
    assert len(members) == 8
    for name in {*members} - {"constructor"}:
        assert re.search(rf"`?\.?{name}\b", guide), name
    for name in ("input", "pixels", "prepare", "run", "output", "poses", "reconstruct", "picture"):
        assert f"{name}(" in guide
