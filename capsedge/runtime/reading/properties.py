"""Other metadata in an ONNX file whose remaining bytes stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.runtime.reading.wire import BYTES, Wire, message

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
    entries = message([(_MODEL_METADATA, _entry(k, v)) for k, v in properties.items()])
    before: list[bytes] = []
    after: list[bytes] = []  # fields of higher numbers follow the metadata, as protobuf writes them
    start = 0
    for number, kind, a, b in wire.fields(0, len(data)):
        end = b if kind == BYTES else wire.end_of_number(start)
        ours = number == _MODEL_METADATA and _key(wire, a, b).startswith(prefix)
        if not ours:
            (after if after or number > _MODEL_METADATA else before).append(data[start:end])
        start = end
    return b"".join((*before, entries, *after))


def _key(wire: Wire, start: int, end: int) -> str:
    spans = {number: (a, b) for number, a, b in wire.messages(start, end)}
    return wire.text(*spans[_ENTRY_KEY]) if _ENTRY_KEY in spans else ""


def _entry(key: str, value: str) -> bytes:
    return message(((_ENTRY_KEY, key.encode()), (_ENTRY_VALUE, value.encode())))
