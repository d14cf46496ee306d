"""The files of a run, in its folder."""

from __future__ import annotations

from pathlib import Path

STATE = "last.pt"  # everything needed to continue; the other files are made from it
MODEL = "model.safetensors"
HISTORY = "history.jsonl"
CONFUSION = "confusion.png"  # if the data is a folder with one sub-folder per class


def files(folder: Path) -> list[Path]:
    """The files that a run writes."""
    return [folder / name for name in (STATE, MODEL, HISTORY, CONFUSION)]
