"""Match the names of tensors in a file with those of a module, however either was wrapped.

Wrappers (DataParallel, torch.compile) and both spellings of weight norm and spectral norm are brought to
one form on both sides. A prefix for the whole is then removed or added. A renaming counts only if names and
shapes fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from capsedge.errors import UsageError

Shapes = Mapping[str, tuple[int, ...]]

# Buffers that older versions of torch did not save, and counters that tools leave behind.
_MAY_LACK = re.compile(r"(^|\.)num_batches_tracked$")
_MAY_HAVE = re.compile(r"(^|\.)(num_batches_tracked|total_ops|total_params|n_averaged)$")
_PREFIXES = 50  # prefixes that are tried


@dataclass(frozen=True)
class Match:
    """The names of a file in terms of a module.

    Attributes:
        names: the module's name, or the closest form of the file's own, for each name in the file.
        prefix: what was removed from all of the module's names in the file, in the common form.
        outside: names in the file outside this prefix, which are not of the module.
        fits: whether every tensor of the module is found with its shape, and nothing is left over.
        same: tensors that fit.
    """

    names: Mapping[str, str]
    prefix: str
    outside: tuple[str, ...]
    fits: bool
    same: int


def may_lack(name: str) -> bool:
    """Whether a file may lack this tensor of a module."""
    return _MAY_LACK.search(name) is not None


def is_ignorable_tensor(name: str) -> bool:
    """Whether a file may hold this tensor that a module lacks."""
    return _MAY_HAVE.search(name) is not None


def without_wrappers(name: str) -> str:
    """A name without the parts that DataParallel and torch.compile add, wherever they wrapped a module."""
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))


def matches(actual: Shapes, expected: Shapes) -> list[Match]:
    """Every way to see a file's names as the module's that is not worse than another, the best one first."""
    theirs = _common(actual)
    ours = _common(expected)
    found = [_matched(actual, expected, theirs, ours, p, "") for p in _prefixes(theirs, ours)]
    if len(set(theirs.values())) == len(theirs):
        added = _prefixes(ours, theirs)[1:]
        found += [_matched(actual, expected, theirs, ours, "", p) for p in added]
    if len(set(ours.values())) < len(ours) or len(set(theirs.values())) < len(theirs):
        plain = ({k: k for k in actual}, {k: k for k in expected})
        found = [_matched(actual, expected, *plain, p, "") for p in _prefixes(*plain)]
    found.sort(key=lambda each: (not each.fits, -each.same, len(each.prefix)))
    return [each for each in found if each.fits] or found[:1]


def _common(names: Iterable[str]) -> dict[str, str]:
    """Each name without wrappers, and in the new spelling of weight norm and spectral norm."""
    plain = {name: without_wrappers(name) for name in names}
    known = set(plain.values())
    return {name: _parametrized(short, known) for name, short in plain.items()}


def _parametrized(name: str, known: set[str]) -> str:
    """``x.weight_g`` as ``x.parametrizations.weight.original0``, if ``x.weight_v`` exists, and the like."""
    path, _, last = name.rpartition(".")
    tensor, _, suffix = last.rpartition("_")
    stem = f"{path}.{tensor}" if path else tensor
    into = ""
    if suffix in ("g", "v") and {f"{stem}_g", f"{stem}_v"} <= known:
        into = "original0" if suffix == "g" else "original1"
    elif suffix in ("orig", "u", "v") and {f"{stem}_orig", f"{stem}_u"} <= known:
        into = {"orig": "original", "u": "0._u", "v": "0._v"}[suffix]
    if not into or not tensor:
        return name
    return f"{path}.parametrizations.{tensor}.{into}".lstrip(".")


def _prefixes(longer: Mapping[str, str], shorter: Mapping[str, str]) -> list[str]:
    """What may stand before all names of the second in the first; the empty prefix comes first."""
    first = next((k for k in shorter.values() if not may_lack(k)), "")
    exact = [k[: -len(first)] for k in longer.values() if first and k.endswith(f".{first}")]
    return list(dict.fromkeys(["", *exact, *common_prefixes(longer.values())]))[:_PREFIXES]


def common_prefixes(names: Collection[str]) -> list[str]:
    """What stands before more than half of the names, up to three parts of them."""
    counted: Counter[str] = Counter()
    for name in names:
        parts = name.split(".", 4)
        counted.update(".".join(parts[:k]) + "." for k in range(1, min(len(parts), 4)))
    return [prefix for prefix, count in counted.items() if 2 * count > len(names)]


def _matched(
    actual: Shapes,
    expected: Shapes,
    theirs: Mapping[str, str],
    ours: Mapping[str, str],
    removed: str,
    added: str,
) -> Match:
    """The match with one prefix removed from the file's names, or added to them."""
    back = {short: name for name, short in ours.items()}
    names, outside = dict[str, str](), list[str]()
    for name, short in theirs.items():
        if not short.startswith(removed):
            outside.append(name)
            continue
        short = added + short.removeprefix(removed)
        names[name] = back.get(short, short)
    once = len(set(names.values())) == len(names)
    found = {mine: actual[name] for name, mine in names.items()}
    same = sum(found.get(k) == shape for k, shape in expected.items()) if once else -1
    whole = all(found.get(k) == v or (k not in found and may_lack(k)) for k, v in expected.items())
    more = any(k not in expected and not is_ignorable_tensor(k) for k in found)
    return Match(names, removed, tuple(outside), once and whole and not more, same)


_AVERAGES = "shadow_params"
_DEPTH = 3  # maximum depth of nested dictionaries
_LISTED = 5


@dataclass(frozen=True)
class UnnamedTensors:
    """A list of parameters in the file.

    Attributes:
        location: the keys that lead to it.
        tensors: the parameters.
    """

    location: tuple[str, ...]
    tensors: Sequence[Tensor]

    @property
    def in_words(self) -> str:
        """The keys as they are written in Python."""
        return "".join(f"['{key}']" for key in self.location)


def unnamed_in(
    value: Any, location: tuple[str, ...] = (), visited: set[int] | None = None
) -> Iterator[UnnamedTensors]:
    """Every such list in what a file holds, the outer ones first."""
    visited = set() if visited is None else visited
    if type(value) is not dict or len(location) > _DEPTH or id(value) in visited:
        return
    visited.add(id(value))  # a file may refer to the same dictionary many times
    found = value.get(_AVERAGES)
    if isinstance(found, (list, tuple)) and found and all(isinstance(t, Tensor) for t in found):
        yield UnnamedTensors((*location, _AVERAGES), found)
    for key, inner in value.items():
        if type(key) is str:
            yield from unnamed_in(inner, (*location, key), visited)


def with_module_names(found: UnnamedTensors, module: nn.Module) -> dict[str, Tensor]:
    """The tensors by the module's names; empty unless their number and all shapes fit."""
    parameters = list(module.parameters())
    if [p.shape for p in parameters] != [t.shape for t in found.tensors]:
        return {}
    by_id = {id(p): t for p, t in zip(parameters, found.tensors, strict=True)}
    return {name: by_id[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}


def complete(tensors: dict[str, Tensor], module: nn.Module) -> bool:
    """Whether nothing of the module is missing, such as running statistics."""
    return bool(tensors) and not _missing(tensors, module)


def unnamed_mismatch_error(path: Path, found: UnnamedTensors, module: nn.Module) -> UsageError:
    """The error for a file with nothing but such a list, which is not `complete`."""
    missing = _missing(with_module_names(found, module), module)
    parameters = list(module.named_parameters())
    differing = [
        f"number {k} is {list(t.shape)}, the module's {name} {list(p.shape)}"
        for k, (t, (name, p)) in enumerate(zip(found.tensors, parameters, strict=False))
        if t.shape != p.shape
    ]
    if len(found.tensors) != len(parameters):
        why = f"It has {len(found.tensors)} tensors, the module {len(parameters)} parameters."
    elif differing:
        why = f"It does not fit the module's parameters in their order: {differing[0]}."
    else:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        why = f"It fits the module's parameters, but lacks {', '.join(missing[:_LISTED])}{more}."
    return unnamed_only_error(path, found, why)


def unnamed_only_error(
    path: Path, found: UnnamedTensors, why: str = "Names and shapes tell which network it is."
) -> UsageError:
    """The error for a file whose only weights are such a list, where that is not enough."""
    return UsageError(
        f"The only weights of {path} are {found.in_words}, a list without names.",
        why,
        "Where it was trained, put the average into the network and save that: "
        "ema.copy_to(model.parameters()); torch.save(model.state_dict(), path).",
    )


def _missing(tensors: dict[str, Tensor], module: nn.Module) -> list[str]:
    return [k for k in module.state_dict() if k not in tensors and not may_lack(k)]
