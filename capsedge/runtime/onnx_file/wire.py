"""Walk over the messages of an ONNX file, which are those of ``spec.onnx_wire``, and replace its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from capsedge.runtime.files.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    MalformedProtobuf,
    Wire,
    message,
)
from capsedge.spec import limits, onnx_wire
from capsedge.spec.onnx_wire import SCHEMA

_WIRES = {"int64": VARINT, "int32": VARINT, "float": FIXED32, "double": FIXED64}


class OnnxField(NamedTuple):
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
    message: OnnxMessage | None = None


@dataclass
class OnnxMessage:
    """A message and its fields by tag: the number times 8, plus the wire type."""

    name: str
    fields: dict[int, OnnxField] = field(default_factory=dict)


def _parse() -> dict[str, OnnxMessage]:
    lines = [line.split(" ", 1) for line in SCHEMA.replace(",\n   ", ",").strip().split("\n")]
    messages = {name: OnnxMessage(name) for name, _ in lines}
    for name, declared in lines:
        one_of = 1  # the first bit is the oneof's
        for bit, entry in enumerate(declared.split(", "), start=1):
            number, kind = entry.split(" ")
            plain = kind.rstrip("*|")
            once = 0 if kind.endswith("*") else one_of if kind.endswith("|") else 1 << bit
            wire = _WIRES.get(plain, BYTES)
            field = OnnxField(
                int(number), once, plain == "int32" and once != 0, messages.get(plain)
            )
            fields = messages[name].fields
            fields[field.number << 3 | wire] = field
            if once == 0:  # numbers may stand one by one or packed together
                fields[field.number << 3 | BYTES] = field
    return messages


MODEL = _parse()["ModelProto"]

# What a message's fields hold: a number as it is, anything else as the bytes start:end.
FieldValues = dict[int, "int | tuple[int, int]"]


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

    def walk(self, message: OnnxMessage, start: int, end: int, depth: int = 0) -> FieldValues:
        """Go through a message and all below it; the last value of each of its own fields."""
        if depth > limits.WIRE_DEPTH:
            raise MalformedProtobuf(f"its messages are nested more than {limits.WIRE_DEPTH} deep")
        self._entered += 1
        if self._entered > limits.WIRE_MESSAGES:
            raise MalformedProtobuf(f"it has more than {limits.WIRE_MESSAGES:,} messages")
        fields: FieldValues = {}
        known, visited, stood = message.fields, self.visited, 0
        for number, wire, a, b in self.fields(start, end):
            entry = known.get(number << 3 | wire)
            if entry is None:
                raise MalformedProtobuf(
                    f"a {message.name} has a field {number} of wire type {wire} at byte {a}, "
                    "which the format lacks"
                )
            if stood & entry.once:
                raise MalformedProtobuf(f"a {message.name} has its field {number} twice")
            stood |= entry.once
            if entry.narrow and (1 << 31) <= a < (1 << 64) - (1 << 31):
                raise MalformedProtobuf(
                    f"a {message.name} has a number of over 32 bits in field {number}"
                )
            fields[number] = a if wire == VARINT else (a, b)
            if entry.message is not None:
                inner = self.walk(entry.message, a, b, depth + 1)
                needed = visited.get(entry.message.name)
                if needed is not None and (not needed or not needed.isdisjoint(inner)):
                    self.take(message, entry.message, number, inner, (a, b))
        return fields

    def take(
        self,
        parent: OnnxMessage,
        message: OnnxMessage,
        number: int,
        fields: FieldValues,
        within: tuple[int, int],
    ) -> None:
        """Note what is wanted of a message, the field ``number`` of its parent, at some bytes."""
        raise NotImplementedError

    def text_of(self, fields: FieldValues, *numbers: int) -> list[str]:
        """Fields as text; empty for those that are not there."""
        spans = map(fields.get, numbers)
        return [self.data[slice(*s)].decode() if isinstance(s, tuple) else "" for s in spans]


def number_of(fields: FieldValues, number: int) -> int:
    """A field that is a number; 0 if it is not there."""
    value = fields.get(number)
    return value if isinstance(value, int) else 0


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
