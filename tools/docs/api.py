"""The public names of the package as instructions for mkdocstrings, which fills in their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType

import capsedge

CHAPTERS = ("Functions", "Classes", "Errors", "Packages")


def markdown() -> str:
    """A chapter for each kind of name, in the order of ``capsedge.__all__``."""
    found: dict[str, list[str]] = {chapter: [] for chapter in CHAPTERS}
    for name in capsedge.__all__:
        if name != "__version__":
            found[_chapter(getattr(capsedge, name))].append(name)
    chapters = [_entries(title, found[title]) for title in CHAPTERS[:-1]]
    return "\n\n".join([*chapters, *map(_package, found["Packages"])])


def _chapter(value: object) -> str:
    if isinstance(value, ModuleType):
        return "Packages"
    if not inspect.isclass(value):
        return "Functions"
    return "Errors" if issubclass(value, (BaseException, capsedge.ExitCode)) else "Classes"


def _entries(title: str, names: Iterable[str], home: str = "capsedge") -> str:
    return "\n\n".join([f"## {title}", *(f"::: {home}.{name}" for name in names)])


def _package(name: str) -> str:
    """The public names of one of the packages that come along."""
    home = f"capsedge.{name}"
    return _entries(f"`{home}`", getattr(capsedge, name).__all__, home)
