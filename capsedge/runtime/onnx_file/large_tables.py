"""Lend large tables of a file to ONNX Runtime instead of having it copy them.

ONNX Runtime parses a file into memory of its own and copies the weights from there: a table of embeddings
would be in memory three times while a file is loaded, and twice afterwards. Here the table stays in the bytes
of the file; the runtime gets a file without it, and an array over these bytes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.files.protobuf import BYTES, Wire, length_delimited, message, number_field
from capsedge.spec import limits, onnx_wire

LEAST_BYTES = 16 * limits.MIB  # minimum size of a table; smaller tables are not worth it
# The file that stands in for the data. ONNX Runtime checks that it exists, but does not open it.
STAND_IN = Path(__file__)
_EXTERNAL = 1  # TensorProto.DataLocation
_DTYPES = {1: "<f4", 2: "u1", 3: "i1", 10: "<f2", 11: "<f8"}


class Split(NamedTuple):
    """A file without its large tables, and these tables by name, as views of the file's bytes."""

    data: bytes
    tables: dict[str, NDArray[np.generic]]


class _LargeTensor(NamedTuple):
    name: str
    table: NDArray[np.generic]
    without: bytes


def split_tables(data: bytes, least: int = LEAST_BYTES) -> Split:
    """The file without tables of at least this many bytes that are only looked up, row by row.

    Only ``Gather`` takes them: it copies rows, wherever they stand in memory.

    Args:
        data: an ONNX file that `summarize` has accepted, without data in other files.
    """
    if len(data) < least:
        return Split(data, {})
    wire = Wire(data)
    tables: dict[str, NDArray[np.generic]] = {}
    parts: list[bytes] = []
    start = 0
    for number, kind, a, b in wire.fields(0, len(data)):
        end = b if kind == BYTES else wire.end_of_number(start)
        if number == onnx_wire.MODEL_GRAPH and kind == BYTES:
            graph, tables = _without_tables(wire, a, b, least)
            if not tables:
                return Split(data, {})
            parts.append(length_delimited(number, graph))
        else:
            parts.append(data[start:end])
        start = end
    return Split(b"".join(parts), tables) if tables else Split(data, {})


def _without_tables(
    wire: Wire, start: int, end: int, least: int
) -> tuple[bytes, dict[str, NDArray[np.generic]]]:
    """A graph's bytes without large tables, and the tables; nothing if there are none."""
    looked_up, others = _reads(wire, start, end)
    if not any(
        number == onnx_wire.GRAPH_TENSOR
        and b - a >= least
        and wire.first_text(a, b, onnx_wire.TENSOR_NAME) in looked_up - others
        for number, a, b in wire.messages(start, end)
    ):
        return b"", {}
    tables: dict[str, NDArray[np.generic]] = {}
    parts: list[bytes] = []
    at = start
    for number, a, b in wire.messages(start, end):
        tensor = None
        if number == onnx_wire.GRAPH_TENSOR and b - a >= least:
            tensor = _tensor(wire, a, b)
        if tensor is not None and tensor.name in looked_up - others:
            tables[tensor.name] = tensor.table
            parts.append(length_delimited(number, tensor.without))
        else:
            parts.append(wire.data[at:b])
        at = b
    if not tables:
        return b"", {}
    return b"".join(parts), tables


def _reads(wire: Wire, start: int, end: int) -> tuple[set[str], set[str]]:
    """The tensors that a Gather looks up, and those that are read in another way, or by a subgraph."""
    looked_up: set[str] = set()
    others: set[str] = set()
    for number, a, b in wire.messages(start, end):
        if number == onnx_wire.GRAPH_NODE:
            kinds, inputs = wire.texts(a, b, onnx_wire.NODE_TYPE, onnx_wire.NODE_INPUT)
            rows = kinds == ["Gather"] and not wire.first_text(a, b, onnx_wire.NODE_DOMAIN)
            looked_up.update(inputs[:1] if rows else ())
            others.update(inputs[1:] if rows else inputs)
            for c, d in wire.spans(a, b, onnx_wire.NODE_ATTRIBUTE):
                graphs = (onnx_wire.ATTRIBUTE_GRAPH, onnx_wire.ATTRIBUTE_GRAPHS)
                for inner in wire.spans(c, d, *graphs):
                    inside = _reads(wire, *inner)
                    others |= inside[0] | inside[1]
        elif number == onnx_wire.GRAPH_OUTPUT:
            others.add(wire.first_text(a, b, onnx_wire.VALUE_NAME))
    return looked_up, others


def _tensor(wire: Wire, start: int, end: int) -> _LargeTensor | None:
    """A tensor stored as raw bytes, without those bytes; None for any other."""
    sizes: list[int] = []
    name, element, raw = "", 0, (0, 0)
    for number, kind, a, b in wire.fields(start, end):
        if number == onnx_wire.TENSOR_SIZES:
            if kind == BYTES:
                while a < b:
                    size, a = wire.varint(a, b)
                    sizes.append(size)
            else:
                sizes.append(a)
        elif number == onnx_wire.TENSOR_TYPE:
            element = a
        elif number == onnx_wire.TENSOR_NAME:
            name = wire.text(a, b)
        elif number == onnx_wire.TENSOR_BYTES and kind == BYTES:
            raw = a, b
    dtype = _DTYPES.get(element)
    if dtype is None or math.prod(sizes) * np.dtype(dtype).itemsize != raw[1] - raw[0]:
        return None
    flat = np.frombuffer(wire.data, np.uint8, raw[1] - raw[0], raw[0])
    facts = {"location": STAND_IN.name, "offset": "0", "length": str(raw[1] - raw[0])}
    entries = [
        (
            onnx_wire.TENSOR_EXTERNAL,
            message([(onnx_wire.ENTRY_KEY, k.encode()), (onnx_wire.ENTRY_VALUE, v.encode())]),
        )
        for k, v in facts.items()
    ]
    without = b"".join(
        (
            *(number_field(onnx_wire.TENSOR_SIZES, size) for size in sizes),
            number_field(onnx_wire.TENSOR_TYPE, element),
            length_delimited(onnx_wire.TENSOR_NAME, name.encode()),
            message(entries),
            number_field(onnx_wire.TENSOR_LOCATION, _EXTERNAL),
        )
    )
    return _LargeTensor(name, flat.view(dtype).reshape(sizes), without)
