"""Define patterns of keys and shapes, and measure how well a file fits them.

``{"conv1.weight": "C A K K"}`` describes a tensor ``conv1.weight`` with four axes, the last two equal.
A letter stands for one size throughout the file, a number for itself. ``{D}`` in a key stands for 0, 1, 2 ...
and binds ``D`` to their number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Shapes = Mapping[str, tuple[int, ...]]
Patterns = Mapping[str, str]
_COUNTED = re.compile(r"\{(\w+)\}")


@dataclass
class Fit:
    """How well shapes fit patterns.

    Attributes:
        sizes: sizes of the letters.
        matched: keys that fit.
        missing: patterns without a key.
        wrong: what is wrong with the shapes of existing keys, in words.
        unknown: keys that no pattern covers.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    matched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.wrong or self.unknown)


def fit(shapes: Shapes, required: Patterns, optional: Sequence[Patterns] = ()) -> Fit:
    """Compare shapes with patterns; of a group in ``optional``, all keys are present or none."""
    fit = Fit()
    for key, pattern in required.items():
        _compare(shapes, key, pattern, fit)
    for group in optional:
        if any(_keys(shapes, key) for key in group):
            for key, pattern in group.items():
                _compare(shapes, key, pattern, fit)
    known = {*fit.matched, *(w.split(" ")[0] for w in fit.wrong)}
    fit.unknown = [key for key in shapes if key not in known]
    return fit


def _keys(shapes: Shapes, key: str) -> list[str]:
    """The keys that a pattern stands for: one, or those with 0, 1, 2 ... as far as they exist."""
    if not _COUNTED.search(key):
        return [key] if key in shapes else []
    keys: list[str] = []
    while (name := _COUNTED.sub(str(len(keys)), key)) in shapes:
        keys.append(name)
    return keys


def _compare(shapes: Shapes, key: str, pattern: str, actual: Fit) -> None:
    keys = _keys(shapes, key)
    if not keys:
        actual.missing.append(key)
        return
    counted = _COUNTED.search(key)
    if counted and actual.sizes.setdefault(counted[1], len(keys)) != len(keys):
        actual.wrong.append(f"{key} is there {len(keys)} times, not {actual.sizes[counted[1]]}")
    for name in keys:
        shape, letters = shapes[name], pattern.split()
        fits = len(shape) == len(letters) and all(
            (int(letter) if letter.isdigit() else actual.sizes.setdefault(letter, size)) == size
            for letter, size in zip(letters, shape, strict=True)
        )
        if fits:
            actual.matched.append(name)
        else:
            wanted = " x ".join(_in_words(letter, actual.sizes) for letter in letters)
            actual.wrong.append(f"{name} is {' x '.join(map(str, shape))}, not {wanted}")


def _in_words(letter: str, sizes: Mapping[str, int]) -> str:
    return f"{sizes[letter]}" if letter in sizes else letter
