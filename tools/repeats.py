"""List lines of the package that stand in several places, so that one piece of code can serve.

python -m tools.repeats            # runs of six lines or more
python -m tools.repeats --least 10

Lines count as code alone: without blanks, comments, docstrings, imports and lone brackets. Equal
means equal to the letter, apart from the indentation. Generated files are left out.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "capsedge"
LEAST: Final = 6  # lines
GENERATED: Final = ("capsedge/keywords.py",)

_TEXT = re.compile(r'(?<=\n)[ \t]*"""[\s\S]*?"""')
_IMPORT = re.compile(r"(?<=\n)[ \t]*(?:from [\w.]+ )?import (?:\([^)]*\)|[^\n(]*)")
_THIN = re.compile(r"[\s()\[\]{},:]*(?:#.*)?|(?:else|try|finally):|return|pass|continue|break")

Lines = Sequence[tuple[int, str]]


class Repeat(NamedTuple):
    """Lines that stand in two places; the first is the earlier one."""

    first: str
    first_line: int
    other: str
    other_line: int
    lines: int

    def __str__(self) -> str:
        return (
            f"{self.lines:4} lines: {self.first}:{self.first_line} ~ {self.other}:{self.other_line}"
        )


def code(text: str) -> Lines:
    """The lines of code that count, with their numbers."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    plain = _IMPORT.sub(blank, _TEXT.sub(blank, f"\n{text}"))
    numbered = enumerate((line.strip() for line in plain.split("\n")), start=0)
    return [(number, line) for number, line in numbered if not _THIN.fullmatch(line)]


def files(package: Path = PACKAGE) -> dict[str, Lines]:
    """The code of every module that is written by hand, by its path."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package.parent).as_posix()
        if name not in GENERATED and "node_modules" not in path.parts:
            found[name] = code(path.read_text(encoding="utf-8"))
    return found


def repeats(modules: Mapping[str, Lines], least: int = LEAST) -> Iterator[Repeat]:
    """Every longest run of lines that stood before, in another place or further up in the same file."""
    known: dict[tuple[str, ...], tuple[str, int]] = {}
    for name, lines in modules.items():
        at = 0
        while at + least <= len(lines):
            first = known.setdefault(_window(lines, at, least), (name, at))
            if first == (name, at) or (first[0] == name and first[1] + least > at):
                at += 1
                continue
            before, size = modules[first[0]], least
            while (
                at + size < len(lines)
                and first[1] + size < len(before)
                and lines[at + size][1] == before[first[1] + size][1]
            ):
                size += 1
            yield Repeat(first[0], before[first[1]][0], name, lines[at][0], size)
            at += size


def _window(lines: Lines, at: int, size: int) -> tuple[str, ...]:
    return tuple(line for _, line in lines[at : at + size])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the runs, the longest first."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.repeats", description="Lines that repeat."
    )
    parser.add_argument("--least", type=int, default=LEAST, help="lines that make a run")
    found = list(repeats(files(), parser.parse_args(arguments).least))
    for each in sorted(found, key=lambda each: -each.lines):
        print(each)
    print(f"{len(found)} runs, {sum(each.lines for each in found)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
