"""Tables: drawn on a terminal, plain aligned columns in a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a titled table to the standard output; empty column names print no heading."""
    if sys.stdout.isatty():
        _draw(title, columns, rows)
        return
    lines = [list(row) for row in rows]
    if any(columns):
        lines.insert(0, list(columns))
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))] if lines else []
    print(title)
    for line in lines:
        print("  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
    print()


def _draw(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    Console(highlight=False).print(table)


def _style(cell: str) -> str:
    return {"ok": "green", "missing": "yellow", "broken": "red", "over": "red"}.get(cell, "")
