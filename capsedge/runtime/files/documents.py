"""Read and write JSON documents, bounded when parsed and typed when used; read TOML; compare settings.

This is the only reader of models' metadata, engines' metadata files, configurations, calibration
tables and headers. `parse` returns plain values within the limits; `decode` turns them into a
dataclass, whose annotations are the schema. Every defect of a document raises `MalformedJson`. `dump`
writes what `parse` reads.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files.reading import open_regular_file
from capsedge.spec import limits

T = TypeVar("T")
Nan = Literal["refuse", "null", "keep"]
_INTEGER_DIGITS = 20  # 64 bits and a sign
_INTEGERS = range(-(2**63), 2**64)
_NAMES = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false",
    type(None): "null", dict: "an object", list: "a list", tuple: "a list",
}  # fmt: skip


class MalformedJson(ValueError):
    """A document from a file is invalid; the message states where and why."""


def read(path: Path, most: int = limits.JSON_VALUES) -> Any:
    """The JSON document in a file, with at most this many values."""
    with open_regular_file(path) as file:
        return parse(file.read(limits.JSON_BYTES + 1), most=most)


def parse(data: bytes | str, nan: Nan = "refuse", most: int = limits.JSON_VALUES) -> Any:
    """The plain values of a JSON document.

    Args:
        data: UTF-8.
        nan: what to do with NaN, infinities and numbers beyond doubles, which JSON does not define but
            Python writes: ``refuse``, take as ``null``, or ``keep``.
        most: values that it may have.
    """
    if len(data) > limits.JSON_BYTES:
        raise MalformedJson(f"it has over {limits.JSON_BYTES // limits.MIB} MiB")
    constant = _NUMBERS[nan]
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise MalformedJson("it is not UTF-8") from error
    # Every value except the first follows one of these, so no list that is too long is ever built.
    if sum(map(text.count, ",[{")) >= most:
        raise MalformedJson(f"it has over {most:,} values")
    try:
        values = json.loads(
            text,
            parse_int=_integer,
            parse_float=constant,
            parse_constant=constant,
            object_pairs_hook=_unique,
        )
    except RecursionError as error:
        raise MalformedJson(f"it is nested over {limits.JSON_DEPTH} deep") from error
    except json.JSONDecodeError as error:
        raise MalformedJson(f"it is not JSON: {error}") from error
    return check_plain_values(values, finite=nan != "keep", most=most)


def dump(values: Any) -> str:
    """The JSON text of plain values; numbers that JSON does not have (NaN, infinities) become null."""
    return json.dumps(_with_null(values), sort_keys=True, allow_nan=False)


def _with_null(values: Any) -> Any:
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {key: _with_null(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_with_null(value) for value in values]
    return values


def check_plain_values(values: Any, finite: bool = True, most: int = limits.JSON_VALUES) -> Any:
    """Check plain values from a source other than JSON against the same limits."""
    left = most
    rows = [iter((values,))]  # one per depth
    while rows:
        for value in rows[-1]:
            left -= 1
            if left < 0:
                raise MalformedJson(f"it has over {most:,} values")
            kind = type(value)
            if kind is str:
                _check_text(value)
            elif kind is int:
                if value not in _INTEGERS:
                    raise MalformedJson("it has a number of over 64 bits")
            elif kind is float:
                if finite and not math.isfinite(value):
                    raise MalformedJson("it has a number that is not finite")
            elif kind in (dict, list, tuple):
                if len(rows) >= limits.JSON_DEPTH:
                    raise MalformedJson(f"it is nested over {limits.JSON_DEPTH} deep")
                if kind is dict:
                    for key in value:
                        if type(key) is not str:
                            raise MalformedJson("it has a key that is not a string")
                        _check_text(key)
                    value = value.values()
                rows.append(iter(value))
                break
            elif kind is not bool and value is not None:
                raise MalformedJson(f"it has a value of the type {kind.__name__}")
        else:
            rows.pop()
    return values


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise MalformedJson("it has half a surrogate pair") from None


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS:
        raise MalformedJson("it has a number of over 64 bits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise MalformedJson(f"it has the number {_short(digits)}")
    return value


def _or_null(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


_NUMBERS: dict[Nan, Callable[[str], float | None]] = {
    "refuse": _finite, "null": _or_null, "keep": float,
}  # fmt: skip


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise MalformedJson(f"it names '{_short(key)}' twice")
            seen.add(key)
    return document


def decode(kind: type[T], values: Any, name: str = "") -> T:
    """An instance of a dataclass (or another type) from plain values.

    Fields are checked against their annotations: ``int``, ``float``, ``str``, ``bool``, ``None``, ``Any``,
    dataclasses, and tuples, lists, mappings with string keys and unions of them. Whole numbers are accepted
    for ``float``. Fields without a default are required; fields that the class does not have are refused.

    Args:
        name: the name of the value in errors; empty for the whole document.
    """
    return typing.cast(T, _decode(kind, values, name))


def _decode(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, name)
    if origin in (Union, types.UnionType):
        return _decode(_alternative(arguments, value, name), value, name)
    if origin in (tuple, list):
        return _sequence(origin, arguments, value, name)
    if origin is not None and issubclass(origin, Mapping):
        if type(value) is not dict:
            raise _wrong(name, value, "an object")
        return {key: _decode(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _wrong(name, value, _NAMES.get(kind, str(kind)))
    return value


def _object(kind: Any, value: Any, name: str) -> Any:
    if type(value) is not dict:
        raise _wrong(name, value, "an object")
    annotations = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in value:
        if key not in fields:
            raise MalformedJson(f"unknown: {_join(name, _short(key))}")
    for key, field in fields.items():
        free = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if free and key not in value:
            raise MalformedJson(f"missing: {_join(name, key)}")
    decoded = {k: _decode(annotations[k], v, _join(name, k)) for k, v in value.items()}
    try:
        return kind(**decoded)
    except ValueError as error:  # raised by the class's own checks
        if isinstance(error, MalformedJson):
            raise
        raise MalformedJson(f"{name}: {error}" if name else str(error)) from error


def _alternative(kinds: tuple[Any, ...], value: Any, name: str) -> Any:
    """The member of a union that the value's JSON type points to."""
    for kind in kinds:
        origin = typing.get_origin(kind) or kind
        if dataclasses.is_dataclass(kind) or (
            isinstance(origin, type) and issubclass(origin, Mapping)
        ):
            wanted: tuple[type, ...] = (dict,)
        elif origin in (tuple, list):
            wanted = (list, tuple)
        else:
            wanted = (float, int) if kind is float else (kind,)
        if type(value) in wanted:
            return kind
    raise _wrong(name, value, " or ".join(_NAMES.get(k, "an object") for k in kinds))


def _sequence(origin: Any, arguments: tuple[Any, ...], value: Any, name: str) -> Any:
    if type(value) not in (list, tuple):
        raise _wrong(name, value, "a list")
    if origin is list or arguments[-1] is Ellipsis:
        if set(map(type, value)) <= {arguments[0]}:  # long lists of numbers at once
            return origin(value)
        kinds = [arguments[0]] * len(value)
    elif len(value) != len(arguments):
        raise MalformedJson(f"{name} has {len(value)} values, wanted {len(arguments)}")
    else:
        kinds = list(arguments)
    return origin(
        _decode(kind, item, f"{name}[{k}]")
        for k, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[:most] + "..."


def _wrong(name: str, value: Any, wanted: str) -> MalformedJson:
    kind = _NAMES.get(type(value), type(value).__name__)
    return MalformedJson(f"{_short(name) or 'the document'} is {kind}, wanted {wanted}")


_MOST = 4 * limits.MIB  # tomllib takes seconds for it


def read_toml(path: Path | str, fix: str) -> dict[str, Any]:
    """The plain values of a file: no dates, no infinite numbers, and not too many.

    Args:
        fix: what to do if it is no file.

    Raises:
        UsageError: it cannot be opened.
        MalformedJson: it is not TOML, too large, or has other values.
        EnvironmentProblem: Python is older than 3.11 and tomli is not installed.
    """
    with open_regular_file(path, fix) as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise MalformedJson(f"it has over {_MOST // limits.MIB} MiB")
    try:
        return dict(check_plain_values(_parsed(data)))
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"{error}") from error


def _parsed(data: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise EnvironmentProblem(
                "TOML files need tomli.", f"{error}.", "pip install 'capsedge[build]'"
            ) from error
    return tomllib.loads(data.decode())


_SHOWN = 4
_MISSING = object()


def changed_settings(stored: Any, current: Any) -> str:
    """What differs, in words: ``lr was 0.001 and is now 0.002``; empty if nothing does.

    Args:
        stored: settings of the unfinished run, as plain values; may come from a damaged file.
        current: those of this run.
    """
    before, now = dict(_leaves(stored)), dict(_leaves(current))
    changes = [
        f"{name} {_was(before.get(name, _MISSING))} and {_is(now.get(name, _MISSING))}"
        for name in [*now, *(name for name in before if name not in now)]
        if before.get(name, _MISSING) != now.get(name, _MISSING)
    ]
    more = len(changes) - _SHOWN
    return "; ".join(changes[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The single values with the names that lead to them; lists of plain values are one value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else f"{key}")
    elif isinstance(value, Sequence) and any(isinstance(inner, Mapping) for inner in value):
        for inner in value:
            yield from _leaves(inner, name)
    else:
        yield name or "the settings", list(value) if isinstance(value, tuple) else value


def _was(value: Any) -> str:
    return "was not set" if value in (_MISSING, None) else f"was {value!s:.40}"


def _is(value: Any) -> str:
    return "is not set now" if value in (_MISSING, None) else f"is now {value!s:.40}"
