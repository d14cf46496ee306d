"""A first look into an ONNX file with nothing but the standard library.

The device has no ``onnx`` package, and a file that somebody sent must be judged before ONNX
Runtime is handed its bytes. So the protobuf wire format
(https://protobuf.dev/programming-guides/encoding) is walked here, weights are stepped over, and
what the runtime must know is collected: metadata, ``capsedge`` nodes, functions, external data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime import reading
from capsedge.runtime.operator_names import DOMAIN, operator_of

MAX_BYTES = 2**31 - 1  # protobuf reads no larger message
MAX_FIELDS = 4_000_000  # a real model has a few thousand; keeps a hostile file from taking minutes
MAX_DEPTH = 64  # subgraphs within subgraphs

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Field numbers of onnx.proto3.
_MODEL_IR, _MODEL_PRODUCER, _MODEL_GRAPH, _MODEL_OPSET = 1, 2, 7, 8
_MODEL_METADATA, _MODEL_TRAINING, _MODEL_FUNCTION = 14, 20, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 5, 15
_NODE_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN, _NODE_OVERLOAD = 4, 5, 7, 8
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_ATTRIBUTE_SPARSE, _ATTRIBUTE_SPARSES = 22, 23
_TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 8, 13, 14
_SPARSE_VALUES, _SPARSE_INDICES = 1, 2
_FUNCTION_NAME, _FUNCTION_NODE, _FUNCTION_DOMAIN, _FUNCTION_OVERLOAD = 1, 7, 10, 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2


@dataclass
class OnnxSummary:
    """What an ONNX file holds, as far as the runtime needs it.

    Attributes:
        ir_version: version of the file format.
        producer: the tool that wrote the file.
        opsets: version of every imported operator domain (the default domain is ``""``).
        metadata: the file's ``metadata_props``.
        capsedge_nodes: ``(type, overload)`` of every node of the domain ``capsedge``, functions included.
        capsedge_functions: ``(type, overload)`` of every function body of that domain.
        overloaded: ``(domain, name)`` of functions that only their overload tells apart.
        external: names of tensors whose data lies in another file.
    """

    ir_version: int = 0
    producer: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    capsedge_nodes: list[tuple[str, str]] = field(default_factory=list)
    capsedge_functions: set[tuple[str, str]] = field(default_factory=set)
    overloaded: set[tuple[str, str]] = field(default_factory=set)
    external: list[str] = field(default_factory=list)
    has_graph: bool = False

    @property
    def missing_functions(self) -> list[str]:
        """Operators of ``capsedge`` nodes that carry no function body, sorted."""
        bare = {n for n in self.capsedge_nodes if n not in self.capsedge_functions}
        return sorted({operator_of(name) for name, _ in bare})

    @property
    def capsedge_types(self) -> list[str]:
        """Types of the ``capsedge`` nodes."""
        return [name for name, _ in self.capsedge_nodes]


class _Malformed(Exception):
    """The bytes are not the message they should be."""


def read_bytes(path: Path | str) -> bytes:
    """Read a model file whole.

    Raises:
        UsageError: there is no such file, or it cannot be read.
        ArtefactError: it is empty or too large.
    """
    path = Path(path)
    found = reading.kind(path)
    if found == reading.FOLDER:
        raise UsageError(f"{path} is a folder.", "A model is one file.", "Name the .onnx file.")
    if found is None:
        raise UsageError(f"There is no file {path}.", "", "Check the name of the model file.")
    with reading.opened(path, "Name an .onnx file that may be read.") as file:
        size = reading.size(file)
        if size > MAX_BYTES:
            raise ArtefactError(
                f"{path} is too large for an ONNX file.",
                f"It has {size:,} bytes; the format ends at {MAX_BYTES:,}.",
                "Check that it is the right file.",
            )
        data = file.read(MAX_BYTES)
    if not data:
        raise ArtefactError(
            f"{path} is empty.",
            "It has 0 bytes; a download or an export was probably interrupted.",
            "Fetch it again, or export it again with `capsedge export`.",
        )
    return data


def summarize(data: bytes, name: str = "the model") -> OnnxSummary:
    """Walk an ONNX file; ``name`` is what errors call it.

    Raises:
        ArtefactError: the bytes are no ONNX model, or are cut off.
    """
    try:
        summary = _Walker(memoryview(data)).model()
        if not summary.has_graph or not summary.ir_version:
            raise _Malformed("it has no graph")
    except (_Malformed, UnicodeDecodeError) as error:
        why, fix = _something_else(data) or (
            f"Read as one, {error}.",
            "Fetch the file again, or export it again with `capsedge export`.",
        )
        raise ArtefactError(f"{name} is not a whole ONNX file.", why, fix) from error
    return summary


def _something_else(data: bytes) -> tuple[str, str] | None:
    """Why and fix for the files that are most often given instead."""
    if data.startswith((b"\x89PNG", b"\xff\xd8\xff")):
        return "It is a picture.", "Name the .onnx file of the model."
    if data.startswith(b"PK\x03\x04") or data[8:9] == b"{":  # a .pt is a zip; .safetensors has JSON
        return "It looks like a checkpoint.", "Export it: `capsedge export --checkpoint FILE`."
    return None


class _Walker:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.seen = 0
        self.summary = OnnxSummary()
        self.overloads: dict[tuple[str, str], str] = {}

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield ``(number, wire type, a, b)``: the value as ``a``, or the bytes as ``a:b``."""
        at = start
        while at < end:
            self.seen += 1
            if self.seen > MAX_FIELDS:
                raise _Malformed(f"it has more than {MAX_FIELDS:,} fields")
            key, at = self.varint(at, end)
            number, wire = key >> 3, key & 7
            if number == 0:
                raise _Malformed(f"a field at byte {at} has no number")
            if wire == _VARINT:
                value, at = self.varint(at, end)
                yield number, wire, value, 0
            elif wire == _BYTES:
                length, at = self.varint(at, end)
                if length > end - at:
                    raise _Malformed(
                        f"a field at byte {at} needs {length:,} bytes and {end - at:,} are left"
                    )
                yield number, wire, at, at + length
                at += length
            elif wire in (_FIXED32, _FIXED64):
                width = 4 if wire == _FIXED32 else 8
                if width > end - at:
                    raise _Malformed(f"it ends inside the field at byte {at}")
                yield number, wire, at, at + width
                at += width
            else:
                raise _Malformed(f"a field at byte {at} has the unknown wire type {wire}")

    def messages(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The length-delimited fields alone."""
        for number, wire, a, b in self.fields(start, end):
            if wire == _BYTES:
                yield number, a, b

    def varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise _Malformed(f"it ends at byte {at}, inside a number")
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise _Malformed(f"a number at byte {at} does not end")

    def text(self, start: int, end: int) -> str:
        return bytes(self.data[start:end]).decode()

    def model(self) -> OnnxSummary:
        summary = self.summary
        for number, wire, a, b in self.fields(0, len(self.data)):
            if number == _MODEL_IR and wire == _VARINT:
                summary.ir_version = a
            if wire != _BYTES:
                continue
            if number == _MODEL_PRODUCER:
                summary.producer = self.text(a, b)
            elif number == _MODEL_OPSET:
                self.opset(a, b)
            elif number == _MODEL_METADATA:
                entry = {n: self.text(x, y) for n, x, y in self.messages(a, b)}
                summary.metadata[entry.get(_ENTRY_KEY, "")] = entry.get(_ENTRY_VALUE, "")
            elif number == _MODEL_FUNCTION:
                self.function(a, b)
            elif number == _MODEL_GRAPH:
                summary.has_graph = True
                self.graph(a, b, 0)
            elif number == _MODEL_TRAINING:
                for _, x, y in self.messages(a, b):
                    self.graph(x, y, 0)
        return summary

    def opset(self, start: int, end: int) -> None:
        domain, version = "", 0
        for number, wire, a, b in self.fields(start, end):
            if number == _OPSET_DOMAIN and wire == _BYTES:
                domain = self.text(a, b)
            elif number == _OPSET_VERSION and wire == _VARINT:
                version = a
        self.summary.opsets[domain] = version

    def function(self, start: int, end: int) -> None:
        name = domain = overload = ""
        for number, a, b in self.messages(start, end):
            if number == _FUNCTION_NAME:
                name = self.text(a, b)
            elif number == _FUNCTION_DOMAIN:
                domain = self.text(a, b)
            elif number == _FUNCTION_OVERLOAD:
                overload = self.text(a, b)
            elif number == _FUNCTION_NODE:
                self.node(a, b, 0)
        if domain == DOMAIN:
            self.summary.capsedge_functions.add((name, overload))
        if self.overloads.setdefault((domain, name), overload) != overload:
            self.summary.overloaded.add((domain, name))

    def graph(self, start: int, end: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _Malformed(f"its graphs are nested more than {MAX_DEPTH} deep")
        for number, a, b in self.messages(start, end):
            if number == _GRAPH_NODE:
                self.node(a, b, depth)
            elif number == _GRAPH_INITIALIZER:
                self.tensor(a, b)
            elif number == _GRAPH_SPARSE:
                self.sparse(a, b)

    def node(self, start: int, end: int, depth: int) -> None:
        kind = domain = overload = ""
        for number, a, b in self.messages(start, end):
            if number == _NODE_TYPE:
                kind = self.text(a, b)
            elif number == _NODE_DOMAIN:
                domain = self.text(a, b)
            elif number == _NODE_OVERLOAD:
                overload = self.text(a, b)
            elif number == _NODE_ATTRIBUTE:
                self.attribute(a, b, depth)
        if domain == DOMAIN:
            self.summary.capsedge_nodes.append((kind, overload))

    def attribute(self, start: int, end: int, depth: int) -> None:
        for number, a, b in self.messages(start, end):
            if number in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                self.tensor(a, b)
            elif number in (_ATTRIBUTE_SPARSE, _ATTRIBUTE_SPARSES):
                self.sparse(a, b)
            elif number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                self.graph(a, b, depth + 1)

    def sparse(self, start: int, end: int) -> None:
        for number, a, b in self.messages(start, end):
            if number in (_SPARSE_VALUES, _SPARSE_INDICES):
                self.tensor(a, b)

    def tensor(self, start: int, end: int) -> None:
        name, external = "", False
        for number, wire, a, b in self.fields(start, end):
            if number == _TENSOR_NAME and wire == _BYTES:
                name = self.text(a, b)
            elif number == _TENSOR_EXTERNAL or (number == _TENSOR_LOCATION and a == 1):
                external = True
        if external:
            self.summary.external.append(name)
