"""Other metadata in an ONNX file whose remaining bytes stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.runtime.reading.wire import BYTES, Wire

_MODEL_METADATA = 14  # of ModelProto, repeated
_ENTRY_KEY, _ENTRY_VALUE = 1, 2


def with_properties(
    data: bytes, properties: Mapping[str, str], prefix: str | tuple[str, ...]
) -> bytes:
    """The file with ``properties`` in place of all whose keys begin with ``prefix``, or with one of several.

    Args:
        data: an ONNX file that `onnx_file.summarize` has accepted.
    """
    wire = Wire(data)
    entries = [_field(_MODEL_METADATA, _entry(k, v)) for k, v in properties.items()]
    before: list[bytes] = []
    after: list[bytes] = []  # fields of higher numbers follow the metadata, as protobuf writes them
    start = 0
    for number, kind, a, b in wire.fields(0, len(data)):
        end = b if kind == BYTES else _end(wire, start)
        ours = number == _MODEL_METADATA and _key(wire, a, b).startswith(prefix)
        if not ours:
            (after if after or number > _MODEL_METADATA else before).append(data[start:end])
        start = end
    return b"".join((*before, *entries, *after))


def _end(wire: Wire, start: int) -> int:
    """Where a number that begins with its tag at ``start`` ends; models have no other fields than these."""
    _, after = wire.tag(start, len(wire.data))
    return wire.varint(after, len(wire.data))[1]


def _key(wire: Wire, start: int, end: int) -> str:
    spans = {number: (a, b) for number, a, b in wire.messages(start, end)}
    return wire.text(*spans[_ENTRY_KEY]) if _ENTRY_KEY in spans else ""


def _entry(key: str, value: str) -> bytes:
    return _field(_ENTRY_KEY, key.encode()) + _field(_ENTRY_VALUE, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
