"""Draw the map of the package in ARCHITECTURE.md: its rooms from the top down, and what each imports.

``python -m tools.docs.map`` writes the order of the rows and their last column, taken from the imports; the
purpose of each room is written by hand and kept. ``--check`` writes nothing and exits with 1 if the page
differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
EVERYWHERE = "errors"  # imported by every room, so no arrow shows it
_BLOCK = re.compile(r"(?<=<!-- map -->\n).*?(?=<!-- /map -->)", re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| ([^|\n]+) \|", re.MULTILINE)

Arrows = Mapping[str, frozenset[str]]


def arrows(package: str = "capsedge") -> Arrows:
    """The rooms that each room imports, including imports inside functions and those only for type checkers.

    A room is a folder or a file at the top of the package; ``__main__`` only starts them.
    """
    graph = grimp.build_graph(package, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules - {package, f"{package}.__main__"}:
        imported = {_room(name) for name in graph.find_modules_directly_imported_by(module)}
        found.setdefault(_room(module), set()).update(imported)
    return {room: frozenset(others - {room, ""}) for room, others in found.items()}


def _room(module: str) -> str:
    """The second part of a dotted name; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def from_the_top(imports: Arrows) -> list[str]:
    """The rooms in an order that puts each above all that it imports.

    Raises:
        ValueError: some rooms import each other in a circle.
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
    """The page with its map redrawn.

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
        new = updated(page, arrows())
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
