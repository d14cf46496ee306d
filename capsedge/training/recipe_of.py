"""How a checkpoint was trained, as its metadata states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.runtime.files.checkpoint_metadata import field_of
from capsedge.training.loop import Recipe

TRAINING_KEY = "capsedge.training"  # of a checkpoint's metadata


@dataclass(frozen=True)
class Training:
    """The recipe, and what the last epoch reached."""

    recipe: Recipe
    last: Mapping[str, Any]


def training_of(path: Path | str) -> Training | None:
    """How a checkpoint was trained; None if it does not say.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    return field_of(Training, path, TRAINING_KEY, "how it was trained", "Train it again.")


def recipe_of(path: Path | str) -> Recipe | None:
    """The recipe of a checkpoint; None if it states none.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    training = training_of(path)
    return None if training is None else training.recipe
