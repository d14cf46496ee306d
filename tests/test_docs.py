"""The commands of README and docs are run: each page in a folder of its own, from top to bottom.

A ``console`` block holds ``$ command`` lines and what they print (not compared); a ``python`` block is a
program. A block of any language after ``<!-- file: name -->`` is a file that later blocks use; those of
another page are there after ``<!-- files: page -->``. A block that cannot run here comes after
``<!-- not run: reason -->``. On Linux, programs that need no shell run in `tests.warm`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from capsedge.cli import _run, app
from capsedge.errors import CapsedgeError
from capsedge.runtime.zoo import zoo_model
from tests.conftest import ROOT
from tests.warm import SECONDS, warm

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINKED = [*PAGES, *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "SECURITY"))]
FENCE = re.compile(
    r"(?:<!-- (?:not run: (?P<reason>[^>]+?)|file: (?P<file>\S+)|files: (?P<files>\S+)) -->\n+)?"
    r"^```(?P<language>[a-z+]+)\n"
    r"(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    reason: str | None
    file: str | None
    files: str | None

    @property
    def runs(self) -> bool:
        """Whether it is a program, here or elsewhere."""
        return self.language in ("console", "python", "bash", "sh") and not self.file


def blocks(page: Path) -> list[Block]:
    return [
        Block(m["language"], m["body"], m["reason"], m["file"], m["files"])
        for m in FENCE.finditer(page.read_text())
    ]


def commands(body: str) -> list[str]:
    """The ``$`` lines of a console block, with their continuations."""
    joined = body.replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


Run = Callable[[list[str], Path], "subprocess.CompletedProcess[str]"]
SHELL = set("|&;<>$`*?(){}#~\n")


def program(command: str) -> list[str]:
    """The words of a command of this package; others, and those that need a shell, go to bash."""
    if command.startswith("capsedge ") and not SHELL & set(command):
        return shlex.split(command)
    return ["bash", "-ec", command]


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Runs a program in a folder."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}

    def fresh(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )

    if sys.platform != "linux":
        yield fresh
        return
    with warm(environment) as server:
        yield lambda words, folder: (fresh if words[0] == "bash" else server.run)(words, folder)


def _steps(page: Path, folder: Path) -> Iterator[list[str]]:
    """The programs of a page, each after the files that it uses were put in the folder."""
    found = blocks(page)
    assert not [b for b in found if b.language in ("bash", "sh")], (
        "write console blocks: '$ command'"
    )
    (folder / "capsedge").symlink_to(ROOT / "capsedge")
    for block in found:
        for other in blocks(page.parent / block.files) if block.files else [block]:
            if other.file:
                (folder / other.file).write_text(other.body)
        if block.reason or not block.runs:
            continue
        if block.language == "console":
            steps = [program(c) for c in commands(block.body)]
            assert steps, f"a console block without '$ command':\n{block.body}"
            yield from steps
        else:
            yield [sys.executable, "-c", block.body]


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_page_runs(page: Path, tmp_path: Path, run: Run) -> None:
    ran = 0
    for step in _steps(page, tmp_path):
        done = run(step, tmp_path)
        assert done.returncode == 0, (
            f"{shlex.join(step)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        ran += 1
    if not ran:
        pytest.skip("nothing on this page can run here")


def _parse(words: list[str]) -> None:
    """Parse a command line, as far as the verb's own code, which is not called."""
    context, command, rest = click.Context(app), app, words[1:]
    while isinstance(command, click.Group):
        _, command, rest = command.resolve_command(context, rest)
    command.make_context(command.name, rest)


def test_programs_are_understood() -> None:
    """Every command and every program of every page, also those that cannot run here."""
    failed, count = [], 0
    for page in PAGES:
        for block in blocks(page):
            try:
                if block.language == "python":
                    compile(block.body, "<block>", "exec")
                    count += 1
                lines = commands(block.body) if block.language == "console" else []
                for line in lines:
                    if line.startswith("capsedge ") and not line.startswith("capsedge -"):
                        words = shlex.split(line, comments=True)
                        ends = [k for k, word in enumerate(words) if set("|&;<>") & set(word)]
                        _parse(words[: min(ends, default=None)])
                        count += 1
            except (CapsedgeError, SyntaxError, click.ClickException) as error:
                failed.append(f"{page.relative_to(ROOT)}: {block.body}{error}")
    assert failed == []
    assert count > 150


@pytest.mark.thorough
def test_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Its file is at hand already; what makes, proves and measures it runs in `test_page_runs`."""
    monkeypatch.chdir(tmp_path)
    ran = []
    for words in _steps(ROOT / "README.md", tmp_path):
        if words[1] == "export":
            shutil.copy(zoo_model("digits-dynamic"), words[-1])
        elif words[1] in ("infer", "doctor"):
            monkeypatch.setattr(sys, "argv", words)
            assert _run() == 0, f"{shlex.join(words)}\n{capsys.readouterr().err}"
        elif words[:2] == [sys.executable, "-c"]:
            exec(words[2], {"__name__": "__main__"})
        ran.append(words[1])
    assert ran == ["export", "verify", "infer", "profile", "doctor", "-c"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["capsedge", "inspect", "missing.onnx"], 2, "missing.onnx"),
        ([sys.executable, "-c", "import sys; sys.exit(3)"], 3, ""),
        ([sys.executable, "-c", "open('here', 'w').close(); 1 / 0"], 1, "ZeroDivisionError"),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], -9, ""),
    ],
)
def test_a_failing_program_is_noticed(
    words: list[str], code: int, says: str, tmp_path: Path, run: Run
) -> None:
    done = run(words, tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert (tmp_path / "here").exists() == ("here" in words[-1])


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in LINKED
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
