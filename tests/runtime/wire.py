"""ONNX files written byte by byte: as protobuf allows them, and as nobody would write them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

MASK = (1 << 64) - 1
_WIRES = {
    FieldDescriptor.TYPE_INT64: 0, FieldDescriptor.TYPE_INT32: 0, FieldDescriptor.TYPE_UINT64: 0,
    FieldDescriptor.TYPE_ENUM: 0, FieldDescriptor.TYPE_FLOAT: 5, FieldDescriptor.TYPE_DOUBLE: 1,
}  # fmt: skip


def varint(value: int, width: int = 0) -> bytes:
    """A number in at least ``width`` bytes: more than it needs make it over-long."""
    value &= MASK
    parts = bytearray()
    while value >= 0x80 or len(parts) + 1 < width:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(parts) + bytes([value])


def field(number: int, value: bytes | int, wire: int = -1, tag_width: int = 0) -> bytes:
    """A field: a number as a varint, bytes with their length; another wire type takes bytes as they are."""
    wire = wire if wire >= 0 else 0 if isinstance(value, int) else 2
    tag = varint(number << 3 | wire, tag_width)
    if isinstance(value, int):
        return tag + varint(value)
    return tag + (varint(len(value)) if wire == 2 else b"") + value


def long_tag(number: int, wire: int, above: int = 1) -> bytes:
    """A tag with a bit that protobuf drops: the number's, as it reads it, in the lower 32."""
    return varint(number << 3 | wire | above << 32)


def model(graph: bytes, *others: bytes) -> bytes:
    """A whole file around a graph."""
    return b"".join((field(1, 10), field(8, field(2, 20)), field(7, graph), *others))


class Writer:
    """Random models by the official descriptors; ``tricks`` is how often a field is written oddly."""

    def __init__(self, seed: int, tricks: float) -> None:
        self.random = random.Random(seed)
        self.tricks = tricks
        self.left = 60  # messages

    def model(self) -> bytes:
        body = self.message(onnx.ModelProto.DESCRIPTOR, 0, skip=(1, 7, 8))
        graph = self.message(onnx.GraphProto.DESCRIPTOR, 1)
        return model(graph, body)

    def message(self, kind: Descriptor, depth: int, skip: tuple[int, ...] = ()) -> bytes:
        self.left -= 1
        pieces = []
        chosen = {group.name: self.random.choice(group.fields) for group in kind.oneofs}
        for one in kind.fields:
            group = one.containing_oneof
            if group is not None and chosen[group.name] != one and not self.odd():
                continue
            if one.number in skip or self.random.random() < (0.3 if depth < 3 else 0.55):
                continue
            if one.message_type is not None and (depth > 9 or self.left < 0):
                continue
            times = self.random.choice((1, 1, 2)) if one.is_repeated else 1
            if not one.is_repeated and self.odd():
                times = 2  # merged, or the last one wins
            pieces += [self.field(one, depth) for _ in range(times)]
        if self.odd():
            self.random.shuffle(pieces)
        if self.odd():
            pieces.append(self.stranger())
        return b"".join(pieces)

    def field(self, one: FieldDescriptor, depth: int) -> bytes:
        r = self.random
        tag_width = r.randint(2, 6) if self.odd() else 0
        if one.message_type is not None:
            inner = self.message(one.message_type, depth + 1)
            if self.odd():  # a group, or a length in too many bytes
                if r.random() < 0.3:
                    return varint(one.number << 3 | 3) + inner + varint(one.number << 3 | 4)
                return varint(one.number << 3 | 2) + varint(len(inner), r.randint(2, 6)) + inner
            tag = varint(one.number << 3 | 2, tag_width)
            if self.odd():
                tag = long_tag(one.number, 2, r.choice((1, 1 << 3, 1 << 20)))
            return tag + varint(len(inner)) + inner
        wire = _WIRES.get(one.type, 2)
        if self.odd():
            wire = r.choice((0, 1, 2, 5))
        if wire == 0:
            value = r.choice((0, 1, 1, 2, 3, 7, -1))
            if self.odd():
                value = r.choice((1 << 32 | 1, 1 << 63, (1 << 40) + 1, 2**31))
            if one.is_repeated and r.random() < 0.5:
                return field(one.number, varint(value) * 2, 2)
            width = r.randint(2, 10) if self.odd() else 0
            return varint(one.number << 3, tag_width) + varint(value, width)
        if wire in (1, 5):
            return field(one.number, struct.pack("<d" if wire == 1 else "<f", 0.5), wire, tag_width)
        words = (
            "",
            "w",
            "location",
            "/etc/hostname",
            "Relu",
            "Conv",
            "capsedge",
            "ai.onnx",
            "x",
            "é",
        )
        text = r.choice(words).encode()
        if self.odd():
            text = r.choice((b"\xff", b"a\0b", b"\xc0\x80", b"EPContext"))
        return field(one.number, text, 2, tag_width)

    def stranger(self) -> bytes:
        r = self.random
        number = r.choice((0, 12, 17, 24, 31, 99, 1 << 20, 1 << 28))
        return field(number, r.choice((5, b"abc")))

    def odd(self) -> bool:
        return self.random.random() < self.tricks


def messages(root: Message, kind: str) -> Iterator[Any]:
    """All messages of a kind, wherever they are, as protobuf sees them."""
    if root.DESCRIPTOR.name == kind:
        yield root
    for one, value in root.ListFields():
        if one.message_type is None:
            continue
        for inner in value if one.is_repeated else (value,):
            yield from messages(inner, kind)


def mutated(seeds: Sequence[bytes], count: int, seed: int = 1) -> Iterator[bytes]:
    """Files with bytes changed, lost or doubled; none is empty."""
    r = random.Random(seed)
    for _ in range(count):
        data = bytearray(r.choice(seeds))
        for _ in range(r.randint(1, 4)):
            at = r.randrange(len(data))
            kind = r.random()
            if kind < 0.5:
                data[at] = r.choice((r.randrange(256), data[at] ^ 1 << r.randrange(8), 0x80, 0xFF))
            elif kind < 0.75:
                del data[at : at + r.randint(1, 9)]
            else:
                data[at:at] = bytes(data[(b := r.randrange(len(data))) : b + r.randint(1, 30)])
            if not data:
                data = bytearray(b"\x08")
        yield bytes(data)
