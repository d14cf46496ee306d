"""List every Python file of the package, by room: its purpose and its public names.

``python -m tools.docs.files`` prints the list; the site has it as a page (docs/contributing/files.md).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "capsedge"
_NOT_OURS = {"native", "node_modules", "web", "zoo"}


def markdown() -> str:
    """One table per folder, in the order of their names."""
    parts = []
    for folder, files in groupby(_files(), key=lambda path: path.parent):
        parts.append(
            f"## `{folder.relative_to(ROOT)}`\n\n| file | what it does | public names |\n|---|---|---|\n"
        )
        parts += [_row(path) for path in files]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def _files() -> Iterator[Path]:
    """The files, folder by folder; without those of packages that only import."""
    folders = sorted({path.parent for path in PACKAGE.rglob("*.py")})
    for folder in folders:
        if not _NOT_OURS & {*folder.relative_to(PACKAGE).parts}:
            yield from sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def _row(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    purpose = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    names = [
        node.name
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and not node.name.startswith("_")
    ]
    cells = (f"`{path.name}`", purpose, ", ".join(f"`{name}`" for name in names))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
