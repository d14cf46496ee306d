"""Charts drawn by matplotlib, if it is installed; nothing else needs it."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import check_writable, write_bytes

DPI = 300  # of every PNG: what print needs


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


def with_palette(png: bytes) -> bytes:
    """The PNG of a chart with 64 colours, which are enough for lines and areas, at a quarter of the size."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as drawn:
        small = drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, format="png", optimize=True, dpi=(DPI, DPI))
    return buffer.getvalue()
