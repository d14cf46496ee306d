"""Define what all pictures share: style, data, a one-sentence description; save them as PNG, SVG or HTML."""

from __future__ import annotations

import html
import importlib.util
import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import check_writable, write_bytes, write_text
from capsedge.runtime.result_summary import DPI, new_figure, with_palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# --- Style: colours that colour-blind readers can distinguish, sizes, sheets of tiles ---

Pixels = NDArray[np.uint8]

# From the palette of Okabe and Ito.
TEXT, SOFT, LINE = "#1b1f24", "#57606a", "#d0d7de"
BEST, OTHER, GOOD = "#0072B2", "#b6bcc4", "#009E73"
BAD = "#C1121F"  # a red darker than GOOD, for readers who cannot distinguish the hues
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A8F98")
_TILE = 0.82  # inches
_GAP = 0.08  # between tiles, in tiles
_TEXT_LINE = 0.2  # height of a line of text beneath a tile, in tiles
_NAME = 8.5  # points, of a row's name
_LONGEST = 11  # letters beneath a tile


@dataclass(frozen=True, eq=False)
class Tile:
    """A small picture on a figure's sheet.

    Attributes:
        pixels: ``[H, W, 3]``.
        text: caption beneath it; may have several lines.
        frame: colour of a frame; empty if there is none.
    """

    pixels: Pixels
    text: str = ""
    frame: str = ""


def check_matplotlib() -> None:
    """Raise an EnvironmentProblem if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentProblem(
            "matplotlib is not installed.",
            "It draws the pictures; everything else works without it.",
            "pip install 'capsedge[viz]'",
        )


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw with matplotlib's defaults, whatever the user's settings, and do not parse names as formulas."""
    import matplotlib
    import matplotlib.style

    # Text stays text in SVG, so it can be searched and read aloud; tiles keep their own pixels.
    settings: Any = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "capsedge",
        "image.composite_image": False,
    }
    with matplotlib.style.context("default"), matplotlib.rc_context(settings):
        yield


def blank(width: float, height: float, title: str, model: str) -> Figure:
    """An empty figure with a title, its size given in inches."""
    figure: Figure = new_figure(width, height)
    figure.set_facecolor("white")
    figure.suptitle(printable(f"{title} — {model}"), fontsize=11, color=TEXT)
    return figure


def label_axes(axis: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Give a chart its titles and remove clutter."""
    axis.set_title(printable(title), fontsize=9, color=TEXT, loc="left")
    axis.set_xlabel(printable(x), fontsize=8, color=SOFT)
    axis.set_ylabel(printable(y), fontsize=8, color=SOFT)
    axis.tick_params(labelsize=8, colors=SOFT)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LINE)


def colour_bar(figure: Any, image: Any, axes: Any, label: str) -> None:
    """Add a colour bar to the right of an image's axes."""
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label(printable(label), fontsize=8, color=SOFT)
    bar.ax.tick_params(labelsize=7, colors=SOFT)
    bar.outline.set_visible(False)


def fit(text: str, most: int = _LONGEST) -> str:
    """A name shortened to fit and safe to draw; its end is kept, since names often differ there."""
    tail = (most - 1) // 2
    short = text if len(text) <= most else f"{text[: most - 1 - tail]}…{text[-tail:]}"
    return printable(short)


def sheet_size(rows: Sequence[Sequence[Tile]], names: Sequence[str] = ()) -> tuple[float, float]:
    """Width and height in inches of a sheet of tiles with row names."""
    width, _, height = _steps(rows)
    columns = max(map(len, rows))
    margin = max(1.3, _room(names) * _TILE + 0.3)
    return columns * width * _TILE + margin, len(rows) * height * _TILE + 0.9


def draw_sheet(
    axis: Any,
    rows: Sequence[Sequence[Tile]],
    columns: Sequence[str] = (),
    names: Sequence[str] = (),
) -> None:
    """Draw rows of equally sized tiles.

    Args:
        axis: matplotlib's; its images are the tiles, row by row.
        names: names of the rows, on their left.
    """
    step, tall, height = _steps(rows)
    for r, row in enumerate(rows):
        for c, tile in enumerate(row):
            x, y = c * step, r * height
            axis.imshow(tile.pixels, extent=(x, x + 1, y + tall, y), interpolation="none")
            if tile.frame:
                frame = axis.add_patch(_box(x, y, tall))
                frame.set_edgecolor(tile.frame)
            for n, line in enumerate(tile.text.split("\n") if tile.text else ()):
                top = y + tall + 0.04 + n * _TEXT_LINE
                axis.text(x + 0.5, top, line, fontsize=8, ha="center", va="top", color=TEXT)
    for c, heading in enumerate(columns):
        axis.text(c * step + 0.5, -0.08, heading, fontsize=8.5, ha="center", color=TEXT)
    for r, name in enumerate(names):
        axis.text(-0.1, r * height + tall / 2, name, fontsize=_NAME, ha="right", va="center")
    axis.set_xlim(-_room(names), max(map(len, rows)) * step - _GAP)
    axis.set_ylim(len(rows) * height - _GAP, -0.1)
    axis.set_aspect("equal")
    axis.axis("off")


def _room(names: Sequence[str]) -> float:
    """The width of the row names, in tiles."""
    from matplotlib.textpath import TextPath

    widths = [TextPath((0, 0), name, size=_NAME).get_extents().width for name in names if name]
    return 0.2 + 1.1 * max(widths) / 72 / _TILE if widths else 0.0


def _steps(rows: Sequence[Sequence[Tile]]) -> tuple[float, float, float]:
    """Tile pitch, tile height and row pitch, where a tile is 1 wide."""
    tiles = [tile for row in rows for tile in row]
    tall = tiles[0].pixels.shape[0] / tiles[0].pixels.shape[1]
    lines = max(tile.text.count("\n") + 1 if tile.text else 0 for tile in tiles)
    return 1 + _GAP, tall, tall + lines * _TEXT_LINE + _GAP


def _box(x: float, y: float, tall: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, tall, fill=False, linewidth=2)


# --- The base class ---


@dataclass(frozen=True, eq=False, kw_only=True)
class Picture(ABC):
    """The data of a picture.

    Attributes:
        model: name of the file that computed them.
        notes: what the picture omits.
    """

    model: str
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The heading, without the model."""

    @property
    @abstractmethod
    def description(self) -> str:
        """A sentence for readers who cannot see the picture."""

    def draw(self) -> Figure:
        """The picture as a new figure."""
        check_matplotlib()
        with figure_style():
            return self._figure()

    @abstractmethod
    def _figure(self) -> Figure:
        """The picture as a new figure."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """The numbers that are drawn, as JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Title, description, notes and data as JSON values."""
        return {
            "title": self.title,
            "description": self.description,
            "notes": list(self.notes),
            **self.numbers(),
        }


def rounded_lists(values: NDArray[Any]) -> Any:
    """An array as nested lists of numbers with six decimal places."""
    return np.round(values.astype(np.float64), 6).tolist()


SUFFIXES = (".png", ".svg", ".html")
_STYLE = """
body{margin:0;background:#fff;color:#1b1f24;font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:1.5rem;overflow-wrap:anywhere}h2{font-size:1.15rem}
figure{margin:0 0 32px;padding:12px;border:1px solid #d0d7de;border-radius:8px}
figcaption{color:#57606a;overflow-wrap:anywhere}svg{max-width:100%;height:auto}
"""


def check_picture(path: Path | str, pictures: int = 1) -> None:
    """Check, before any long computation, that pictures can be drawn and written."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"Cannot write {path}.",
            "Pictures are PNG, SVG or HTML files.",
            "Name it *.png, *.svg or *.html.",
        )
    if pictures > 1 and suffix != ".html":
        raise UsageError(
            f"Cannot write {pictures} pictures to {path}.",
            f"A {suffix[1:].upper()} file holds one.",
            "Name it *.html, or choose one picture with --what.",
        )
    check_writable(path)
    check_matplotlib()


def save(pictures: Sequence[Picture], path: Path | str) -> str:
    """Write pictures to a PNG, SVG or HTML page; returns the letters that the font lacks."""
    check_picture(path, len(pictures))
    suffix = Path(path).suffix.lower()
    if suffix == ".html":
        write_text(path, _page(pictures))
        return ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = rendered(pictures[0].draw(), suffix[1:])
    write_bytes(path, data)
    boxes = suffix == ".png" and any("missing from font" in str(w.message) for w in caught)
    return (
        "Boxes stand for letters that matplotlib's font lacks; *.svg and *.html have them." * boxes
    )


def rendered(figure: Figure, kind: str, salt: str = "capsedge") -> bytes:
    """A figure as a PNG or SVG without dates or versions; ``salt`` tells SVGs of a page apart."""
    import matplotlib

    buffer = io.BytesIO()
    unsaid = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    packed: Any = {"pil_kwargs": {"optimize": True}} if kind == "png" else {}
    with figure_style(), matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=unsaid, **packed)
    data = buffer.getvalue()
    chart = kind == "png" and not any(axis.images for axis in figure.axes)
    return with_palette(data) if chart else data


def _page(pictures: Sequence[Picture]) -> str:
    model = html.escape(printable(pictures[0].model))
    figures = "\n".join(_figure(picture, n) for n, picture in enumerate(pictures))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{model}: what the network sees</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{model}</h1>\n{figures}\n</main>\n</body>\n</html>\n"
    )


def _figure(picture: Picture, number: int) -> str:
    title, *words = (
        html.escape(printable(text))
        for text in (picture.title, picture.description, *picture.notes)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about letters missing from the font; here they stay text
        drawing = rendered(picture.draw(), "svg", f"capsedge-{number}").decode()
    drawing = drawing[drawing.index("<svg") :]
    drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    return (
        f"<figure>\n<h2>{title}</h2>\n{drawing}"
        f"<figcaption>{' '.join(words)}</figcaption>\n</figure>"
    )
