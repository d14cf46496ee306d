"""What ARCHITECTURE.md and the pages for contributors say of the repository is so."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.docs import map as rooms_map

PACKAGE = ROOT / "capsedge"
PAGES = (
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / ".github/PULL_REQUEST_TEMPLATE.md",
    *sorted((ROOT / "docs/contributing").glob("*.md")),
    *sorted((ROOT / "docs/decisions").glob("*.md")),
)
SKIPPED = {"build", "dist", "node_modules", "__pycache__", "site"}  # git ignores them
HIDDEN = {".ci", ".github"}  # and yet looked into
PLACEHOLDERS = {"name", "NAME", "NAME_backend", "VERB"}  # of a recipe
SUFFIXES = ("py", "md", "cpp", "hpp", "h", "cu", "ts", "js", "json", "toml", "yml", "txt", "html")
PATH = re.compile(rf"[\w.-]+(?:/[\w.-]+)+/?|[\w-]+/|[\w.-]+\.(?:{'|'.join(SUFFIXES)})")
FAMILIES = {"dynamic", "em", "attention", "self_attention", "squash"}
MEMBERS = {"models/ops", "graph/bodies", "graph/fusion"}  # with one file for each of these


@cache
def ends() -> frozenset[str]:
    """Every way to name a file or a folder: its path, less any number of folders in front."""
    found: set[str] = set()
    for folder, below, files in os.walk(ROOT):
        below[:] = [n for n in below if n in HIDDEN or not (n in SKIPPED or n.startswith("."))]
        for name in (*below, *files):
            parts = (Path(folder) / name).relative_to(ROOT).parts
            found |= {"/".join(parts[k:]) for k in range(len(parts))}
    return frozenset(found)


def named(page: Path) -> Iterator[str]:
    """The files, folders and tests that a page names as code."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`\n]+)`", prose):
        path, _, test = code.partition("::")
        made = path.split("/")[0] in SKIPPED or Path(path).stem in PLACEHOLDERS
        if (PATH.fullmatch(path) or test) and not made:
            yield code


def exists(code: str) -> bool:
    """Whether there is such a file, folder or test; a module may be named without its suffix."""
    path, _, test = code.rstrip("/").partition("::")
    known = path in ends() or f"{path}.py" in ends()
    return known and (not test or f"def {test}(" in (ROOT / path).read_text("utf-8"))


def readmes() -> list[Path]:
    """Those of folders, under their real paths; that of the vectors names members of JSON."""
    found = {(ROOT / end).resolve() for end in ends() if end.endswith("/README.md")}
    return sorted(f for f in found if f.is_file() and f.parent.name != "vectors")


def test_the_map_is_that_of_the_imports() -> None:
    page = rooms_map.PAGE.read_text("utf-8")
    assert rooms_map.updated(page, rooms_map.arrows()) == page, "python -m tools.docs.map"


def test_a_circle_of_rooms_is_found() -> None:
    circle = {"a": frozenset({"b"}), "b": frozenset({"a"}), "c": frozenset[str]()}
    with pytest.raises(ValueError, match="import each other: a, b"):
        rooms_map.from_the_top(circle)


def test_what_the_pages_name_is_there() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {code}"
        for page in (*PAGES, *readmes())
        for code in named(page)
        if not exists(code)
    ]
    assert wrong == []


def test_links_of_the_folders_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in readmes()
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_two_files_share_a_name_only_by_the_two_rules() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        folder = file.parent.relative_to(PACKAGE).as_posix()
        if file.stem not in ("__init__", "__main__") and not folder.startswith("runtime/native"):
            places[file.stem].append(folder)
    wrong = {
        name: folders
        for name, folders in places.items()
        if len(folders) > 1
        and not (name in FAMILIES and set(folders) <= MEMBERS)
        and not (len(folders) == 2 and "cli" in folders)
    }
    assert wrong == {}
