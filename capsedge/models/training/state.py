"""Read the state from which a run continues, and check it against what this run would have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsedge.errors import ArtefactError, UsageError
from capsedge.models import CapsuleModel, build
from capsedge.models.configs import ModelConfig
from capsedge.models.torch_file import BadPickle, read_torch, unreadable_torch_file
from capsedge.runtime.files import reading
from capsedge.runtime.files.archives import BadArchive
from capsedge.runtime.files.documents import MalformedJson, changed_settings, decode, parse
from capsedge.spec import limits

# Values that change from step to step; everything else must equal this run's.
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
    validation_accuracy: float | None = None
    validation_images: int | None = None
    training_accuracy: float | None = None
    test_dice: float | None = None
    validation_dice: float | None = None
    training_dice: float | None = None
    training_images: int | None = None


class _Foreign(Exception):
    """The state is from a different kind of run."""


def read_state(
    path: Path, identity: str, images: str, expected: Mapping[str, Any], epochs: int, steps: int
) -> dict[str, Any]:
    """Read the state of a run, and check every value's type and shape against this run's.

    Args:
        identity: identity of the run's settings.
        images: digest of the images; a state without one predates the digest and is not compared.
        expected: the state of each part by name, for a run like this one after one step.
        epochs: most epochs of the run.
        steps: number of steps in one epoch.

    Returns:
        The state of each part by name, and ``history``: a line for every epoch that ended.

    Raises:
        UsageError: the file cannot be opened.
        ArtefactError: it is damaged, or belongs to other settings.
    """
    with reading.open_regular_file(path) as file:
        if reading.file_size(file) > limits.ARRAY_BYTES:
            raise ArtefactError(
                f"{path} is larger than {limits.ARRAY_BYTES // limits.GIB} GiB.",
                "Larger files are not read.",
            )
        try:
            state = read_torch(file)
            if type(state) is not dict or type(state.get("identity")) is not str:
                raise _Foreign("it names no settings")
            if state.get("images", images) != images:
                # Another seed draws other images: the setting is what was changed.
                if "seed was" in changed_settings(parse(state["identity"]), parse(identity)):
                    raise _other_settings(path, state["identity"], identity)
                raise ArtefactError(
                    f"{path} was made with other images.",
                    "",
                    "Resume with the images of the original run, or train in another folder.",
                )
            if state["identity"] != identity:
                raise _other_settings(path, state["identity"], identity)
            history = _history(state.get("history"), epochs)
            if "best" in expected and any(
                not {"validation_accuracy", "validation_dice"} & set(line) for line in history
            ):
                raise _Foreign("its history does not say which epoch is the best")
            for name in expected:
                _compare(name, state.get(name), expected[name], len(history) * steps)
                _check_steps(state[name], len(history) * steps)
        except (_Foreign, MalformedJson) as error:
            raise _damaged(path, f"{error}") from error
        except (BadArchive, BadPickle) as error:
            raise unreadable_torch_file(path, error) from error
    return {**{name: state[name] for name in expected}, "history": history}


def _check_steps(value: Any, done: int) -> None:
    """Raise if an optimizer in it has done another number of steps."""
    if isinstance(value, dict):
        step = value.get("step")  # of Adam, which divides by what it is a power of
        if isinstance(step, Tensor) and (step.numel() != 1 or not 1 <= step.item() <= done):
            raise _Foreign("its optimizer has made a different number of steps than its history")
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_steps(item, done)


def _other_settings(path: Path, stored: str, current: str) -> ArtefactError:
    changed = changed_settings(parse(stored), parse(current))
    return ArtefactError(
        f"{path} was made with other settings.",
        f"Different from this run: {changed}." if changed else "",
        "Resume with the settings of the original run, or train in another folder.",
    )


def _damaged(path: Path, why: str) -> ArtefactError:
    return ArtefactError(
        f"{path} cannot be read.",
        f"{why}.",
        "Train again in another folder; the files in this one stay unchanged.",
    )


def fill(optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    """Take a step without gradients, since an optimizer has its state only after the first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    scheduler.step()


def _compare(name: str, stored: Any, expected: Any, done: int) -> None:
    """Raise if a value is impossible for this run after so many steps."""
    leaf = name.rpartition(".")[2]
    if isinstance(expected, Tensor):
        if not isinstance(stored, Tensor):
            raise _Foreign(f"{name} is not a tensor")
        if stored.shape != expected.shape or stored.dtype != expected.dtype:
            raise _Foreign(
                f"{name} is {stored.dtype} {list(stored.shape)}, "
                f"wanted {expected.dtype} {list(expected.shape)}"
            )
    elif leaf in _RATES:
        _compare_rates(name, stored, expected)
    elif leaf in _STEPS:
        if type(stored) is not int or stored != done + _STEPS[leaf]:
            raise _Foreign(f"{name} is not that of {done} steps")
    elif isinstance(expected, Mapping):
        if type(stored) is not dict or stored.keys() != expected.keys():
            raise _Foreign(f"{name} has other entries")
        for key, value in expected.items():
            _compare(f"{name}.{key}", stored[key], value, done)
    elif isinstance(expected, (list, tuple)):
        if type(stored) is not type(expected) or len(stored) != len(expected):
            raise _Foreign(f"{name} has other entries")
        for number, value in enumerate(expected):
            _compare(f"{name}.{number}", stored[number], value, done)
    elif type(stored) is not type(expected) or stored != expected:
        raise _Foreign(f"{name} has another value")


def _compare_rates(name: str, stored: Any, expected: Any) -> None:
    """Raise if something is not as many numbers as there should be."""
    is_list = isinstance(expected, (list, tuple))
    if is_list and (type(stored) is not type(expected) or len(stored) != len(expected)):
        raise _Foreign(f"{name} has other entries")
    for value in stored if is_list else (stored,):
        if type(value) not in (int, float) or not (0 <= value < math.inf):
            raise _Foreign(f"{name} is not a rate")


def _history(text: Any, epochs: int) -> list[dict[str, Any]]:
    if type(text) is not str:
        raise _Foreign("it has no history")
    lines = parse(text, nan="keep")
    found = decode(list[_Line], lines, "history")
    if not 1 <= len(found) <= epochs or [x.epoch for x in found] != list(range(1, len(found) + 1)):
        raise _Foreign("its history is not that of the run's epochs")
    plain: list[dict[str, Any]] = lines
    return plain


def transferable_weights(config: ModelConfig, initial: CapsuleModel) -> dict[str, Tensor]:
    """The weights of a trained network that fit another network of the same architecture, by name.

    The class capsules' weights fit if the number of classes is the same and, in most architectures, the
    images have the same size.

    Raises:
        UsageError: the networks differ in more than classes, task and preprocessing.
    """
    alike = initial.config.replace(
        class_names=config.class_names, preprocessing=config.preprocessing, task=config.task
    )
    if alike != config:
        raise UsageError(
            "The initial checkpoint has a different configuration.",
            "Only classes and images may differ.",
            "Set its model and iterations, or leave out --model.",
        )
    with torch.device("meta"):
        wanted = {name: value.shape for name, value in build(config).state_dict().items()}
    weights = initial.state_dict()
    return {name: value for name, value in weights.items() if wanted.get(name) == value.shape}
