"""The folder of a pruning under way: one training run per round, so that it can go on."""

from __future__ import annotations

from pathlib import Path

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.files.opening import kind, opened
from capsedge.runtime.files.writing import make_folder, write_text
from capsedge.training.run_files import MODEL as MODEL

WORK = ".pruning"  # after the name of the output
START = "pruned.safetensors"  # of a round, before fine-tuning
_SETTINGS = "settings.json"


def open_work(folder: Path, settings: str, resume: bool) -> None:
    """Begin the folder, or go on in it.

    Raises:
        UsageError: it is there, and ``resume`` is off.
        ArtefactError: it is of other settings.
    """
    place = folder / _SETTINGS
    if kind(place) is None:
        make_folder(folder)
        write_text(place, settings)
        return
    if not resume:
        raise UsageError(
            f"{folder} holds a pruning that was not finished.",
            "",
            "Add --resume to go on with it, or remove the folder.",
        )
    with opened(place) as file:
        found = file.read(limits.MIB).decode(errors="replace")
    if found != settings:
        raise ArtefactError(
            f"{folder} is of another checkpoint or of other settings.",
            "",
            "Repeat the settings that it was begun with, or remove the folder.",
        )
