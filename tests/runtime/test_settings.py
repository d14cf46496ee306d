"""Which settings differ between two runs, in words."""

from __future__ import annotations

import pytest

from capsedge.runtime.files.documents import changed_settings


@pytest.mark.parametrize(
    ("stored", "current", "words"),
    [
        ({"lr": 0.1}, {"lr": 0.1}, ""),
        ({"lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 1}, "lr was 0.1 and is now 0.2"),
        ([{"a": {"b": 1}}, {"c": None}], [{"a": {"b": 2}}, {"c": 3}],
         "a.b was 1 and is now 2; c was not set and is now 3"),
        ({"sizes": [1, 2]}, {"sizes": (1, 2)}, ""),
        ({"gone": 1}, {}, "gone was 1 and is not set now"),
        ("not settings", {"lr": 1}, "lr was not set and is now 1; the settings was not settings and "
         "is not set now"),
        (dict.fromkeys("abcdef", 0), dict.fromkeys("abcdef", 1),
         "; ".join(f"{k} was 0 and is now 1" for k in "abcd") + "; and 2 more"),
    ],
)  # fmt: skip
def test_changed_settings(stored: object, current: object, words: str) -> None:
    assert changed_settings(stored, current) == words
