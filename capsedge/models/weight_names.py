"""Match the names of tensors in a file with those of a module, however either was wrapped. Needs no torch.

Wrappers (DataParallel, torch.compile) and both spellings of weight norm and spectral norm are brought to
one form on both sides. A prefix for the whole is then removed or added. A renaming counts only if names and
shapes fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

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


def may_have(name: str) -> bool:
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
    more = any(k not in expected and not may_have(k) for k in found)
    return Match(names, removed, tuple(outside), once and whole and not more, same)
