"""What a run needs to go on, read back: compared with what this run would have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsedge.errors import ArtefactError
from capsedge.runtime.files import limits, opening
from capsedge.runtime.files.archives import BadArchive
from capsedge.runtime.files.documents import Malformed, decode, parse
from capsedge.runtime.files.pickles import BadPickle
from capsedge.torch_file import StoredTensor, TorchFile, unreadable

# What changes from step to step; everything else stands as this run has it.
_RATES = ("lr", "_last_lr", "momentum", "betas")
_STEPS = {"last_epoch": 0, "_step_count": 1}  # steps done, and so many more


@dataclass(frozen=True)
class _Line:
    """One line of the history."""

    epoch: int
    loss: float
    seconds: float
    test_accuracy: float | None = None
    test_images: int | None = None


class _Foreign(Exception):
    """The state is not that of a run like this one."""


def read_state(
    path: Path, identity: str, wanted: Mapping[str, Any], epochs: int, steps: int
) -> dict[str, Any]:
    """The state of a run, whose every value has the type and the shape that this run gives it.

    Args:
        identity: of the run's settings.
        wanted: the state of each part by name, of a run like this one after a step.
        epochs: that the run has at most.
        steps: of one epoch.

    Returns:
        The state of each part by name, and ``history``: a line for every epoch that ended.

    Raises:
        UsageError: the file cannot be opened.
        ArtefactError: it is damaged, or of other settings.
    """
    with opening.opened(path) as file:
        if opening.size(file) > limits.ARRAY_BYTES:
            raise ArtefactError(
                f"{path} is larger than {limits.ARRAY_BYTES // limits.GIB} GiB.", "It is not read."
            )
        try:
            content = TorchFile(file)
            state = content.value
            if type(state) is not dict or type(state.get("identity")) is not str:
                raise _Foreign("it names no settings")
            if state["identity"] != identity:
                raise ArtefactError(
                    f"{path} was made with other settings.",
                    "",
                    "Resume with the settings of the run.",
                )
            history = _history(state.get("history"), epochs)
            for name in wanted:
                _compare(name, state.get(name), wanted[name], len(history) * steps)
            read = {name: _read(content, state[name], len(history) * steps) for name in wanted}
        except (_Foreign, Malformed) as error:
            raise _damaged(path, f"{error}") from error
        except (BadArchive, BadPickle) as error:
            raise unreadable(path, error) from error
    return {**read, "history": history}


def _read(content: TorchFile, value: Any, done: int) -> Any:
    """A value with its tensors."""
    if isinstance(value, StoredTensor):
        return content.read(value)
    if isinstance(value, dict):
        found = {key: _read(content, item, done) for key, item in value.items()}
        step = found.get("step")  # of Adam, which divides by what it is a power of
        if isinstance(step, Tensor) and (step.numel() != 1 or not 1 <= step.item() <= done):
            raise _Foreign("its optimizer has done other steps than its history")
        return found
    if isinstance(value, (list, tuple)):
        return type(value)(_read(content, item, done) for item in value)
    return value


def _damaged(path: Path, why: str) -> ArtefactError:
    return ArtefactError(
        f"{path} cannot be read.",
        f"{why}.",
        "Train again in another folder; the older files of this one stay as they are.",
    )


def fill(optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    """Take a step with no gradient: an optimizer has its state only after the first."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    scheduler.step()


def _compare(name: str, found: Any, wanted: Any, done: int) -> None:
    """Raise if a value is not one that this run has after so many steps."""
    leaf = name.rpartition(".")[2]
    if isinstance(wanted, Tensor):
        if not isinstance(found, StoredTensor):
            raise _Foreign(f"{name} is no tensor")
        if found.shape != tuple(wanted.shape) or found.storage.dtype != wanted.dtype:
            raise _Foreign(
                f"{name} is {found.storage.dtype} {list(found.shape)}, "
                f"wanted {wanted.dtype} {list(wanted.shape)}"
            )
    elif leaf in _RATES:
        _compare_rates(name, found, wanted)
    elif leaf in _STEPS:
        if type(found) is not int or found != done + _STEPS[leaf]:
            raise _Foreign(f"{name} is not that of {done} steps")
    elif isinstance(wanted, Mapping):
        if type(found) is not dict or found.keys() != wanted.keys():
            raise _Foreign(f"{name} has other entries")
        for key, value in wanted.items():
            _compare(f"{name}.{key}", found[key], value, done)
    elif isinstance(wanted, (list, tuple)):
        if type(found) is not type(wanted) or len(found) != len(wanted):
            raise _Foreign(f"{name} has other entries")
        for number, value in enumerate(wanted):
            _compare(f"{name}.{number}", found[number], value, done)
    elif type(found) is not type(wanted) or found != wanted:
        raise _Foreign(f"{name} has another value")


def _compare_rates(name: str, found: Any, wanted: Any) -> None:
    """Raise if something is not as many numbers as there should be."""
    several = isinstance(wanted, (list, tuple))
    if several and (type(found) is not type(wanted) or len(found) != len(wanted)):
        raise _Foreign(f"{name} has other entries")
    for value in found if several else (found,):
        if type(value) not in (int, float) or not (0 <= value < math.inf):
            raise _Foreign(f"{name} is no rate")


def _history(text: Any, epochs: int) -> list[dict[str, Any]]:
    if type(text) is not str:
        raise _Foreign("it has no history")
    lines = parse(text, nan="keep")
    found = decode(list[_Line], lines, "history")
    if not 1 <= len(found) <= epochs or [x.epoch for x in found] != list(range(1, len(found) + 1)):
        raise _Foreign("its history is not that of the run's epochs")
    plain: list[dict[str, Any]] = lines
    return plain
