"""Messages in protobuf's text format, written without the package ``protobuf``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias


class Symbol(str):
    """A value of an enumeration, which stands without quotes."""


Scalar: TypeAlias = "Symbol | str | bool | int"
Message: TypeAlias = Mapping[str, Any]  # scalars, messages, and lists of either

_PLAIN = range(0x20, 0x7F)


def text_format(message: Message) -> str:
    """The text of a message, a line for each field; a sequence repeats its field."""
    return "".join(f"{line}\n" for line in _lines(message, ""))


def _lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message.items():
        several = isinstance(value, Sequence) and not isinstance(value, str)
        for each in value if several else [value]:
            if isinstance(each, Mapping):
                yield f"{indent}{name} {{"
                yield from _lines(each, f"{indent}  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_scalar(each)}"


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, Symbol)):
        return str(value)
    return '"' + "".join(_escaped(byte) for byte in value.encode()) + '"'


def _escaped(byte: int) -> str:
    """A byte of a string; whatever is not plain ASCII as an octal escape, which no parser reads otherwise."""
    letter = chr(byte)
    return letter if byte in _PLAIN and letter not in '"\\' else f"\\{byte:03o}"
