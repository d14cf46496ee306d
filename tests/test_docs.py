"""The commands of README and docs are run: each page in a folder of its own, from top to bottom.

A ``console`` block holds ``$ command`` lines and what they print (not compared); a ``python`` block is a
program, or, after ``<!-- file: name -->``, a file that later blocks use. A block that cannot run here comes
after ``<!-- not run: reason -->``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(
    r"(?:<!-- (?:not run: (?P<reason>[^>]+?)|file: (?P<file>\S+)) -->\n+)?"
    r"^```(?P<language>console|python|bash|sh)\n"
    r"(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    reason: str | None
    file: str | None


def blocks(page: Path) -> list[Block]:
    return [
        Block(m["language"], m["body"], m["reason"], m["file"])
        for m in FENCE.finditer(page.read_text())
    ]


def commands(body: str) -> list[str]:
    """The ``$`` lines of a console block, with their continuations."""
    joined = body.replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_page_runs(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    assert not [b for b in found if b.language in ("bash", "sh")], (
        "write console blocks: '$ command'"
    )
    (tmp_path / "capsedge").symlink_to(ROOT / "capsedge")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = 0
    for block in found:
        if block.reason:
            continue
        if block.file:
            (tmp_path / block.file).write_text(block.body)
            continue
        if block.language == "console":
            steps = [["bash", "-ec", c] for c in commands(block.body)]
            assert steps, f"a console block without '$ command':\n{block.body}"
        else:
            steps = [[sys.executable, "-c", block.body]]
        for step in steps:
            done = subprocess.run(
                step, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, (
                f"{shlex.join(step)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
            ran += 1
    if not ran:
        pytest.skip("nothing on this page can run here")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
