"""What a run needs to go on, read back: compared with what this run would have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsedge.errors import ArtefactError
from capsedge.runtime import reading

MAX_BYTES = 4 << 30
_LINE = {"epoch": int, "loss": float, "seconds": float, "test_accuracy": float, "test_images": int}


class _Foreign(ValueError):
    """The state is not that of a run like this one."""


def read_state(path: Path, identity: str, wanted: Mapping[str, Any], epochs: int) -> dict[str, Any]:
    """The state of a run, whose every value has the type and the shape that this run gives it.

    Args:
        identity: of the run's settings.
        wanted: the state of each part by name, of a run like this one.
        epochs: that the run has at most.

    Returns:
        The state of each part by name, and ``history``: a line for every epoch that ended.

    Raises:
        UsageError: the file cannot be opened.
        ArtefactError: it is damaged, or of other settings.
    """
    with reading.opened(path) as file:
        if reading.size(file) > MAX_BYTES:
            raise ArtefactError(f"{path} is larger than {MAX_BYTES >> 30} GiB.", "It is not read.")
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except (
            Exception
        ) as error:  # torch documents none; a foreign file raises what its bytes lead to
            why = " ".join(str(error).split())
            raise _damaged(path, f"{type(error).__name__}: {why}") from error
    try:
        if not isinstance(state, dict) or not isinstance(state.get("identity"), str):
            raise _Foreign("it names no settings")
        if state["identity"] != identity:
            raise ArtefactError(
                f"{path} was made with other settings.", "", "Resume with the settings of the run."
            )
        for name, part in wanted.items():
            _compare(name, state.get(name), part)
        return {**state, "history": _history(state.get("history"), epochs)}
    except _Foreign as error:
        raise _damaged(path, f"{error}") from error


def _damaged(path: Path, why: str) -> ArtefactError:
    return ArtefactError(
        f"{path} cannot be read.",
        f"{why}.",
        "Train again in another folder; the older files of this one stay as they are.",
    )


def fill(optimizer: torch.optim.Optimizer) -> None:
    """Take a step that changes nothing that counts, as an optimizer has a state only after the first."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def _compare(name: str, found: Any, wanted: Any) -> None:
    """Raise if a value has another type, shape or set of keys than it should have."""
    if isinstance(wanted, Tensor):
        if not isinstance(found, Tensor) or found.layout != wanted.layout:
            raise _Foreign(f"{name} is no tensor")
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise _Foreign(
                f"{name} is {found.dtype} {list(found.shape)}, "
                f"wanted {wanted.dtype} {list(wanted.shape)}"
            )
    elif isinstance(wanted, Mapping):
        if not isinstance(found, Mapping) or found.keys() != wanted.keys():
            raise _Foreign(f"{name} has other entries")
        for key, value in wanted.items():
            _compare(f"{name}.{key}", found[key], value)
    elif isinstance(wanted, (list, tuple)):
        if type(found) is not type(wanted) or len(found) != len(wanted):
            raise _Foreign(f"{name} has other entries")
        for number, value in enumerate(wanted):
            _compare(f"{name}.{number}", found[number], value)
    elif isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
        if type(found) not in (int, float):
            raise _Foreign(f"{name} is no number")
    elif type(found) is not type(wanted):
        raise _Foreign(f"{name} is a {type(found).__name__}")


def _history(text: Any, epochs: int) -> list[dict[str, Any]]:
    try:
        lines = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise _Foreign("its history is no JSON") from error
    if not isinstance(lines, list) or not 1 <= len(lines) <= epochs:
        raise _Foreign("its history has no epochs, or more than the run")
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or not line.keys() <= _LINE.keys():
            raise _Foreign(f"line {number} of its history")
        for name, value in line.items():
            if type(value) not in (int, _LINE[name]):
                raise _Foreign(f"{name} in line {number} of its history")
        if line.get("epoch") != number:
            raise _Foreign(f"line {number} of its history is of another epoch")
    return lines
