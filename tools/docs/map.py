"""The map of the package in ARCHITECTURE.md: its rooms from the top down, and what each imports.

``python -m tools.docs.map`` writes the order of the rows and their last column, which it reads off the
imports; what a room is for is written by hand and kept. ``--check`` writes nothing and exits with 1 if
the page differs.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
EVERYWHERE = "errors"  # imported by every room, so no arrow says it
_BLOCK = re.compile(r"(?<=<!-- map -->\n).*?(?=<!-- /map -->)", re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| ([^|\n]+) \|", re.MULTILINE)

Arrows = Mapping[str, frozenset[str]]


def rooms(package: Path) -> dict[str, list[Path]]:
    """The files of every room: a folder with an ``__init__.py``, or a file at the top of the package.

    ``__init__`` and ``__main__`` of the package itself are no rooms: they only lead into them.
    """
    folders = {p.parent.name: sorted(p.parent.rglob("*.py")) for p in package.glob("*/__init__.py")}
    return folders | {p.stem: [p] for p in package.glob("*.py") if not p.stem.startswith("__")}


def arrows(package: Path) -> Arrows:
    """The rooms that each room imports, also inside functions and for type checkers only."""
    found = rooms(package)
    start = f"{package.name}."
    imported = {
        room: {n for file in files for n in _imports(ast.parse(file.read_text("utf-8")))}
        for room, files in found.items()
    }
    return {
        room: frozenset(n.removeprefix(start).split(".")[0] for n in names if n.startswith(start))
        & found.keys() - {room}
        for room, names in imported.items()
    }


def _imports(tree: ast.Module) -> set[str]:
    """The dotted names that a module imports; those of ``from a import b`` as ``a.b``."""
    found: set[str] = set()
    left: list[ast.AST] = [*tree.body]
    while left:  # statements only: faster than `ast.walk`, which also visits expressions
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, part, ())
    return found


def from_the_top(imports: Arrows) -> list[str]:
    """The rooms in an order in which each stands above all that it imports.

    Raises:
        ValueError: some import each other in a circle.
    """
    placed: list[str] = []
    left = set(imports)
    while left:
        floor = sorted((room for room in left if not imports[room] & left), reverse=True)
        if not floor:
            raise ValueError(f"these rooms import each other: {', '.join(sorted(left))}")
        placed += floor
        left -= {*floor}
    return placed[::-1]


def drawn(imports: Arrows, purposes: Mapping[str, str]) -> str:
    """The table.

    Raises:
        ValueError: a room has no purpose, or a purpose no room.
    """
    if imports.keys() != purposes.keys():
        differing = ", ".join(sorted(imports.keys() ^ purposes.keys()))
        raise ValueError(f"rooms without a row in the map, or rows without a room: {differing}")
    lines = ["| room | what it does | → imports |", "|---|---|---|"]
    for room in from_the_top(imports):
        below = ", ".join(sorted(imports[room] - {EVERYWHERE}))
        lines.append(f"| `{room}` | {purposes[room]} | {f'→ {below}' if below else ''} |")
    return "\n".join(lines) + "\n"


def updated(page: str, imports: Arrows) -> str:
    """The page with its map drawn anew.

    Raises:
        ValueError: as `drawn`, or the page has no map.
    """
    found = _BLOCK.search(page)
    if found is None:
        raise ValueError("there is no <!-- map --> ... <!-- /map -->")
    return page.replace(found[0], drawn(imports, dict(_ROW.findall(found[0]))))


def main() -> int:
    """Write the map, or check it."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.map", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it differs")
    check = parser.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    try:
        new = updated(page, arrows(ROOT / "capsedge"))
    except ValueError as error:
        print(f"{PAGE.name}: {error}", file=sys.stderr)
        return 1
    if check and new != page:
        print(f"{PAGE.name}: the map is out of date: python -m tools.docs.map", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
