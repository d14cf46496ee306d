"""Plain values as YAML in block style, written without a YAML package.

Every scalar is written as JSON writes it, which YAML 1.2 reads as the same value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def block_style(document: Mapping[str, Any]) -> str:
    """The text of a document of mappings, lists of scalars, and scalars; keys are plain words."""
    return "".join(f"{line}\n" for line in _lines(document))


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {line}" for line in _lines(value))
        elif isinstance(value, list):
            yield f"{key}:"
            yield from (f"  - {json.dumps(each)}" for each in value)
        else:
            yield f"{key}: {json.dumps(value)}"
