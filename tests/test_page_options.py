"""Pages name only verbs and options that the command line has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capsedge.cli import app
from tests.conftest import ROOT
from tools.docs.commands import verbs

VERBS: dict[str, Any] = dict(verbs(app))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Options of other programs that pages name alone, and whose they are.
OTHERS = {
    "benchmarks and tools": {"--kill", "--models", "--stage"},
    "docker": {"--format", "--read-only"},
    "git": {"--follow"},
    "pip": {"--require-hashes"},
    "venv": {"--system-site-packages"},
}
_CALL = re.compile(
    r"(?<!import)(?:^|[`$(;|&\s])capsedge ([a-z]+(?: [a-z]+)?)(?=[\s`|;&)]|$)((?:\s+[^\s`|;&)]+)*)"
)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def options_of(verb: str) -> set[str]:
    return {o for p in VERBS[verb].params for o in (*p.opts, *p.secondary_opts)} | {"--help"}


ALL = set().union(*map(options_of, VERBS)) | {
    "--version",
    "--install-completion",
    "--show-completion",
}


def code(page: Path) -> Iterator[str]:
    """Blocks and inline code; lines that a backslash continues are one."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"^```(?:console|bash|sh)\n(.*?)^```", text, re.M | re.S):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def faults(page: Path) -> Iterator[str]:
    for line in code(page):
        for words, rest in _CALL.findall(line):
            verb = next((v for v in (words, words.split()[0]) if v in VERBS), None)
            group = any(v.startswith(f"{words.split()[0]} ") for v in VERBS)
            if verb is None and not group:
                yield f"there is no `capsedge {words}`"
            for option in _OPTION.findall(rest) if verb else ():
                if option not in options_of(verb):
                    yield f"`capsedge {verb}` has no {option}"
    text = page.read_text(encoding="utf-8")
    own = options_of(page.stem) if page.parent.name == "how-to" and page.stem in VERBS else None
    for row in re.findall(r"^\| (`--[^|]*)\|", text, re.M):
        for option in _OPTION.findall(row):
            if option not in (own or ALL):
                yield f"a table has {option}"
    for option in re.findall(r"`(--[a-z][a-z-]+)\b[^`]*`", text):
        if option not in ALL and not any(option in known for known in OTHERS.values()):
            yield f"no verb has {option}"


def test_pages_name_what_the_command_line_has() -> None:
    wrong = {
        f"{page.relative_to(ROOT)}: {fault}"
        for page in PAGES
        if "benchmarks" not in page.parts and "contributing" not in page.parts
        for fault in faults(page)
    }
    assert not wrong, "\n".join(sorted(wrong))
