"""Read and write protobuf's wire format: the walk over the bytes of a message, and the encoding of fields.

The encoding is described at https://protobuf.dev/programming-guides/encoding. What the fields mean is the
caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from capsedge.spec import limits

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED32: 4, FIXED64: 8}


class MalformedProtobuf(Exception):
    """The bytes are not a valid message."""


class Wire:
    """Reads protobuf's wire format, and refuses bytes that protobuf would read differently.

    Args:
        data: the message, whole.
        most: fields that it may have.

    Attributes:
        seen: fields so far.

    Every method raises ``MalformedProtobuf`` for bytes that are not valid.
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
                raise MalformedProtobuf(f"it has more than {self._most:,} fields")
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
                    raise MalformedProtobuf(
                        f"a field at byte {at} needs {length:,} bytes and {end - at:,} are left"
                    )
                yield tag >> 3, wire, at, at + length
                at += length
            elif wire in _WIDTHS:
                width = _WIDTHS[wire]
                if width > end - at:
                    raise MalformedProtobuf(f"it ends inside the field at byte {at}")
                yield tag >> 3, wire, at, at + width
                at += width
            else:
                raise MalformedProtobuf(f"a field at byte {at} has the unknown wire type {wire}")

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
            raise MalformedProtobuf(f"the tag at byte {at} is too long")
        return tag, after

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, and where it ends."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise MalformedProtobuf(f"it ends at byte {at}, inside a number")
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 64:
                    raise MalformedProtobuf(f"a number at byte {at} has more than 64 bits")
                return value, at
        raise MalformedProtobuf(f"a number at byte {at} does not end")

    def end_of_number(self, start: int) -> int:
        """Where a number whose tag is at ``start`` ends; models have only number fields and length-delimited
        ones.
        """
        _, after = self.tag(start, len(self.data))
        return self.varint(after, len(self.data))[1]

    def text(self, start: int, end: int) -> str:
        """The bytes as UTF-8; raises ``UnicodeDecodeError`` if they are not."""
        return self.data[start:end].decode()


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
