"""The names of models that a server gets, by one rule for `capsedge serve` and `capsedge deploy triton`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsedge import zoo
from capsedge.errors import UsageError
from capsedge.runtime.files import opening

TWIN = "-portable"  # at the end of the name of a model without the operator library
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9._-]{1,80})(?::(?P<version>[A-Za-z0-9._-]{1,80}))?=(?P<file>.+)"
)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Named:
    """A model of the command line.

    Attributes:
        name: that clients use.
        version: of the name; empty if there is only one.
        file: a path, or a name of the zoo.
    """

    name: str
    version: str
    file: str


def file_of(given: str | Path) -> Path:
    """The file that an argument such as ``digits=model.onnx`` names."""
    return Path(_parsed(str(given)).file)


def named(given: Sequence[str]) -> list[Named]:
    """The models that arguments name: ``model.onnx``, ``NAME=model.onnx`` or ``NAME:VERSION=model.onnx``.

    Raises:
        UsageError: two have the same name, in any case, and the same version.
    """
    found = [_parsed(text) for text in given]
    seen: dict[tuple[str, str], str] = {}
    for model in found:
        key = model.name.lower(), model.version
        if key in seen:
            raise UsageError(
                f"{seen[key]} and {model.file} would both be the model '{model.name}'.",
                "",
                f"Name them: other={model.file}, or {model.name}:2={model.file} for a second version.",
            )
        seen[key] = model.file
    return found


def folders(given: Sequence[str]) -> list[Named]:
    """The same for a model repository, where each has a folder of its own and may get a twin.

    Raises:
        UsageError: two have the same name, in any case; one has the name of another's twin, or a version.
    """
    found = [_parsed(text) for text in given]
    seen: dict[str, str] = {}
    for model in found:
        if model.version:
            raise UsageError(
                f"{model.name}:{model.version} has a version.",
                "A repository is written with one version of each model.",
                f"Name it: {model.name}={model.file}.",
            )
        taken = (model.name.lower(), f"{model.name.lower()}{TWIN}")
        other = next((seen[name] for name in taken if name in seen), None)
        if other is not None:
            raise UsageError(
                f"{other} and {model.file} would both have the folder '{model.name}', or that of its twin.",
                "",
                f"Name them: other={model.file}.",
            )
        seen.update(dict.fromkeys(taken, model.file))
    return found


def _parsed(given: str) -> Named:
    parts = _NAMED.fullmatch(given)
    if parts is not None and opening.kind(given) is None:
        return Named(parts["name"], parts["version"] or "", parts["file"])
    if given in zoo.MODELS:
        return Named(given, "", given)
    return Named(_NOT_IN_NAMES.sub("-", Path(given).stem).strip("-.")[:80] or "model", "", given)
