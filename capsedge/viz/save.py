"""Save pictures as PNG, SVG, or a self-contained HTML page.

The same data always give the same bytes.
"""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.errors import UsageError
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import check_writable, write_bytes, write_text
from capsedge.runtime.result_summary import DPI, with_palette
from capsedge.viz.figure import Picture, check_matplotlib, figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
