"""How results show themselves: a line or three in a terminal, a small table in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from capsedge.runtime.files.text import printable

LINES = 3
_WIDTH = 110
_NAME = 48

# Colours are the page's own, so that light and dark themes both fit.
_BOX = "font-family:system-ui,sans-serif;font-size:0.9em;line-height:1.45;color:inherit"
_TABLE = "border-collapse:collapse;font-size:inherit;color:inherit;background:none;margin:0.3em 0"
_CELL = "text-align:left;padding:0.1em 1.2em 0.1em 0;border:0;background:none;color:inherit"
_HEAD = f"{_CELL};font-weight:normal;opacity:0.7"
_SCALE = "display:inline-block;width:8em;margin-right:0.6em"
_BAR = "display:inline-block;height:0.6em;background:currentColor;opacity:0.45"


@dataclass(frozen=True)
class Row:
    """A line of the table: what it is, its value, and a share from 0 to 1 that is drawn as a bar."""

    name: str
    value: str
    share: float | None = None


@dataclass(frozen=True)
class Summary:
    """What a result shows of itself. All texts are made harmless here.

    Attributes:
        title: the kind of result.
        lines: what matters most; at most three lines are shown.
        rows: the table of a notebook, below the first line.
    """

    title: str
    lines: Sequence[str]
    rows: Sequence[Row] = ()

    def text(self) -> str:
        """``<title line>``, with up to two more lines."""
        shown = [_cut(line, _WIDTH) for line in self.lines[:LINES]]
        return "<" + "\n  ".join([f"{self.title} {shown[0]}", *shown[1:]]) + ">"

    def html(self) -> str:
        """A piece of a page that needs nothing else, and escapes every text."""
        table = "".join(
            f'<tr><th style="{_HEAD}">{_escaped(row.name)}</th>'
            f'<td style="{_CELL}">{_bar(row.share)}{_escaped(row.value)}</td></tr>'
            for row in self.rows
        )
        head = f"<b>{_escaped(self.title)}</b> {_escaped(self.lines[0])}"
        table = f'<table style="{_TABLE}">{table}</table>' if table else ""
        return f'<div style="{_BOX}"><div>{head}</div>{table}</div>'


class Summarized(ABC):
    """A result with a short ``repr`` and a table in notebooks; a subclass says what they hold."""

    @abstractmethod
    def _summary(self) -> Summary:
        """What is shown."""

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


def short(name: object) -> str:
    """A name from a file, for one place in a line."""
    return _cut(str(name), _NAME)


def _cut(text: str, most: int) -> str:
    plain = printable(text)
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def _escaped(text: str) -> str:
    import html  # takes as long to import as the rest of this module

    return html.escape(printable(text))


def _bar(share: float | None) -> str:
    if share is None:
        return ""
    width = 100 * min(max(0.0, share), 1.0)  # NaN becomes 0
    return f'<span style="{_SCALE}"><span style="{_BAR};width:{width:.1f}%"></span></span>'
