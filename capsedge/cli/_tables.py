"""Tables: drawn on a terminal, plain aligned columns in a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from capsedge.runtime.files.text import printable

if TYPE_CHECKING:
    from rich.console import Console

SHORT = 16  # cells of up to this many characters are not broken over lines


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    essential: Sequence[str] = (),
) -> None:
    """Print a titled table to the standard output; empty column names print no heading.

    Args:
        title, columns, rows: the table.
        essential: columns that are shown where a terminal is too narrow for all.
    """
    title = printable(title)
    columns, rows = _printable(columns), [_printable(row) for row in rows]
    if sys.stdout.isatty():
        _draw(title, columns, rows, essential)
        return
    lines = [list(row) for row in rows]
    if any(columns):
        lines.insert(0, list(columns))
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))] if lines else []
    print(title)
    for line in lines:
        print("  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
    print()


def _printable(cells: Sequence[str]) -> list[str]:
    return [printable(cell) for cell in cells]


def _draw(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    essential: Sequence[str],
) -> None:
    """Draw the table. If it is too wide, draw its essential columns; if those are too wide as well, transpose
    the table, as many rows at a time as fit."""
    from rich.console import Console

    console = Console(highlight=False)
    if not rows or not any(columns) or _width([columns, *rows]) <= console.width:
        _grid(console, title, [columns, *rows])
        return
    kept = [k for k, name in enumerate(columns) if name in essential]
    narrow = [[line[k] for k in kept] for line in (columns, *rows)]
    if kept and _width(narrow) <= console.width:
        _grid(console, title, narrow)
        left_out = ", ".join(name for name in columns if name and name not in essential)
        console.print(
            f"Left out: {left_out}. Widen the terminal, or pipe the output.", markup=False
        )
        return
    while rows:
        count = 1
        while count < len(rows) and _width(_turned(columns, rows[: count + 1])) <= console.width:
            count += 1
        _grid(console, title, _turned(columns, rows[:count]))
        title, rows = "", rows[count:]


def _turned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    return list(zip(columns, *rows, strict=True))


def _width(lines: Sequence[Sequence[str]]) -> int:
    """The least number of characters that a table needs across, borders included."""
    return 1 + sum(3 + min(SHORT, max(map(len, column))) for column in zip(*lines, strict=True))


def _grid(console: Console, title: str, lines: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    heading, *rows = lines
    table = Table(
        title=Text(title) if title else None, title_justify="left", show_header=any(heading)
    )
    for name, *cells in zip(*lines, strict=True):
        short = max(map(len, [name, *cells])) <= SHORT
        table.add_column(Text(name), overflow="fold", no_wrap=short and any(heading))
    for row in rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    console.print(table)


def _style(cell: str) -> str:
    return {"ok": "green", "missing": "yellow", "broken": "red", "over": "red"}.get(cell, "")
