"""Load weights of networks written by others into a module, without running any code in the file.

A training script's ``.pt`` file may hold the state dict itself, or wrap it (``state_dict``, ``model``)
together with optimizers, options and numbers. Needs torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor, nn

from capsedge.errors import ArtefactError, UsageError
from capsedge.models.checkpoint import check_finite_weights, load_safetensors
from capsedge.models.torch_file import BadPickle, read_torch, unreadable_torch_file
from capsedge.models.weight_names import (
    Match,
    Shapes,
    UnnamedTensors,
    complete,
    is_ignorable_tensor,
    matches,
    may_lack,
    unnamed_in,
    unnamed_mismatch_error,
    with_module_names,
    without_wrappers,
)
from capsedge.runtime.files.archives import BadArchive
from capsedge.runtime.files.documents import MalformedJson
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


@dataclass(frozen=True)
class LoadedWeights:
    """The location of the weights in the file.

    Attributes:
        location: the keys and indices that lead to them, such as ``['model']``; empty for the file itself.
        notes: remarks for the user.
    """

    location: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StateDict:
    """A dictionary of tensors in the file.

    Attributes:
        location: the keys that lead to it.
        shapes: of its tensors, by name.
        read: gives the tensors.
        parts: the keys of the dictionaries below ``location`` that it was joined from; empty for one.
    """

    location: tuple[str, ...]
    shapes: Shapes
    read: Callable[[], dict[str, Tensor]]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Fitted:
    """A dictionary of tensors, and the ways to see it as the module's."""

    candidate: StateDict
    matches: list[Match]

    @property
    def fits(self) -> bool:
        return self.matches[0].fits


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
        value = None if in_safetensors else contents_of_torch(path, file)
        found = [_of_safetensors(path, file)] if in_safetensors else candidates_in(value)
        averages = [(each, with_module_names(each, module)) for each in unnamed_in(value)]
        if not found:
            return _load_unnamed(module, path, averages)
        found += in_parts(found, wanted)
        fitted = sorted((_fitted(c, wanted) for c in found), key=_rank)
        if not fitted[0].fits and any(complete(tensors, module) for _, tensors in averages):
            return _load_unnamed(module, path, averages)
        best, match = fitted[0].candidate, fitted[0].matches[0]
        _compare(path, best, match, wanted)
        _check_one(path, fitted[0])
        read = best.read()
    tensors = {match.names[k]: v for k, v in read.items() if match.names.get(k) in wanted}
    check_finite_weights(module, tensors, path)
    module.load_state_dict(tensors, strict=False)  # missing and unexpected keys are checked above
    notes = [
        f"{_in_words(each.candidate.location)} would fit as well"
        for each in fitted[1:]
        if each.fits and each.candidate.location != best.location and not each.candidate.parts
    ]
    notes += [f"{each.in_words}, a list in the module's order, fits its parameters as well"
              for each, tensors in averages if tensors]  # fmt: skip
    left = [k for k in match.outside if not is_ignorable_tensor(k)]
    if left:
        listed = ", ".join(k[:_LONGEST] for k in left[:_LISTED])
        rest = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        notes.append(f"not part of the module, and left out: {listed}{rest}")
    return LoadedWeights(_in_words(best.location) + _joined(best.parts), tuple(notes))


def _load_unnamed(
    module: nn.Module, path: Path, averages: Sequence[tuple[UnnamedTensors, dict[str, Tensor]]]
) -> LoadedWeights:
    """Load a list of parameters from a file that holds nothing else.

    Raises:
        UsageError: it does not fit, or lacks buffers.
        ArtefactError: there is none.
    """
    if not averages:
        raise no_weights(path)
    whole = [(each, tensors) for each, tensors in averages if complete(tensors, module)]
    if not whole:
        raise unnamed_mismatch_error(path, averages[0][0], module)
    chosen, tensors = whole[0]
    check_finite_weights(module, tensors, path)
    module.load_state_dict(tensors, strict=False)
    note = (
        "its weights have no names: they are taken in the module's order, in which all shapes fit"
    )
    return LoadedWeights(chosen.in_words, (note,))


def no_weights(path: Path) -> ArtefactError:
    """The error for a file without tensors by name."""
    return ArtefactError(
        f"{path} has no weights.",
        "It contains no dictionary of tensors.",
        "Save torch.save(model.state_dict(), path).",
    )


def _joined(parts: Sequence[str]) -> str:
    return f" (its parts {', '.join(parts)})" if parts else ""


def _in_words(location: tuple[str, ...]) -> str:
    return "".join(key if key.startswith("[") else f"['{key}']" for key in location)


def _of_safetensors(path: Path, file: Any) -> StateDict:
    try:
        header = read_header(file)
    except MalformedJson as error:
        raise _damaged(path, error) from error

    def read() -> dict[str, Tensor]:
        try:
            return load_safetensors(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise _damaged(path, error) from error

    return StateDict((), {k: t.shape for k, t in header.tensors.items()}, read)


def _damaged(path: Path, error: Exception) -> ArtefactError:
    return ArtefactError(
        f"{path} is not a complete safetensors file.",
        f"{error}.",
        "Copy it again, or save it again.",
    )


def contents_of_torch(path: Path, file: Any) -> Any:
    """What a ``torch.save`` file holds.

    Raises:
        ArtefactError: the file is damaged or holds code.
    """
    try:
        return read_torch(file)
    except (BadArchive, BadPickle) as error:
        reason = unreadable_torch_file(path, error)
        fix = (
            "Save it again where it was trained: torch.save(model.state_dict(), path), with "
            "PyTorch 0.3 or later."
        )
        raise ArtefactError(reason.what, reason.why, fix) from error


def candidates_in(value: Any) -> list[StateDict]:
    """Every dictionary of tensors in what a file holds, the outer ones first."""
    return [
        StateDict(place, {k: tuple(v.shape) for k, v in tensors.items()}, lambda t=tensors: t)  # type: ignore[misc]
        for place, tensors in _dictionaries(value, (), set())
    ]


def _dictionaries(
    value: Any, location: tuple[str, ...], visited: set[int]
) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Every dictionary that holds tensors by name, the outer ones first."""
    if type(value) not in (dict, list, tuple) or len(location) > _DEPTH or id(value) in visited:
        return
    visited.add(id(value))  # a file may refer to the same dictionary many times
    if type(value) is not dict:
        for k, inner in enumerate(value):
            yield from _dictionaries(inner, (*location, f"[{k}]"), visited)
        return
    tensors = {k: v for k, v in value.items() if type(k) is str and isinstance(v, Tensor)}
    if tensors:
        yield location, tensors
    for key, inner in value.items():
        if type(key) is str:
            yield from _dictionaries(inner, (*location, key), visited)


def in_parts(found: Sequence[StateDict], expected: Shapes | None = None) -> list[StateDict]:
    """The dictionaries that lie below the same one, joined: a state dict for each part of the module.

    Args:
        expected: the module's tensors, whose first names the parts have; None for any parts.
    """
    made = []
    places = {c.location[:k] for c in found for k in range(len(c.location))}
    first = {name.split(".")[0] for name in map(without_wrappers, expected or ())}
    for place in sorted(places, key=len):
        shapes, reads, parts = dict[str, tuple[int, ...]](), list[_WeightsPart](), list[str]()
        for c in found:
            path = [_part(k) for k in c.location[len(place) :] if k not in WRAPPERS]
            if c.location[: len(place)] != place or (
                path and expected is not None and path[0] not in first
            ):
                continue
            prefix = ".".join(path) + "." if path else ""
            part = _WeightsPart(c, {k: prefix + without_wrappers(k) for k in c.shapes})
            if not path and c.location != place:
                continue
            shapes |= {part.names[k]: shape for k, shape in c.shapes.items()}
            reads.append(part)
            parts += [f"'{c.location[len(place)]}'"] if path else []
        once = sum(len(part.candidate.shapes) for part in reads) == len(shapes)
        if parts and once:
            unique = tuple(dict.fromkeys(parts))
            made.append(StateDict(place, shapes, lambda r=reads: _read_parts(r), unique))  # type: ignore[misc]
    return made


@dataclass(frozen=True)
class _WeightsPart:
    """A state dict of a part of the module, and its names with the part's own in front."""

    candidate: StateDict
    names: dict[str, str]


def _read_parts(parts: Sequence[_WeightsPart]) -> dict[str, Tensor]:
    return {part.names[k]: v for part in parts for k, v in part.candidate.read().items()}


def _part(key: str) -> str:
    """The attribute that a key such as ``encoder_state_dict`` means."""
    for word in ("state_dict", "state", "weights"):
        key = key.removesuffix(f"_{word}").removeprefix(f"{word}_")
    return key


def _fitted(candidate: StateDict, expected: Shapes) -> _Fitted:
    return _Fitted(candidate, matches(candidate.shapes, expected))


def _rank(fitted: _Fitted) -> tuple[bool, int, int, int]:
    """Sort key: the best fit first; among equals, the usual name, then the outer one."""
    location = fitted.candidate.location
    last = location[-1] if location else ""
    usual = WRAPPERS.index(last) if last in WRAPPERS else len(WRAPPERS) * bool(last)
    return not fitted.fits, -fitted.matches[0].same, usual, len(location)


def _check_one(path: Path, fitted: _Fitted) -> None:
    """Refuse a file that holds the module twice, under two prefixes of one dictionary.

    Raises:
        UsageError: it does.
    """
    several = [match.prefix for match in fitted.matches]
    if len(several) > 1:
        where = _in_words(fitted.candidate.location)
        raise UsageError(
            f"The weights of {path} fit the module in {len(several)} ways.",
            f"Names with these prefixes fit: {', '.join(map(repr, several[:_LISTED]))}.",
            f"Save the one that you mean: torch.save({{k.removeprefix({several[0]!r}): v for k, v in "
            f"torch.load(FILE, weights_only=True){where}.items() if k.startswith({several[0]!r})}}, NEW).",
        )


def _compare(path: Path, candidate: StateDict, match: Match, expected: Shapes) -> None:
    """Refuse weights of another network.

    Raises:
        UsageError: keys are missing, unexpected, or of another shape.
    """
    if match.fits:
        return
    actual = {name: candidate.shapes[k] for k, name in match.names.items()}
    actual |= {k: candidate.shapes[k] for k in match.outside}
    missing = [k for k in expected if k not in actual and not may_lack(k)]
    more = [k for k in actual if k not in expected and not is_ignorable_tensor(k)]
    shaped = [k for k in expected if k in actual and actual[k] != expected[k]]
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
