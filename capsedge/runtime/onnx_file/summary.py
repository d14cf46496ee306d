"""Read what a runtime must know of an ONNX file, and refuse harmful ones; standard library only.

The device has no ``onnx`` package, and an untrusted file must be checked before ONNX Runtime gets its bytes.
So the wire format (``wire``) is walked here, weights are stepped over, and only metadata, ``capsedge`` nodes,
functions and external data are collected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from capsedge.errors import ArtefactError, UnsupportedModelError, UsageError
from capsedge.runtime.files import formats, reading
from capsedge.runtime.files.protobuf import MalformedProtobuf
from capsedge.runtime.onnx_file.wire import MODEL, FieldValues, OnnxMessage, Walker, number_of
from capsedge.runtime.zoo import zoo_model
from capsedge.spec import limits, onnx_wire
from capsedge.spec.onnx_wire import DOMAINS
from capsedge.spec.operators import DOMAIN, OPERATORS, operator_of

# What the exporter calls the poses of an iteration whose operators stand in the graph itself.
_EXPANDED_POSE = re.compile(rb"[A-Za-z]+Routing_iter\d+_pose__\d+")

_TRAINING_ATTRIBUTE = 14  # opset; until then, more outputs than one meant training


@dataclass
class OnnxSummary:
    """The content of an ONNX file, as far as the runtime needs it.

    Attributes:
        ir_version: version of the file format.
        producer, producer_version: the tool that wrote the file.
        opsets: version of every imported operator domain (the default domain is ``""``).
        metadata: the file's ``metadata_props``.
        capsedge_nodes: ``(type, overload)`` of every node of the domain ``capsedge``, functions included.
        capsedge_functions: ``(type, overload)`` of every function body of that domain.
        unnamed_inputs: types of the ``capsedge`` nodes with an unnamed input.
        overloaded: ``(domain, name)`` of functions that differ only in their overload.
        external: names of tensors whose data is in another file.
        operators: domain and type of every node, functions included; ``ai.onnx`` is ``""``.
        functions: domain and name of every function.
        training: names of the BatchNormalization nodes in training mode, which normalize with the mean of
            the batch.
        expanded_routing: whether routing is written in standard operators, as for couplings that are an
            output; other routing may still be ``capsedge`` nodes.
    """

    ir_version: int = 0
    producer: str = ""
    producer_version: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    capsedge_nodes: list[tuple[str, str]] = field(default_factory=list)
    capsedge_functions: set[tuple[str, str]] = field(default_factory=set)
    unnamed_inputs: set[str] = field(default_factory=set)
    overloaded: set[tuple[str, str]] = field(default_factory=set)
    external: list[str] = field(default_factory=list)
    operators: set[tuple[str, str]] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    training: list[str] = field(default_factory=list)
    expanded_routing: bool = False
    has_graph: bool = False

    @property
    def missing_functions(self) -> list[str]:
        """Operators of ``capsedge`` nodes that carry no function body, sorted."""
        bare = {n for n in self.capsedge_nodes if n not in self.capsedge_functions}
        return sorted({operator_of(name) for name, _ in bare})

    @property
    def unknown_operators(self) -> list[str]:
        """Those of ``missing_functions`` that this version of capsedge lacks too."""
        return [name for name in self.missing_functions if name not in OPERATORS]

    @property
    def capsedge_types(self) -> list[str]:
        """Types of the ``capsedge`` nodes."""
        return [name for name, _ in self.capsedge_nodes]


def read_model_bytes(path: Path | str) -> bytes:
    """Read a complete model file."""
    path = Path(path)
    with _opened(path) as file:
        return file.read(limits.FILE_BYTES)


def check_model_path(path: Path) -> None:
    """Refuse what cannot be a model file, without reading it; raises as `read_model_bytes`."""
    with _opened(path):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    kind = reading.path_kind(path)
    if kind == reading.FOLDER:
        identified = formats.identify_path(path)
        if identified is not None and identified.key != "folder":
            raise not_onnx(path, identified, str(path))
        raise UsageError(f"{path} is a folder.", "A model is one file.", "Pass the .onnx file.")
    if kind is None:
        bundled = path.suffix == ".onnx" and zoo_model(path.stem) is not None
        check = f"Pass {path.stem} for the bundled model, or check" if bundled else "Check"
        raise UsageError(f"There is no file {path}.", "", f"{check} the name of the model file.")
    with reading.open_regular_file(path, "Name an .onnx file that may be read.") as file:
        size = reading.file_size(file)
        if size > limits.FILE_BYTES:
            raise ArtefactError(
                f"{path} is too large for an ONNX file.",
                f"It has {size:,} bytes; the limit of the format is {limits.FILE_BYTES:,}.",
                "Check that it is the right file.",
            )
        if not size:
            raise ArtefactError(
                f"{path} is empty.",
                "It has 0 bytes; a download or an export was probably interrupted.",
                "Fetch it again, or export it again with `capsedge export`.",
            )
        yield file


def summarize(data: bytes, name: str = "the model") -> OnnxSummary:
    """Walk an ONNX file; ``name`` is its name in errors."""
    try:
        summary = _Summarizer(data).model()
        if not summary.has_graph or not summary.ir_version:
            raise MalformedProtobuf("it has no graph")
    except (MalformedProtobuf, UnicodeDecodeError) as error:
        identified = formats.identify_content(data)
        if identified is not None and identified.key != "onnx":
            raise not_onnx(name, identified, name) from error
        raise ArtefactError(
            f"{name} is not a complete ONNX file.",
            f"Read as one, {error}.",
            "Fetch the file again, or export the model again with `capsedge.export`.",
            command="Fetch the file again, or export the model again with `capsedge export`.",
        ) from error
    return summary


def not_onnx(name: Path | str, kind: formats.Format, path: str) -> ArtefactError:
    """The error for a file of another format."""
    fix, command = kind.advice(path)
    return ArtefactError(
        f"{name} is not an ONNX file: it is {kind.name}.", "", fix, command=command
    )


def read_harmless(path: Path | str) -> tuple[bytes, OnnxSummary]:
    """Read a model file for a runtime, and check that it is harmless."""
    data = read_model_bytes(path)
    summary = summarize(data, str(path))
    check_harmless(summary, str(path))
    return data, summary


def check_harmless(summary: OnnxSummary, name: str) -> None:
    """Refuse a file that would make a runtime open other files, run unknown operators or crash."""
    if summary.external:
        raise ArtefactError(
            f"{name} keeps weights in other files.",
            f"{len(summary.external)} tensors are external, the first is '{summary.external[0]}'. "
            "capsedge reads self-contained files only, so that a model never opens other files.",
            "Save it as one file: `onnx.save(onnx.load(path), path, save_as_external_data=False)`.",
        )
    if any(kind == onnx_wire.COMPILED for _, kind in summary.operators):
        raise ArtefactError(
            f"{name} has {onnx_wire.COMPILED} nodes.",
            "They hold or name code that was compiled for one device, which cannot be checked.",
            "Use the ONNX file that they were compiled from.",
        )
    if summary.unnamed_inputs:
        raise ArtefactError(
            f"{name} has a {min(summary.unnamed_inputs)} node with an unnamed input.",
            "Optional inputs of a capsule operator are omitted by ending the list of inputs early; "
            "an empty name crashes ONNX Runtime before 1.24.",
            "Export the model again, or remove the empty names at the end of the node's inputs.",
        )
    foreign = sorted(
        (domain, kind)
        for domain, kind in summary.operators - summary.functions
        if domain not in DOMAINS
    )
    if foreign:
        domain, kind = foreign[0]
        raise UnsupportedModelError(
            f"{name} has operators of the domain '{domain}'.",
            f"The first is {kind}. Known domains: {', '.join(DOMAINS[1:])}; others are supported "
            "only as functions that the file defines.",
            "Export the model again without them.",
        )


class _Normalization(NamedTuple):
    """A BatchNormalization: its name, its attribute for training, and the number of its outputs."""

    name: str
    training: bool
    outputs: int


class _Summarizer(Walker):
    visited: ClassVar[Mapping[str, frozenset[int]]] = {
        "NodeProto": frozenset(),
        # The runtime uses only the location; a tensor has no other reason to name a file.
        "TensorProto": frozenset((onnx_wire.TENSOR_EXTERNAL, onnx_wire.TENSOR_LOCATION)),
        "FunctionProto": frozenset(),
        "OperatorSetIdProto": frozenset(),
        "StringStringEntryProto": frozenset(),
    }

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.summary = OnnxSummary()
        self.overloads: dict[tuple[str, str], str] = {}
        self.nodes = 0
        self.normalizations: list[_Normalization] = []

    def model(self) -> OnnxSummary:
        if self.data[4:8] == onnx_wire.ORT_FORMAT.encode():
            raise MalformedProtobuf("it is also a file of ONNX Runtime's own format")
        fields = self.walk(MODEL, 0, len(self.data))
        summary = self.summary
        summary.ir_version = number_of(fields, onnx_wire.MODEL_IR)
        summary.producer, summary.producer_version = self.text_of(
            fields, onnx_wire.MODEL_PRODUCER, onnx_wire.MODEL_PRODUCER_VERSION
        )
        summary.has_graph = onnx_wire.MODEL_GRAPH in fields
        opset = summary.opsets.get("", summary.opsets.get("ai.onnx", 1))
        named = opset >= _TRAINING_ATTRIBUTE
        summary.training = [
            node.name
            for node in self.normalizations
            if (node.training if named else node.outputs > 1)
        ]
        return summary

    def take(
        self,
        parent: OnnxMessage,
        message: OnnxMessage,
        number: int,
        fields: FieldValues,
        within: tuple[int, int],
    ) -> None:
        if message.name == "NodeProto":
            self._node(fields, within)
        elif message.name == "TensorProto":
            self._tensor(fields)
        elif message.name == "FunctionProto":
            self._function(fields)
        elif parent is MODEL and number == onnx_wire.MODEL_OPSET:
            (domain,) = self.text_of(fields, onnx_wire.OPSET_DOMAIN)
            self.summary.opsets[domain] = number_of(fields, onnx_wire.OPSET_VERSION)
        elif parent is MODEL and number == onnx_wire.MODEL_METADATA:
            key, value = self.text_of(fields, onnx_wire.ENTRY_KEY, onnx_wire.ENTRY_VALUE)
            self.summary.metadata[key] = value

    def _node(self, fields: FieldValues, within: tuple[int, int]) -> None:
        self.nodes += 1
        if self.nodes > limits.GRAPH_NODES:
            raise MalformedProtobuf(f"it has more than {limits.GRAPH_NODES:,} nodes")
        kind, domain = self.text_of(fields, onnx_wire.NODE_TYPE, onnx_wire.NODE_DOMAIN)
        self.summary.operators.add(("" if domain == "ai.onnx" else domain, kind))
        if domain == DOMAIN:
            (overload,) = self.text_of(fields, onnx_wire.NODE_OVERLOAD)
            self.summary.capsedge_nodes.append((kind, overload))
            if any(a == b for a, b in self.spans(*within, onnx_wire.NODE_INPUT)):
                self.summary.unnamed_inputs.add(kind)
        if kind == "BatchNormalization" and domain in ("", "ai.onnx"):
            self.normalizations.append(self._normalization(fields, within))
        output = fields.get(onnx_wire.NODE_OUTPUT)
        if isinstance(output, tuple) and _EXPANDED_POSE.fullmatch(self.data, *output):
            self.summary.expanded_routing = True

    def _normalization(self, fields: FieldValues, within: tuple[int, int]) -> _Normalization:
        (name,) = self.text_of(fields, onnx_wire.NODE_NAME)
        outputs = [o for o in self.texts(*within, onnx_wire.NODE_OUTPUT)[0] if o]
        training = False
        for a, b in self.spans(*within, onnx_wire.NODE_ATTRIBUTE):
            if self.first_text(a, b, onnx_wire.ATTRIBUTE_NAME) == "training_mode":
                values = (v for n, _, v, _ in self.fields(a, b) if n == onnx_wire.ATTRIBUTE_INTEGER)
                training = any(values)
        return _Normalization(name or next(iter(outputs), ""), training, len(outputs))

    def _function(self, fields: FieldValues) -> None:
        name, domain, overload = self.text_of(
            fields, onnx_wire.FUNCTION_NAME, onnx_wire.FUNCTION_DOMAIN, onnx_wire.FUNCTION_OVERLOAD
        )
        self.summary.functions.add((domain, name))
        if self.overloads.setdefault((domain, name), overload) != overload:
            self.summary.overloaded.add((domain, name))
        if domain == DOMAIN:
            self.summary.capsedge_functions.add((name, overload))

    def _tensor(self, fields: FieldValues) -> None:
        if onnx_wire.TENSOR_EXTERNAL in fields or fields.get(onnx_wire.TENSOR_LOCATION):
            self.summary.external += self.text_of(fields, onnx_wire.TENSOR_NAME)
