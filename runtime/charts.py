"""Charts drawn by matplotlib, if it is installed; nothing else needs it."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import check_writable, write_bytes


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


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure as SVG if its name says so, else as PNG; raises as ``files.write_bytes`` does."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg" if path.suffix == ".svg" else "png", dpi=dpi)
    write_bytes(path, buffer.getvalue())
