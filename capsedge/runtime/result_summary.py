"""Display results in terminals and notebooks, and draw charts if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import check_writable, write_bytes

# --- Results: a few lines in a terminal, a small table in a notebook ---

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
class Table:
    """A title, the column headings, and the rows.

    Attributes:
        essential: the columns that a narrow terminal shows; empty for all.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    essential: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Summary:
    """The summary that a result displays. All texts are made harmless here.

    Attributes:
        title: the kind of result.
        lines: what matters most; at most three lines are shown.
        rows: the table of a notebook, below the first line.
        tables: more tables of a notebook.
        closing: sentences at its end.
    """

    title: str
    lines: Sequence[str]
    rows: Sequence[Row] = ()
    tables: Sequence[Table] = ()
    closing: Sequence[str] = ()

    def text(self) -> str:
        """``<title line>``, with up to two more lines."""
        shown = [_cut(line, _WIDTH) for line in self.lines[:LINES]]
        return "<" + "\n  ".join([f"{self.title} {shown[0]}", *shown[1:]]) + ">"

    def html(self) -> str:
        """A self-contained HTML fragment in which all text is escaped."""
        table = "".join(
            f'<tr><th style="{_HEAD}">{_escaped(row.name)}</th>'
            f'<td style="{_CELL}">{_bar(row.share)}{_escaped(row.value)}</td></tr>'
            for row in self.rows
        )
        head = f"<b>{_escaped(self.title)}</b> {_escaped(self.lines[0])}"
        table = f'<table style="{_TABLE}">{table}</table>' if table else ""
        more = "".join(_html_table(table) for table in self.tables if table.rows or table.notes)
        more += "".join(f"<div>{_escaped(line)}</div>" for line in self.closing)
        return f'<div style="{_BOX}"><div>{head}</div>{table}{more}</div>'


class Summarized(ABC):
    """A result with a short ``repr`` and a table in notebooks; subclasses provide the content."""

    @abstractmethod
    def _summary(self) -> Summary:
        """What is shown."""

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


class Report(Summarized):
    """The result of a verb. Its rows and tables are what the command line prints and a notebook shows.

    Attributes:
        heading: the title of the rows; without one, the command line prints them as plain lines.
    """

    heading: ClassVar[str] = ""

    @abstractmethod
    def _lines(self) -> Sequence[str]:
        """What matters most, for ``repr``."""

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """Facts about the result: the name and the value of each."""

    def tables(self) -> list[Table]:
        """What is printed below the rows."""
        return []

    def closing(self) -> list[str]:
        """The last lines: what failed, and the verdict."""
        return []

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""

    def _summary(self) -> Summary:
        rows = [Row(name, value) for name, value in self.rows()]
        rows += [Row("warning", warning) for warning in warnings_of(self)]
        return Summary(type(self).__name__, self._lines(), rows, self.tables(), self.closing())


def outcome_word(passed: bool) -> str:
    """The outcome of a check, in a word."""
    return "PASSED" if passed else "FAILED"


def warnings_of(report: Report) -> tuple[str, ...]:
    """The warnings of a report; none of a kind that has none."""
    return tuple(getattr(report, "warnings", ()))


def shortened_name(name: object) -> str:
    """A name from a file, for one place in a line."""
    return _cut(str(name), _NAME)


def _cut(text: str, most: int) -> str:
    plain = printable(text)
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def _escaped(text: str) -> str:
    import html  # takes as long to import as the rest of this module

    return html.escape(printable(text))


def _html_table(table: Table) -> str:
    lines = [(_HEAD, table.columns), *((_CELL, row) for row in table.rows)]
    cells = (
        "".join(f'<td style="{style}">{_escaped(cell)}</td>' for cell in line)
        for style, line in lines
        if any(line)
    )
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    notes = "".join(f"<div>{_escaped(note)}</div>" for note in table.notes)
    return f'<div>{_escaped(table.title)}</div><table style="{_TABLE}">{body}</table>{notes}'


def _bar(share: float | None) -> str:
    if share is None:
        return ""
    width = 100 * min(max(0.0, share), 1.0)  # NaN becomes 0
    return f'<span style="{_SCALE}"><span style="{_BAR};width:{width:.1f}%"></span></span>'


# --- Charts by matplotlib ---

DPI = 300  # resolution of every PNG, as needed for print
TIP = "tip:"  # before the text that `inline_svg` shows where the pointer rests, in an artist's gid


def check_chart(path: Path) -> None:
    """Check before long work that a chart can be drawn and written."""
    check_writable(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentProblem(
            "matplotlib is not installed.",
            "It draws the charts; everything else works without it.",
            "pip install 'capsedge[profile]'",
        )


def check_picture(path: Path) -> None:
    """Check before long work that a PNG or an SVG can be drawn and written."""
    if path.suffix not in (".png", ".svg"):
        raise UsageError(
            f"{path} is neither a .png nor an .svg file.", "", "For example: --picture front.svg."
        )
    check_chart(path)


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure with its size in inches, not bound to a display."""
    import matplotlib.figure

    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def escape_formulas(text: str) -> str:
    """A name escaped for matplotlib, which reads dollar signs as formulas."""
    return printable(text).replace("$", r"\$")


def distinct_names(paths: Sequence[Path], suffix: bool = True) -> list[str]:
    """The name of each file, with as many of its folders as tell it from the others of the same name.

    Folders in which all files of a name are, and the same file given twice, are not told apart.

    Args:
        suffix: whether the names keep their suffixes.
    """
    parts = [
        (path.absolute() if suffix else path.absolute().with_suffix("")).parts for path in paths
    ]
    names = []
    for mine in parts:
        others = [each for each in parts if each != mine]
        count = 1
        while count < len(mine) and any(each[-count:] == mine[-count:] for each in others):
            count += 1
        names.append(Path(*mine[-count:]).as_posix())
    return names


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as SVG if its name says so, else as PNG; raises as ``files.write_bytes`` does."""
    buffer = io.BytesIO()
    if path.suffix == ".svg":
        figure.savefig(buffer, format="svg")
        write_bytes(path, buffer.getvalue())
    else:
        figure.savefig(buffer, format="png", dpi=DPI)
        write_bytes(path, with_palette(buffer.getvalue()))


def inline_svg(figure: Any, label: str) -> str:
    """A figure as an ``<svg>`` element for an HTML page; the same figure gives the same text.

    Black in the figure becomes the colour of the page's text, and letters use its font; there is no
    background, no link and no address. Charts must keep within their axes: nothing is clipped.

    Args:
        figure: a matplotlib figure; texts of gids that begin with `TIP` become tooltips.
        label: the text for screen readers.
    """
    import matplotlib

    buffer = io.BytesIO()
    unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    style = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "capsedge"})
    with style, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks: they stay text
        figure.savefig(buffer, format="svg", transparent=True, metadata=unsaid)
    root = ElementTree.fromstring(buffer.getvalue())
    _for_a_page(root)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


_FONT = re.compile(r"'DejaVu Sans'[^;]*")
_SPACE, _LETTER = re.compile(r"\s+"), re.compile(r" ?([A-Za-z]) ?")
_DIGITS = re.compile(r"(\.\d)\d+")  # a tenth of a pixel is enough


def _for_a_page(element: ElementTree.Element) -> None:
    """Omits what the page provides or does not need: style sheets, namespaces, names, digits."""
    for child in list(element):
        _for_a_page(child)
        if child.tag in ("style", "clipPath"):
            element.remove(child)
    element.tag = element.tag.rpartition("}")[2]
    attributes, element.attrib = element.attrib, {}
    for key, value in attributes.items():
        name = key.rpartition("}")[2]
        if name == "style":
            value = _FONT.sub("system-ui,sans-serif", value.replace("#000000", "currentColor"))
            value = value.replace(": ", ":").replace("; ", ";")
        elif name in ("d", "x", "y", "transform"):
            value = _DIGITS.sub(r"\1", _SPACE.sub(" ", value).strip())
            value = _LETTER.sub(r"\1", value) if name == "d" else value
        elif name == "id" and value.startswith(TIP):
            tip = ElementTree.Element("title")
            tip.text = value.removeprefix(TIP)
            element.insert(0, tip)
        unused = name == "clip-path" or (name == "id" and element.tag == "g")
        if not unused and not value.startswith("rotate(-0 "):
            element.set(name, value)
    marks = {child.attrib.get("style") for child in element if child.tag == "use"}
    if len(marks) == 1 and len(element) > 1:  # of one line, which then states its style once
        element.set("style", str(marks.pop()))
        for child in element:
            child.attrib.pop("style")
    element.text = element.text if (element.text or "").strip() else None
    element.tail = None


def with_palette(png: bytes) -> bytes:
    """The PNG of a chart with 64 colours, which are enough for lines and areas, at a quarter of the size."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as drawn:
        small = drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, format="png", optimize=True, dpi=(DPI, DPI))
    return buffer.getvalue()
