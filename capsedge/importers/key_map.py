"""Rename and reshape a file's tensors into those of a family, by a key map.

A key map is a TOML file:

    ignore = ["aux.*"]

    [tensors]
    "conv.weight" = "stem.0.weight"
    "caps.W" = ["classes.weight", {reshape = [32, 36, 10, 16, 8]}, {transpose = [1, 0, 2, 3, 4]},
                {reshape = [1152, 10, 16, 8]}]

    [model]
    softmax = "children"

Steps are applied in order, as in NumPy. ``[model]`` sets fields of the configuration.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.errors import UsageError
from capsedge.importers.family import Floats, Weights
from capsedge.runtime.files.documents import MalformedJson, decode, read_toml


@dataclass(frozen=True)
class KeyMap:
    """A key map.

    Attributes:
        tensors: for each key of the file, the family's key, or a list of that key and steps.
        model: fields of the configuration.
        ignore: patterns of keys to omit, written like file name patterns.
    """

    tensors: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()


def read_key_map(path: Path | str) -> KeyMap:
    """Read a key map."""
    try:
        return decode(KeyMap, read_toml(path, "Check the path of the key map."))
    except MalformedJson as error:
        raise UsageError(
            f"{path} is not a key map.", f"{error}.", "See docs/how-to/import.md for an example."
        ) from error


def apply(keys: KeyMap, weights: Weights) -> Weights:
    """Weights with the names and axes that a key map gives them; other keys are kept."""
    absent = [k for k in keys.tensors if k not in weights.tensors]
    if absent:
        raise UsageError(
            f"The key map names '{absent[0]}', which the file does not have.",
            f"It has {', '.join(list(weights.tensors)[:20])}.",
            "Correct the key map.",
        )
    tensors: dict[str, Floats] = {}
    for key, tensor in weights.tensors.items():
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in keys.ignore):
            continue
        target, steps = _entry(key, keys.tensors.get(key, key))
        if target in tensors:
            raise UsageError(f"The key map creates '{target}' twice.", "", "Correct the key map.")
        tensors[target] = _transform(key, tensor, steps)
    return replace(weights, tensors=tensors)


def _entry(key: str, entry: Any) -> tuple[str, list[Any]]:
    target, *steps = entry if isinstance(entry, (list, tuple)) and entry else [entry]
    if not isinstance(target, str):
        raise UsageError(
            f"The key map's entry for '{key}' names no key.",
            "An entry is a name, or a list of a name and steps.",
            'For example "caps.W" = ["classes.weight", {transpose = [0, 1, 3, 2]}].',
        )
    return target, steps


def _transform(key: str, tensor: Floats, steps: list[Any]) -> Floats:
    for step in steps:
        name, axes = (
            next(iter(step.items())) if isinstance(step, dict) and len(step) == 1 else ("", ())
        )
        whole = isinstance(axes, (list, tuple)) and all(type(n) is int for n in axes)
        if name not in ("reshape", "transpose") or not whole:
            raise UsageError(
                f"The key map has an unknown step for '{key}'.",
                "Steps are {reshape = [sizes]} and {transpose = [axes]}, one each.",
                "Correct the key map.",
            )
        try:
            tensor = tensor.reshape(axes) if name == "reshape" else tensor.transpose(axes)
        except (ValueError, OverflowError) as error:
            raise UsageError(
                f"'{key}' of shape {list(tensor.shape)} cannot be transformed by {name} {list(axes)}.",
                f"{error}.",
                "Correct the key map.",
            ) from error
    return np.ascontiguousarray(tensor)
