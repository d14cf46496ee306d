"""Sample images, drawn by `capsedge.samples.draw`."""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """The folder with the sample images."""
    return Path(__file__).parent
