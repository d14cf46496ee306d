"""Load weights of networks written by others into a module, without running any code in the file.

A training script's ``.pt`` file may hold the state dict itself, or wrap it (``state_dict``, ``model``)
together with optimizers, options and numbers. Needs torch.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file
from torch import Tensor, nn

from capsedge.errors import ArtefactError, UsageError
from capsedge.models.torch_file import read_torch, unreadable
from capsedge.runtime.files.archives import BadArchive
from capsedge.runtime.files.json_documents import Malformed
from capsedge.runtime.files.pickles import BadPickle
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.runtime.files.safetensors import read_header
from capsedge.spec import limits

SUFFIXES = (".pt", ".pth", ".tar", ".chkpt", ".ckpt", ".bin", ".safetensors")
WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "best_states",
    "best_state",
)
_DEPTH = 3  # maximum depth of nested wrappers
_LISTED = 5  # keys of each kind in a message
_LONGEST, _GUESSED = 200, 2000  # limits for guessing: characters of a key, and number of keys
# Buffers that older versions of torch did not save, and counters that tools leave behind.
_MAY_LACK = re.compile(r"(^|\.)num_batches_tracked$")
_MAY_HAVE = re.compile(r"(^|\.)(num_batches_tracked|total_ops|total_params)$")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class LoadedWeights:
    """The location of the weights in the file.

    Attributes:
        location: the keys that lead to them, such as ``checkpoint['model']``; empty for the file itself.
        notes: remarks for the user.
    """

    location: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StateDict:
    """A dictionary of tensors in the file."""

    location: tuple[str, ...]
    shapes: Shapes
    read: Callable[[], dict[str, Tensor]]


def load_weights(module: nn.Module, path: Path | str) -> LoadedWeights:
    """Load the weights of a file into a module.

    Args:
        module: the module whose keys and shapes the file must match, apart from a prefix such as ``module.``.
        path: ``.pt``, ``.pth``, ``.tar``, ``.chkpt``, ``.ckpt``, ``.bin`` or ``.safetensors``.

    Raises:
        UsageError: there is no such file, it has another suffix, or its weights belong to another network.
        ArtefactError: the file is damaged or holds code.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES and not path.is_dir():
        raise UsageError(
            f"{path} does not have a weights file's suffix.",
            f"Its suffix is '{path.suffix}'.",
            f"Weights are {', '.join(SUFFIXES)}.",
        )
    wanted = {k: tuple(v.shape) for k, v in module.state_dict().items()}
    with open_regular_file(path, "Check the path of the weights.") as file:
        if file_size(file) > limits.ARRAY_BYTES:
            raise ArtefactError(
                f"{path} is larger than {limits.ARRAY_BYTES // limits.GIB} GiB.",
                "Larger files are not read.",
            )
        in_safetensors = path.suffix == ".safetensors"
        found = [_of_safetensors(path, file)] if in_safetensors else candidates_of_torch(path, file)
        if not found:
            raise ArtefactError(
                f"{path} has no weights.",
                "It contains no dictionary of tensors.",
                "Save torch.save(model.state_dict(), path).",
            )
        ranked = sorted(found, key=lambda c: _rank(c, wanted))
        best = ranked[0]
        names = _renamed(best.shapes, wanted)
        _compare(path, {names[k]: v for k, v in best.shapes.items()}, wanted)
        read = best.read()
    tensors = {names[k]: v for k, v in read.items() if names[k] in wanted}
    module.load_state_dict(tensors, strict=False)  # missing and unexpected keys are checked above
    others = [c for c in ranked[1:] if _fits(c, wanted) and c.shapes == best.shapes]
    notes = [f"{_in_words(c.location)} would fit as well" for c in others]
    return LoadedWeights(_in_words(best.location), tuple(notes))


def _in_words(location: tuple[str, ...]) -> str:
    return "".join(f"['{key}']" for key in location)


def _of_safetensors(path: Path, file: Any) -> StateDict:
    try:
        header = read_header(file)
    except Malformed as error:
        raise _damaged(path, error) from error

    def read() -> dict[str, Tensor]:
        try:
            return load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise _damaged(path, error) from error

    return StateDict((), {k: t.shape for k, t in header.tensors.items()}, read)


def _damaged(path: Path, error: Exception) -> ArtefactError:
    return ArtefactError(
        f"{path} is not a complete safetensors file.",
        f"{error}.",
        "Copy it again, or save it again.",
    )


def candidates_of_torch(path: Path, file: Any) -> list[StateDict]:
    """Every dictionary of tensors in a ``torch.save`` file, the outer ones first.

    Raises:
        ArtefactError: the file is damaged or holds code.
    """
    try:
        value = read_torch(file)
    except (BadArchive, BadPickle) as error:
        reason = unreadable(path, error)
        fix = (
            "Save it again where it was trained: torch.save(model.state_dict(), path), with "
            "PyTorch 0.3 or later."
        )
        raise ArtefactError(reason.what, reason.why, fix) from error
    return [
        StateDict(place, {k: tuple(v.shape) for k, v in tensors.items()}, lambda t=tensors: t)  # type: ignore[misc]
        for place, tensors in _dictionaries(value, (), set())
    ]


def _dictionaries(
    value: Any, location: tuple[str, ...], visited: set[int]
) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Every dictionary that holds tensors by name, the outer ones first."""
    if type(value) is not dict or len(location) > _DEPTH or id(value) in visited:
        return
    visited.add(id(value))  # a file may refer to the same dictionary many times
    tensors = {k: v for k, v in value.items() if type(k) is str and isinstance(v, Tensor)}
    if tensors:
        yield location, tensors
    for key, inner in value.items():
        if type(key) is str:
            yield from _dictionaries(inner, (*location, key), visited)


def _rank(candidate: StateDict, expected: Shapes) -> tuple[int, int, int]:
    """Sort key: the best fit first; among equals, the usual name, then the outer one."""
    names = _renamed(candidate.shapes, expected)
    same = sum(expected.get(names[k]) == shape for k, shape in candidate.shapes.items())
    last = candidate.location[-1] if candidate.location else ""
    usual = WRAPPERS.index(last) if last in WRAPPERS else len(WRAPPERS) * bool(last)
    return -same, usual, len(candidate.location)


def _fits(candidate: StateDict, expected: Shapes) -> bool:
    names = _renamed(candidate.shapes, expected)
    found = {names[k]: v for k, v in candidate.shapes.items()}
    return all(found.get(k) == v or _MAY_LACK.search(k) for k, v in expected.items())


def _renamed(actual: Shapes, expected: Shapes) -> dict[str, str]:
    """The module's names for those in the file, without a common prefix if there is one."""
    counted: Counter[str] = Counter()
    for key in actual:
        parts = key.split(".", 4)
        counted.update(".".join(parts[:k]) + "." for k in range(1, min(len(parts), 4)))
    prefixes = [prefix for prefix, count in counted.items() if 2 * count > len(actual)]
    tries: list[Callable[[str], str]] = [lambda key: key, without_wrappers]
    tries += [lambda key, p=p: key.removeprefix(p) for p in sorted(prefixes)]  # type: ignore[misc]

    def score(rename: Callable[[str], str]) -> int:
        names = [rename(key) for key in actual]
        return sum(name in expected for name in names) if len(set(names)) == len(names) else -1

    best = max(tries, key=score)  # the first of the best
    return {key: best(key) for key in actual}


def without_wrappers(key: str) -> str:
    """A key without the parts that DataParallel and torch.compile add, wherever they wrapped a module."""
    return ".".join(part for part in key.split(".") if part not in ("module", "_orig_mod"))


def _compare(path: Path, actual: Shapes, expected: Shapes) -> None:
    """Refuse weights of another network.

    Raises:
        UsageError: keys are missing, unexpected, or of another shape.
    """
    missing = [k for k in expected if k not in actual and not _MAY_LACK.search(k)]
    more = [k for k in actual if k not in expected and not _MAY_HAVE.search(k)]
    shaped = [k for k in expected if k in actual and actual[k] != expected[k]]
    if not (missing or more or shaped):
        return
    reasons: list[str] = []
    for key in shaped[:_LISTED]:
        reasons.append(
            f"of another shape: {key} is {list(actual[key])}, the module's {list(expected[key])}"
        )
    for key in missing[:_LISTED]:
        reasons.append(
            f"missing: {key} {list(expected[key])}{_guess(key, expected[key], more, actual)}"
        )
    for key in more[:_LISTED]:
        reasons.append(f"unexpected: {key[:_LONGEST]} {list(actual[key])}")
    left = sum(max(0, len(kind) - _LISTED) for kind in (shaped, missing, more))
    reasons += [f"and {left} more"] if left else []
    raise UsageError(
        f"The weights of {path} do not fit the module.",
        "Keys or shapes differ:",
        "Pass the class, and its arguments (--args), that the weights were trained with."
        if shaped or not (missing and more)
        else "Pass the class that the weights were trained with, or rename its attributes.",
        details=reasons,
    )


def _guess(key: str, shape: tuple[int, ...], more: list[str], actual: Shapes) -> str:
    """The unexpected key that it may correspond to: one of the same shape, or with a similar name."""
    more = [k for k in more if len(k) < _LONGEST][:_GUESSED]
    same = [k for k in more if actual[k] == shape]
    close = difflib.get_close_matches(key, same or more, 1, 0.0 if len(same) == 1 else 0.6)
    return f" (perhaps {close[0]} {list(actual[close[0]])})" if close else ""
