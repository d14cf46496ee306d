"""List the package's public names as instructions for mkdocstrings, which fills in their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType

import capsedge
from capsedge.options import Declared, bounds, declared, options_of
from tools.docs.commands import prose

CHAPTERS = ("Functions", "Classes", "Errors", "Packages")


def markdown() -> str:
    """Write a chapter for each kind of name, in the order of ``capsedge.__all__``."""
    found: dict[str, list[str]] = {chapter: [] for chapter in CHAPTERS}
    for name in capsedge.__all__:
        if name != "__version__":
            found[_chapter(getattr(capsedge, name))].append(name)
    chapters = [_entries(title, found[title]) for title in CHAPTERS[:-1]]
    chapters.insert(1, _options(found["Functions"]))
    return "\n\n".join([*chapters, *map(_package, found["Packages"])])


def _chapter(value: object) -> str:
    if isinstance(value, ModuleType):
        return "Packages"
    if not inspect.isclass(value):
        return "Functions"
    return "Errors" if issubclass(value, (BaseException, capsedge.ExitCode)) else "Classes"


def _options(names: Iterable[str]) -> str:
    """The options of every function, which are keyword arguments, as declared."""
    parts = ["## Options"]
    for name in names:
        kinds = options_of(getattr(capsedge, name))
        rows = [
            f"| `{each.name}` | {_command_line(each)} | {_limits(each)} | `{each.default!r}` | "
            f"{prose(each.option.help)} |"
            for kind in kinds
            for each in declared(kind)
        ]
        head = ["| keyword | command line | values | default | |", "|---|---|---|---|---|"]
        if rows:
            anchor = f"### Options of `capsedge.{name}` {{ #options-of-{name} }}"
            parts += [anchor, "\n".join([*head, *rows])]
    return "\n\n".join(parts)


def _command_line(each: Declared) -> str:
    return ", ".join(f"`{word}`" for word in each.option.names)


def _limits(each: Declared) -> str:
    """The values that an option takes, in words."""
    if each.option.choices:
        found = ", ".join(f"`{word}`" for word in each.option.choices)
    else:
        low, high = each.option.min, each.option.max
        numbers = "" if low is None and high is None else f" {bounds(low, high)}"
        found = f"{getattr(each.kind, '__name__', each.kind)}{numbers}"
    return f"tuple of {found}" if each.several else f"{found}, or None" if each.optional else found


def _entries(title: str, names: Iterable[str], home: str = "capsedge") -> str:
    return "\n\n".join([f"## {title}", *(f"::: {home}.{name}" for name in names)])


def _package(name: str) -> str:
    """The public names of one of the accompanying packages."""
    home = f"capsedge.{name}"
    return _entries(f"`{home}`", getattr(capsedge, name).__all__, home)
