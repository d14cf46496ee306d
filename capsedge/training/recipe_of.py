"""The recipe that a checkpoint was trained by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.runtime.files.checkpoint_metadata import read_metadata
from capsedge.runtime.files.documents import decode, parse
from capsedge.training.loop import Recipe

TRAINING_KEY = "capsedge.training"  # of a checkpoint's metadata


@dataclass(frozen=True)
class _Training:
    recipe: Recipe
    last: Mapping[str, Any]


def training_of(path: Path | str) -> str | None:
    """How a checkpoint was trained, in the words of its metadata; None if it does not say."""
    return read_metadata(
        path, lambda found: found.get(TRAINING_KEY), "how it was trained", "Train it again."
    )


def recipe_of(path: Path | str) -> Recipe | None:
    """The recipe in a checkpoint's metadata; None if it states none.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """

    def read(metadata: Mapping[str, str]) -> Recipe | None:
        text = metadata.get(TRAINING_KEY)
        return None if text is None else decode(_Training, parse(text)).recipe

    return read_metadata(path, read, "how it was trained", "Train it again.")
