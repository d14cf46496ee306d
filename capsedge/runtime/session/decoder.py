"""Cut the decoder out of a loaded file and run it alone: poses of class capsules to pictures.

The part of the graph between the poses and the reconstruction becomes a file of its own, whose bytes
are copied from the original. ``subgraph.cpp`` of libcapsedge cuts in the same way.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import Backend, ModelFile, PartialBackend, Port
from capsedge.runtime.files.protobuf import (
    BYTES,
    MalformedProtobuf,
    Wire,
    length_delimited,
    message,
)
from capsedge.runtime.session.tensors import LARGEST, AnyArray, as_array, checked_input
from capsedge.spec import limits, onnx_wire
from capsedge.spec.vocabularies import POSES, RECONSTRUCTION

_CHUNK = 64  # poses per run; bounds memory

Floats = NDArray[np.float32]
_Span = tuple[int, int]


def decoder_of(file: ModelFile, backend: Backend) -> Decoder | None:
    """The decoder of a file that has one.

    Args:
        file: the file.
        backend: the file, loaded.
    """
    ports = {port.name: port for port in backend.outputs}
    declared = backend.metadata.outputs if backend.metadata else None
    poses = ports.get(POSES if declared is None else declared.poses)
    if RECONSTRUCTION not in ports or poses is None or not isinstance(backend, PartialBackend):
        return None
    return Decoder(file.content, file.path, poses, backend.open_part)


class Decoder:
    """The part of a file between its poses and its reconstruction, opened when it is first used.

    Safe to use from several threads at once.

    Args:
        data: the ONNX file.
        path: its name in errors.
        poses: its output with a pose for each class.
        open_part: loads a part of the file.
    """

    def __init__(
        self, data: bytes, path: Path, poses: Port, open_part: Callable[[bytes], Backend]
    ) -> None:
        self._path, self._poses, self._open = path, poses, open_part
        self._lock = threading.Lock()
        self._backend: Backend | None = None
        self._part, self._refused = b"", ""
        try:
            self._part = extract_subgraph(data, poses.name, RECONSTRUCTION)
        except SubgraphError as error:
            self._refused = str(error)

    def close(self) -> None:
        """Free the part; calls in progress are not affected."""
        with self._lock:
            if self._backend is not None:
                self._backend.close()

    @property
    def capsules(self) -> tuple[int, int]:
        """Class capsules, and elements of the pose of each."""
        classes, *pose = (size for size in self._poses.shape[1:] if isinstance(size, int))
        return classes, math.prod(pose)

    def check(self) -> None:
        """Raise a UsageError if the pictures cannot be computed from poses alone."""
        refused = self._refused
        if not refused and not all(isinstance(size, int) for size in self._poses.shape[1:]):
            refused = "the file leaves the number of its poses open"
        if refused:
            raise UsageError(
                f"{self._path} cannot decode poses.",
                f"Its output '{RECONSTRUCTION}' is not computed from '{self._poses.name}' alone: {refused}.",
                "Export the model again with `capsedge export --with reconstruction`; your own "
                "network must compute its reconstructions from the poses that it returns.",
            )

    def decode(self, poses: Floats) -> Floats:
        """The pictures of poses ``[N, J, P]``: of each class ``[N, J, C, H, W]``."""
        backend = self._opened()
        port = backend.inputs[0]
        fixed = port.shape[0] if isinstance(port.shape[0], int) else None
        step = fixed or _CHUNK
        found = []
        for start in range(0, len(poses), step):
            part = poses[start : start + step]
            fed = np.zeros((fixed or len(part), *poses.shape[1:]), port.dtype)
            fed[: len(part)] = part
            shaped = fed.reshape(len(fed), *self._behind_batch(port))
            made = backend.run({port.name: shaped}, [RECONSTRUCTION])[RECONSTRUCTION]
            found.append(made[: len(part)].astype(np.float32, copy=False))
        return np.concatenate(found)

    def _behind_batch(self, port: Port) -> Sequence[int]:
        sizes = [size for size in port.shape[1:] if isinstance(size, int)]
        if math.prod(sizes) != math.prod(self.capsules) or len(sizes) + 1 != len(port.shape):
            raise UsageError(
                f"{self._path} cannot decode poses.",
                f"Its decoder reads '{port.name}' {list(port.shape)}, whose size differs from the "
                "poses of an image.",
                "Export the model again with `capsedge export --with reconstruction`.",
            )
        return sizes

    def _opened(self) -> Backend:
        with self._lock:
            if self._backend is None:
                self._backend = self._open(self._part)
            return self._backend

    def of_classes(self, poses: Floats, classes: NDArray[np.int64]) -> Floats:
        """The pictures ``[N, C, H, W]`` of one pose ``[N, P]`` for one class ``[N]`` each.

        Poses of different classes share an image: a picture depends on the pose of its own class only.
        """
        counts = dict.fromkeys(classes.tolist(), 0)
        images = np.zeros(len(classes), np.int64)
        for k, index in enumerate(classes.tolist()):
            images[k] = counts[index]
            counts[index] += 1
        packed = np.zeros((max(counts.values()), *self.capsules), np.float32)
        packed[images, classes] = poses
        pictures = self.decode(packed)
        if pictures.ndim != 5 or pictures.shape[1] != self.capsules[0]:
            raise UsageError(
                f"{self._path} does not reconstruct each class.",
                f"Its output '{RECONSTRUCTION}' is {list(pictures.shape)}.",
                "Leave out classes, and pass the poses of all classes.",
            )
        return pictures[images, classes]


def poses_of(values: AnyArray | Sequence[object], shape: tuple[int, ...]) -> Floats:
    """Poses that were given as an array or as lists, checked: ``[N, *shape]``, with N added if it is missing.

    Raises:
        ShapeError, UsageError: they have another shape, or are not finite numbers.
    """
    array = as_array(values, "The poses")
    try:
        found = np.asarray(values if array is None else array, np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(
            "The poses are not an array of numbers.",
            f"{error}".split("\n")[0],
            f"Expected: {['N', *shape]}, as `Prediction.poses` has them.",
        ) from error
    if found.shape == shape:
        found = found[np.newaxis]
    found = checked_input(Port("poses", ("N", *shape), "float32"), found, LARGEST)
    if not len(found):
        raise UsageError("There are no poses to decode.", "", "Pass at least one.")
    return found


def classes_of(values: AnyArray | Sequence[int] | int, count: int, known: int) -> NDArray[np.int64]:
    """Class numbers ``[N]``, one for each of ``count`` poses; a single number applies to all.

    Raises:
        UsageError: they are not whole numbers of classes, or more or fewer than the poses.
    """
    array = as_array(values, "classes")
    found = np.asarray(values if array is None else array)
    if found.ndim == 0:
        found = np.broadcast_to(found, (count,))
    whole = found.dtype.kind in "iu"
    if not whole or found.shape != (count,) or found.min() < 0 or found.max() >= known:
        raise UsageError(
            "classes does not name a class for each pose.",
            f"It has the shape {list(found.shape)} and the type {found.dtype}; there are {count} poses.",
            f"Expected: {count} whole numbers from 0 to {known - 1}, or one of them for all poses.",
        )
    return found.astype(np.int64)


class SubgraphError(ValueError):
    """The output cannot be computed from the value alone; the message says why."""


@dataclass
class _DecoderNode:
    span: _Span
    inputs: list[str]
    outputs: list[str]
    type: str
    domain: str
    holds_graphs: bool


class _DecoderGraph(Wire):
    """The main graph of a file that `onnx_file.summarize` has accepted."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.name: _Span = (0, 0)
        self.nodes: list[_DecoderNode] = []
        self.tensors: dict[str, _Span] = {}
        self.values: dict[str, _Span] = {}
        self.makers: dict[str, _DecoderNode] = {}
        for number, a, b in self.messages(0, len(data)):
            if number == onnx_wire.MODEL_GRAPH:
                self._read(a, b)

    def _read(self, start: int, end: int) -> None:
        for number, a, b in self.messages(start, end):
            if number == onnx_wire.GRAPH_NAME:
                self.name = a, b
            elif number == onnx_wire.GRAPH_NODE:
                self._node(a, b)
            elif number == onnx_wire.GRAPH_TENSOR:
                self.tensors[self.first_text(a, b, onnx_wire.TENSOR_NAME)] = a, b
            elif number in (onnx_wire.GRAPH_OUTPUT, onnx_wire.GRAPH_VALUE):
                self.values[self.first_text(a, b, onnx_wire.VALUE_NAME)] = a, b

    def _node(self, start: int, end: int) -> None:
        inputs, outputs, types, domains = self.texts(
            start,
            end,
            onnx_wire.NODE_INPUT,
            onnx_wire.NODE_OUTPUT,
            onnx_wire.NODE_TYPE,
            onnx_wire.NODE_DOMAIN,
        )
        attributes = self.spans(start, end, onnx_wire.NODE_ATTRIBUTE)
        graphs = [
            span
            for a, b in attributes
            for span in self.spans(a, b, onnx_wire.ATTRIBUTE_GRAPH, onnx_wire.ATTRIBUTE_GRAPHS)
        ]
        node = _DecoderNode(
            (start, end), inputs, outputs, "".join(types), "".join(domains), bool(graphs)
        )
        self.nodes.append(node)
        self.makers.update(dict.fromkeys(filter(None, node.outputs), node))

    def same_elements(self, name: str) -> list[str]:
        """The value, and those of which it is only a view in another shape or type, nearest first."""
        chain = [name]
        for _ in range(limits.DECODER_VIEWS):
            maker = self.makers.get(chain[-1])
            if (
                maker is None
                or maker.type not in onnx_wire.VIEWS
                or maker.domain
                or not maker.inputs
            ):
                break
            chain.append(maker.inputs[0])
        return chain

    def between(self, start: str, end: str) -> tuple[list[_DecoderNode], set[str]]:
        """The nodes that compute ``end`` from ``start``, in their order, and the names of what they read.

        Raises:
            SubgraphError: they read something else too.
        """
        needed, seen, nodes = [end], {start, ""}, set[int]()
        while needed:
            name = needed.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = self.makers.get(name)
            if maker is not None and maker.holds_graphs:
                raise SubgraphError(f"its {maker.type} node holds a graph")
            if maker is not None:
                nodes.add(id(maker))
                needed += maker.inputs
            elif name not in self.tensors:
                raise SubgraphError(f"it also depends on '{name}'")
        return [node for node in self.nodes if id(node) in nodes], seen

    def description(self, name: str, start: str, nodes: list[_DecoderNode]) -> bytes:
        """The ``ValueInfoProto`` of a value; empty if the file has none and the nodes need its shape.

        Nodes that only reshape it take it in the shape of ``start``.
        """
        if name in self.values:
            return self.data[slice(*self.values[name])]
        readers = [node for node in nodes if name in node.inputs]
        reshaped = all(n.type == "Reshape" and n.inputs.index(name) == 0 for n in readers)
        types = [self.makers[v].type for v in self.same_elements(start) if v in self.makers]
        if not reshaped or "Cast" in types[: self.same_elements(start).index(name)]:
            return b""
        types_of = [
            self.data[a:b] for a, b in self.spans(*self.values[start], onnx_wire.VALUE_TYPE)
        ]
        return message(
            [(onnx_wire.VALUE_NAME, name.encode()), *((onnx_wire.VALUE_TYPE, t) for t in types_of)]
        )


def extract_subgraph(data: bytes, start: str, end: str) -> bytes:
    """The part of a file that computes the output ``end`` from ``start``, which is its only input.

    If it reads the value of which ``start`` is a view (the same elements in another shape or type), that
    value is the input.

    Args:
        data: an ONNX file that `onnx_file.summarize` has accepted.

    Raises:
        SubgraphError: ``end`` depends on more than ``start``, or the file does not describe the input.
    """
    try:
        return _extract(_DecoderGraph(data), start, end)
    except MalformedProtobuf as error:
        raise SubgraphError(str(error)) from error


def _extract(graph: _DecoderGraph, start: str, end: str) -> bytes:
    refused: list[SubgraphError] = []
    for name in graph.same_elements(start):
        try:
            nodes, read = graph.between(name, end)
        except SubgraphError as error:
            refused.append(error)
            continue
        described = graph.description(name, start, nodes)
        if described:
            return _assembled(graph, nodes, read, described, end)
        refused.append(SubgraphError(f"the file does not state the shape of '{name}'"))
    raise refused[-1]


def _assembled(
    graph: _DecoderGraph,
    nodes: list[_DecoderNode],
    read: Collection[str],
    described: bytes,
    end: str,
) -> bytes:
    data = graph.data
    parts = [(onnx_wire.GRAPH_NODE, node.span) for node in nodes]
    parts.append((onnx_wire.GRAPH_NAME, graph.name))
    parts += [
        (onnx_wire.GRAPH_TENSOR, span) for name, span in graph.tensors.items() if name in read
    ]
    parts.append((onnx_wire.GRAPH_OUTPUT, graph.values[end]))
    content = message([(number, data[a:b]) for number, (a, b) in parts])
    content += length_delimited(onnx_wire.GRAPH_INPUT, described)
    model, at = [], 0
    for number, kind, _, b in graph.fields(0, len(data)):
        after = b if kind == BYTES else graph.end_of_number(at)
        if number == onnx_wire.MODEL_GRAPH:
            model.append(length_delimited(number, content))
        elif number != onnx_wire.MODEL_METADATA:
            model.append(data[at:after])
        at = after
    return b"".join(model)
