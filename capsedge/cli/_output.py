"""Print results, errors, tables and progress.

All text for people is printed by ``say`` (results) or ``log`` (everything else), and tables by
``print_table``, because file names and names in files may contain terminal control codes.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from capsedge.cli import _memory
from capsedge.errors import CapsedgeError, EnvironmentProblem
from capsedge.runtime.files.text import printable
from capsedge.runtime.progress import Progress, silent

if TYPE_CHECKING:
    from rich.console import Console

    from capsedge.runtime.result_summary import Report, Table


# --- Printing and errors ---


def say(*lines: object) -> None:
    """Print results to standard output, one per line."""
    for line in lines or ("",):
        print(printable(line))


def log(*lines: object) -> None:
    """Print messages to standard error; standard output is for results."""
    print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)


_NAME = 10  # least width of a row's name


def print_report(
    report: Report,
    as_json: bool,
    *first: tuple[str, str],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Print a report and, to standard error, its warnings.

    Args:
        first: rows for people to read before those of the report.
        more: what the verb adds to the JSON document.
    """
    from capsedge.runtime.result_summary import warnings_of

    warn(*warnings_of(report))
    if as_json:
        print_json({**report.to_dict(), **(more or {})})
        return
    rows = [*first, *report.rows()]
    if report.heading:
        print_table(report.heading, ("", ""), rows)
    else:
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            say(f"{name:<{max(width, _NAME)}} {value}")
    for table in report.tables():
        show_table(table)
    for line in report.closing():
        say(line)


def show_table(table: Table) -> None:
    """Print a table and the notes below it."""
    if table.rows:
        print_table(table.title, table.columns, table.rows, table.essential)
    if table.notes:
        say(*table.notes, "")


def warn(*warnings: object) -> None:
    """Print warnings, one per line."""
    for warning in warnings:
        log(f"warning: {warning}")


def log_next(*commands: str) -> None:
    """Print the commands to run next."""
    log("next:", *(f"  {command}" for command in commands))


def print_json(document: Any) -> None:
    """Print a result as one JSON document."""
    import json  # `capsedge --version` does not need it

    print(json.dumps(document, indent=2, allow_nan=False))


def print_json_line(document: Any) -> None:
    """Print one of many results, which whoever reads them may need at once."""
    import json

    print(json.dumps(document, allow_nan=False), flush=True)


def show_status(text: str) -> None:
    """Write over the last line of the terminal; an empty text clears it."""
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{printable(text)[:width]}\x1b[K")
    sys.stderr.flush()


def require_packages(*packages: str, what: str, fix: str) -> None:
    """Refuse to start without the packages that a verb needs.

    Args:
        packages: names of modules.
        what: a sentence that states what needs them.
        fix: the command that installs them.

    Raises:
        EnvironmentProblem: a package is missing or cannot be imported, or ONNX Runtime is too old.
    """
    from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime

    for package in packages:
        try:
            import_onnxruntime() if package == "onnxruntime" else import_module(package)
        except ImportError as error:
            if _memory.is_cause(error):
                raise EnvironmentProblem(*_memory.EXPLANATION) from error
            raise EnvironmentProblem(what, f"{error}.", fix) from error


def report(error: CapsedgeError, as_json: bool) -> None:
    """Print an error as text (stderr), and also as JSON (stdout) if JSON was requested."""
    if as_json:
        document = {
            "error": error.what,
            "why": error.why,
            **({"details": list(error.details)} if error.details else {}),
            "fix": error.command,
            "exit_code": int(error.exit_code),
        }
        with suppress(OSError):  # printing itself may have failed
            print_json(document)
    log_error(error)


def log_error(error: CapsedgeError) -> None:
    """Print an error as text: what failed, why, details, and the fix, one line each."""
    what, *more = (part for part in (error.what, error.why, *error.details, error.command) if part)
    log(f"error: {what}", *more)


def report_bug(error: BaseException) -> None:
    """Print an unexpected error; its traceback only with CAPSEDGE_DEBUG=1."""
    if os.environ.get("CAPSEDGE_DEBUG") == "1":
        raise error
    log(
        f"error: capsedge failed unexpectedly: {type(error).__name__}: {error}",
        "This is a bug. Run again with CAPSEDGE_DEBUG=1 for the traceback and report both.",
    )


# --- Tables: drawn on a terminal, plain aligned columns in a pipe or a file ---

SHORT = 16  # cells of up to this many characters are not wrapped


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    essential: Sequence[str] = (),
) -> None:
    """Print a titled table to the standard output; empty column names print no heading.

    Args:
        title, columns, rows: the table.
        essential: columns to show if a terminal is too narrow for all.
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
    the table, as many rows at a time as fit.
    """
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
    """The minimum width of a table in characters, including borders."""
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


# --- Progress of long comparisons, on stderr ---

_SLOW = 5.0  # seconds without a line


def stage_reporter(as_json: bool) -> Progress:
    """Print a line for each stage of the work; nothing if the output is JSON."""
    return silent if as_json else lambda stage, *_: log(f"{stage} ...")


@contextmanager
def comparing() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line after every quarter of a comparison of many inputs or seconds."""
    if not sys.stderr.isatty():
        quarters, last = 0, time.monotonic()

        def line(_stage: str, done: int = 0, total: int | None = None) -> None:
            nonlocal quarters, last
            assert total is not None
            slow = time.monotonic() - last >= _SLOW and done < total
            if (total >= 1000 or slow) and 4 * done // total > quarters:
                quarters, last = 4 * done // total, time.monotonic()
                log(f"compared {done} of {total} inputs")

        yield line
        return
    with bar() as update:
        yield update


@contextmanager
def bar() -> Iterator[Progress]:
    """A progress bar on a terminal, with the remaining time if the total is known; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Display

    with Display(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda stage, done=0, total=None: bar.update(
            task, description=stage, completed=done, total=total
        )


@contextmanager
def stages() -> Iterator[Progress]:
    """A bar for every stage on a terminal; elsewhere a line at the end of long stages."""
    if not sys.stderr.isatty():

        def line(stage: str, done: int = 0, total: int | None = None) -> None:
            if stage == "candidates" or (done == total and done >= 1000):
                log(f"{stage}: {done}" + ("" if stage == "candidates" else " images"))

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Display

    tasks: dict[str, Any] = {}
    with Display(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:

        def update(stage: str, done: int = 0, total: int | None = None) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield update
