"""Charts drawn by matplotlib, if it is installed; nothing else needs it."""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import check_writable, write_bytes

DPI = 300  # of every PNG: what print needs
TIP = "tip:"  # before the text that `inline_svg` shows where the pointer rests, in an artist's gid


def check_chart(path: Path) -> None:
    """Check before long work that a chart can be drawn and written.

    Raises:
        EnvironmentProblem: matplotlib is not installed.
        UsageError: the path cannot be written.
    """
    check_writable(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentProblem(
            "matplotlib is not installed.",
            "It draws the charts; everything else works without it.",
            "pip install 'capsedge[profile]'",
        )


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure with its size in inches, not bound to a display."""
    import matplotlib.figure

    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def caption(text: str) -> str:
    """A name escaped for matplotlib, which reads dollar signs as formulas."""
    return printable(text).replace("$", r"\$")


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

    What is black in the figure has the colour of the page's text, and letters have its font; there is no
    background, no link and no address. Charts must keep within their axes: nothing is clipped.

    Args:
        figure: a matplotlib figure; texts of gids that begin with `TIP` become tooltips.
        label: what a screen reader says of it.
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
    """Leaves out what a page has itself or does not need: style sheets, namespaces, names, digits."""
    for child in list(element):
        _for_a_page(child)
        if child.tag in ("style", "clipPath"):
            element.remove(child)
    element.tag = element.tag.rpartition("}")[2]
    given, element.attrib = element.attrib, {}
    for key, value in given.items():
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
    if len(marks) == 1 and len(element) > 1:  # of one line, which then says its style once
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
