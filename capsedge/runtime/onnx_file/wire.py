"""Read the wire format of ONNX files: the walk over the bytes, new metadata.

The messages are those of ``spec.onnx_wire``.
The encoding is protobuf's (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from capsedge.spec import limits, onnx_wire
from capsedge.spec.onnx_wire import SCHEMA

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED32: 4, FIXED64: 8}
_WIRES = {"int64": VARINT, "int32": VARINT, "float": FIXED32, "double": FIXED64}


class Field(NamedTuple):
    """The field of a tag.

    Attributes:
        number: of the field.
        once: its bit among the fields that stand at most once; 0 for a repeated one.
        narrow: its values have 32 bits, and protobuf drops the others.
        message: of a submessage.
    """

    number: int
    once: int = 0
    narrow: bool = False
    message: Message | None = None


@dataclass
class Message:
    """A message and its fields by tag: the number times 8, plus the wire type."""

    name: str
    fields: dict[int, Field] = field(default_factory=dict)


def _parse() -> dict[str, Message]:
    lines = [line.split(" ", 1) for line in SCHEMA.replace(",\n   ", ",").strip().split("\n")]
    messages = {name: Message(name) for name, _ in lines}
    for name, declared in lines:
        one_of = 1  # the first bit is the oneof's
        for bit, entry in enumerate(declared.split(", "), start=1):
            number, kind = entry.split(" ")
            plain = kind.rstrip("*|")
            once = 0 if kind.endswith("*") else one_of if kind.endswith("|") else 1 << bit
            wire = _WIRES.get(plain, BYTES)
            found = Field(int(number), once, plain == "int32" and once != 0, messages.get(plain))
            fields = messages[name].fields
            fields[found.number << 3 | wire] = found
            if once == 0:  # numbers may stand one by one or packed together
                fields[found.number << 3 | BYTES] = found
    return messages


MODEL = _parse()["ModelProto"]

# What a message's fields hold: a number as it is, anything else as the bytes start:end.
FieldValues = dict[int, "int | tuple[int, int]"]


class Malformed(Exception):
    """The bytes are not a valid message."""


class Wire:
    """Reads protobuf's wire format, and refuses bytes that protobuf would read differently.

    Args:
        data: the message, whole.
        most: fields that it may have.

    Attributes:
        seen: fields so far.

    Every method raises ``Malformed`` for bytes that are not valid.
    """

    def __init__(self, data: bytes, most: int = limits.WIRE_FIELDS) -> None:
        self.data = data
        self.seen = 0
        self._most = most

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield ``(number, wire type, a, b)``: the value as ``a``, or the bytes as ``a:b``."""
        data, at = self.data, start
        while at < end:
            self.seen += 1
            if self.seen > self._most:
                raise Malformed(f"it has more than {self._most:,} fields")
            tag = data[at]
            if tag < 0x80:
                at += 1
            else:
                tag, at = self.tag(at, end)
            wire = tag & 7
            if wire == VARINT:
                value, at = self.varint(at, end)
                yield tag >> 3, wire, value, 0
            elif wire == BYTES:
                length, at = self.varint(at, end)
                if length > end - at:
                    raise Malformed(
                        f"a field at byte {at} needs {length:,} bytes and {end - at:,} are left"
                    )
                yield tag >> 3, wire, at, at + length
                at += length
            elif wire in _WIDTHS:
                width = _WIDTHS[wire]
                if width > end - at:
                    raise Malformed(f"it ends inside the field at byte {at}")
                yield tag >> 3, wire, at, at + width
                at += width
            else:
                raise Malformed(f"a field at byte {at} has the unknown wire type {wire}")

    def messages(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The length-delimited fields alone."""
        for number, wire, a, b in self.fields(start, end):
            if wire == BYTES:
                yield number, a, b

    def spans(self, start: int, end: int, *numbers: int) -> list[tuple[int, int]]:
        """The positions of the length-delimited fields with some numbers, in order."""
        return [
            (a, b) for n, wire, a, b in self.fields(start, end) if wire == BYTES and n in numbers
        ]

    def texts(self, start: int, end: int, *numbers: int) -> list[list[str]]:
        """The fields of each number as text."""
        found: dict[int, list[str]] = {number: [] for number in numbers}
        for number, wire, a, b in self.fields(start, end):
            if wire == BYTES and number in found:
                found[number].append(self.data[a:b].decode())
        return list(found.values())

    def first_text(self, start: int, end: int, number: int) -> str:
        """The first field of a number as text; empty if there is none."""
        for n, wire, a, b in self.fields(start, end):
            if wire == BYTES and n == number:
                return self.text(a, b)
        return ""

    def tag(self, at: int, end: int) -> tuple[int, int]:
        """A field's number and wire type: 32 bits to protobuf, which drops any others."""
        tag, after = self.varint(at, end)
        if tag >= 1 << 32 or tag >> 7 * (after - at - 1) == 0:
            raise Malformed(f"the tag at byte {at} is too long")
        return tag, after

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, and where it ends."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise Malformed(f"it ends at byte {at}, inside a number")
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 64:
                    raise Malformed(f"a number at byte {at} has more than 64 bits")
                return value, at
        raise Malformed(f"a number at byte {at} does not end")

    def end_of_number(self, start: int) -> int:
        """Where a number whose tag is at ``start`` ends; models have only number fields and length-delimited
        ones.
        """
        _, after = self.tag(start, len(self.data))
        return self.varint(after, len(self.data))[1]

    def text(self, start: int, end: int) -> str:
        """The bytes as UTF-8; raises ``UnicodeDecodeError`` if they are not."""
        return self.data[start:end].decode()


class Walker(Wire):
    """Walks through a whole message by the schema, and reports the messages that it finds.

    Attributes:
        visited: names of the messages that ``take`` is called for, with the fields of which one must be
            there; none for all of these messages.
    """

    visited: ClassVar[Mapping[str, frozenset[int]]] = {}

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._entered = 0

    def walk(self, message: Message, start: int, end: int, depth: int = 0) -> FieldValues:
        """Go through a message and all below it; the last value of each of its own fields."""
        if depth > limits.WIRE_DEPTH:
            raise Malformed(f"its messages are nested more than {limits.WIRE_DEPTH} deep")
        self._entered += 1
        if self._entered > limits.WIRE_MESSAGES:
            raise Malformed(f"it has more than {limits.WIRE_MESSAGES:,} messages")
        found: FieldValues = {}
        known, visited, stood = message.fields, self.visited, 0
        for number, wire, a, b in self.fields(start, end):
            entry = known.get(number << 3 | wire)
            if entry is None:
                raise Malformed(
                    f"a {message.name} has a field {number} of wire type {wire} at byte {a}, "
                    "which the format lacks"
                )
            if stood & entry.once:
                raise Malformed(f"a {message.name} has its field {number} twice")
            stood |= entry.once
            if entry.narrow and (1 << 31) <= a < (1 << 64) - (1 << 31):
                raise Malformed(f"a {message.name} has a number of over 32 bits in field {number}")
            found[number] = a if wire == VARINT else (a, b)
            if entry.message is not None:
                inner = self.walk(entry.message, a, b, depth + 1)
                needed = visited.get(entry.message.name)
                if needed is not None and (not needed or not needed.isdisjoint(inner)):
                    self.take(message, entry.message, number, inner, (a, b))
        return found

    def take(
        self,
        parent: Message,
        message: Message,
        number: int,
        found: FieldValues,
        within: tuple[int, int],
    ) -> None:
        """Note what is wanted of a message, the field ``number`` of its parent, at some bytes."""
        raise NotImplementedError

    def text_of(self, found: FieldValues, *numbers: int) -> list[str]:
        """Fields as text; empty for those that are not there."""
        spans = map(found.get, numbers)
        return [self.data[slice(*s)].decode() if isinstance(s, tuple) else "" for s in spans]


def number_of(found: FieldValues, number: int) -> int:
    """A field that is a number; 0 if it is not there."""
    value = found.get(number)
    return value if isinstance(value, int) else 0


def length_delimited(number: int, content: bytes) -> bytes:
    """An encoded field of text, bytes or a message."""
    return varint_of(number << 3 | BYTES) + varint_of(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    """An encoded field of a number."""
    return varint_of(number << 3 | VARINT) + varint_of(value)


def message(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Fields of text, bytes or messages, one after another."""
    return b"".join(length_delimited(number, content) for number, content in fields)


def varint_of(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first, as protobuf and WebAssembly (LEB128) have it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


# --- Replacing the metadata in a file's bytes ---


def with_properties(
    data: bytes, properties: Mapping[str, str], prefix: str | tuple[str, ...]
) -> bytes:
    """The file with ``properties`` in place of all whose keys begin with ``prefix``, or with one of several.

    Args:
        data: an ONNX file that `onnx_file.summarize` has accepted.
    """
    wire = Wire(data)
    entries = message([(onnx_wire.MODEL_METADATA, _entry(k, v)) for k, v in properties.items()])
    before: list[bytes] = []
    after: list[bytes] = []  # fields of higher numbers follow the metadata, as protobuf writes them
    start = 0
    for number, kind, a, b in wire.fields(0, len(data)):
        end = b if kind == BYTES else wire.end_of_number(start)
        ours = number == onnx_wire.MODEL_METADATA and _key(wire, a, b).startswith(prefix)
        if not ours:
            (after if after or number > onnx_wire.MODEL_METADATA else before).append(
                data[start:end]
            )
        start = end
    return b"".join((*before, entries, *after))


def _key(wire: Wire, start: int, end: int) -> str:
    spans = {number: (a, b) for number, a, b in wire.messages(start, end)}
    return wire.text(*spans[onnx_wire.ENTRY_KEY]) if onnx_wire.ENTRY_KEY in spans else ""


def _entry(key: str, value: str) -> bytes:
    return message(((onnx_wire.ENTRY_KEY, key.encode()), (onnx_wire.ENTRY_VALUE, value.encode())))
