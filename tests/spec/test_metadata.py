"""The dataclasses of the metadata have the fields of the specification."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

import pytest

from capsedge.runtime.metadata.engine_metadata import EngineMetadata
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.metadata.table_indices import InputBounds
from capsedge.spec.fields import ENGINE_FIELDS, FIELDS, INPUT_FIELDS, REQUIRED, MetadataField
from capsedge.spec.limits import LIMITS, OPTIONS
from capsedge.spec.vocabularies import VOCABULARIES

KINDS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    tuple[str, ...]: "strings",
    tuple[float, ...]: "numbers",
    tuple[int, int, int]: "integers",
    tuple[int, ...]: "list of integers",
    tuple[float, float]: "pair of numbers",
    tuple[int, int]: "pair of integers",
    Mapping[str, str]: "map of strings",
    Mapping[str, int]: "map of integers",
    Mapping[str, str | int | float | bool | None]: "map of scalars",
    Mapping[str, Any]: "values",
}


@pytest.mark.parametrize(
    ("declared", "fields"),
    [(ModelMetadata, FIELDS), (EngineMetadata, ENGINE_FIELDS), (InputBounds, INPUT_FIELDS)],
)
def test_dataclasses_have_the_fields(declared: type, fields: tuple[MetadataField, ...]) -> None:
    hints = typing.get_type_hints(declared)
    own = dataclasses.fields(declared)
    assert [f.name for f in own] == [f.name for f in fields]
    for found, wanted in zip(own, fields, strict=True):
        kind, nullable = _plain(hints[found.name])
        assert nullable == wanted.nullable, wanted.name
        assert _default(found) == wanted.default, wanted.name
        if wanted.kind == "objects":
            kind = typing.get_args(kind)[0]
        if wanted.members:
            test_dataclasses_have_the_fields(kind, wanted.members)
        else:
            assert KINDS[kind] == wanted.kind, wanted.name


def test_words_have_enumerators_of_their_own() -> None:
    for name, words in VOCABULARIES.items():
        assert len(set(words)) == len(words), name


def test_texts_have_limits_that_the_browser_has_too() -> None:
    for field in FIELDS:
        if field.limit:
            assert LIMITS[field.limit].unit == "bytes"
            assert field.limit in OPTIONS


def _plain(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether it had it."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union) and type(None) in parts:
        return next(part for part in parts if part is not type(None)), True
    return hint, False


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default
