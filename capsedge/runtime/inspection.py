"""Report the contents of a model file, a checkpoint or an engine, without running it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from capsedge.errors import ArtefactError, EnvironmentProblem, UsageError
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.engine_layers import EngineLayer
from capsedge.runtime.backends.tensorrt_library import check_engine_machine, this_build_machine
from capsedge.runtime.backends.tensorrt_rtx import import_for
from capsedge.runtime.files.documents import MalformedJson
from capsedge.runtime.files.formats import is_engine
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.runtime.files.safetensors import TYPES, Header, read_header
from capsedge.runtime.files.safetensors import field as checkpoint_field
from capsedge.runtime.files.writing import ModelLike, as_file, sha256
from capsedge.runtime.inspection_report import (
    EngineInspection,
    Inspection,
    Intermediate,
    RoutingLayer,
    StoredTensors,
)
from capsedge.runtime.machine import power_mode
from capsedge.runtime.metadata import engine_metadata as metadata_files
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.metadata.origin import ORIGIN_KEY, PRUNING_KEY, Origin, Pruned
from capsedge.runtime.metadata.table_indices import read_inputs_property
from capsedge.runtime.onnx_file.costs import vote_sizes_of
from capsedge.runtime.onnx_file.layer_map import engine_locations, layer_of_weights, merge_locations
from capsedge.runtime.onnx_file.stored_values import NotFinite, find_not_finite, not_finite
from capsedge.runtime.onnx_file.structure import (
    BITS,
    GraphStructure,
    Node,
    Shape,
    ValueInfo,
    structure_of,
)
from capsedge.runtime.onnx_file.summary import read_model_bytes
from capsedge.spec.operators import DOMAIN, ROUTING_OPERATORS

LARGEST = 5  # intermediate values listed
_WIDTHS = {
    "b": 1
}  # bytes of an element by the letter of the operators' table; others count as FP32
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# Other tensors of a checkpoint may be masks, which may be infinite.
_WEIGHTS = (".weight", ".bias", ".running_mean", ".running_var")
CONFIG_KEY = "capsedge.config"  # key in a checkpoint's metadata


def inspect_file(path: Path | str, batches: Sequence[int] = (1,)) -> Inspection:
    """Inspect an ONNX file from any tool, or a safetensors checkpoint.

    Args:
        path: the file; its kind is determined by its content, not its name.
        batches: batch sizes for which the votes' memory is computed.
    """
    path = Path(path)
    if not batches or min(batches) < 1:
        raise UsageError(
            f"Invalid batch sizes {list(batches)}.",
            "A batch has at least one image.",
            "For example: --batch 1,8.",
        )
    with open_regular_file(path, "Name an ONNX file or a checkpoint that exists.") as file:
        head = file.read(9)
    if head[8:9] == b"{":
        return _checkpoint(path)
    return _onnx(path, batches)


def _checkpoint(path: Path) -> Inspection:
    groups: dict[str, list[int]] = {}
    buffers = 0
    try:
        with open_regular_file(path) as file:
            length = file_size(file)
            header = read_header(file)
            damaged = _damaged(file, header)
        configuration = checkpoint_field(dict[str, Any], header.metadata, CONFIG_KEY)
        origin = checkpoint_field(Origin, header.metadata, ORIGIN_KEY)
        pruned = checkpoint_field(Pruned, header.metadata, PRUNING_KEY)
    except MalformedJson as error:
        raise ArtefactError(
            f"{path} is not a readable safetensors checkpoint.",
            f"{error}.",
            "Copy it again, or save it again with capsedge.",
        ) from error
    for name, tensor in header.tensors.items():
        kind, width = TYPES[tensor.dtype]
        group = groups.setdefault(kind, [0, 0, 0])
        group[0] += 1
        group[1] += tensor.elements
        if name.endswith((".running_mean", ".running_var")) and "float" in kind:
            buffers += tensor.elements
        group[2] += tensor.elements * width
    tensors = [StoredTensors(kind, *counts) for kind, counts in sorted(groups.items())]
    return Inspection(
        path=str(path),
        kind="checkpoint",
        bytes=length,
        sha256=sha256(path),
        tensors=tensors,
        configuration=configuration,
        origin=origin,
        pruned=pruned,
        buffers=buffers,
        not_finite=damaged,
    )


def _damaged(file: BinaryIO, header: Header) -> list[NotFinite]:
    """The tensors of a checkpoint with NaN, and its weights and statistics with infinite values."""
    problems, start = [], file.tell()
    for name, tensor in header.tensors.items():
        dtype, (begin, end) = _FLOATS.get(tensor.dtype), tensor.data_offsets
        if dtype is not None:
            file.seek(start + begin)
            values = np.frombuffer(file.read(end - begin), dtype).reshape(tensor.shape)
            if tensor.dtype == "BF16":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            problems.append(not_finite(name, values, infinite=not name.endswith(_WEIGHTS)))
    return [each for each in problems if each is not None]


def _onnx(path: Path, batches: Sequence[int]) -> Inspection:
    data = read_model_bytes(path)
    model = structure_of(data, str(path))
    graph = model.graph
    used: dict[str, Counter[str]] = {DOMAIN: Counter(), "standard": Counter()}
    for node in graph.walk():
        kind = {DOMAIN: DOMAIN, "": "standard"}.get(node.domain, node.domain)
        used.setdefault(kind, Counter())[node.operator] += 1
    calls = Counter((node.domain, node.op, node.overload) for node in graph.walk())
    groups: dict[str, list[int]] = {}
    initializers = [tensor for each in graph.graphs() for tensor in each.initializers]
    for tensor in (*initializers, *_constants(graph)):
        group = groups.setdefault(tensor.type, [0, 0, 0])
        elements = tensor.elements or 0
        group[0] += 1
        group[1] += elements
        group[2] += (elements * BITS.get(tensor.type, 0) + 7) // 8
    stored = {t.name for t in graph.initializers}
    shapes = {v.name: v.shape for v in (*_values(graph), *initializers) if v.shape is not None}
    return Inspection(
        path=str(path),
        kind="onnx",
        bytes=path.stat().st_size,
        sha256=sha256(path),
        tensors=[StoredTensors(kind, *counts) for kind, counts in sorted(groups.items())],
        ir_version=model.ir_version,
        opsets=model.opsets,
        producer=model.producer,
        inputs=[v for v in graph.inputs if v.name not in stored],
        outputs=graph.outputs,
        bounds=read_inputs_property(model.metadata),
        operators={kind: dict(sorted(count.items())) for kind, count in used.items()},
        functions=[
            {
                "domain": f.domain,
                "name": f.name,
                "overload": f.overload,
                "nodes": sum(1 for _ in f.walk()),
                "calls": calls[(f.domain, f.name, f.overload)],
            }
            for f in model.functions
        ],
        routing=[
            _votes(node, shapes, batches)
            for node in graph.walk()
            if node.domain == DOMAIN and node.operator in ROUTING_OPERATORS
        ],
        largest=_largest(graph, batches),
        external_data=model.external_data,
        training=model.training,
        not_finite=find_not_finite(data),
        metadata=ModelMetadata.from_properties(model.metadata),
    )


def _values(graph: GraphStructure) -> list[ValueInfo]:
    return [v for each in graph.graphs() for v in (*each.values, *each.inputs, *each.outputs)]


def _largest(graph: GraphStructure, batches: Sequence[int]) -> list[Intermediate]:
    """The largest intermediate values with a stated shape; the batch is the first dimension of the inputs.

    Other free dimensions (a batch folded with positions, in inlined bodies) have no size to compute with.
    """
    batch = {v.shape[0] for v in graph.inputs if v.shape}
    values = []
    for value in graph.values:
        if not value.shape or not all(isinstance(d, int) for d in value.shape[1:]):
            continue
        first = value.shape[0]
        if not isinstance(first, int) and first not in batch:
            continue
        bits = BITS.get(value.type, 0) * _per_image(value.shape)
        sizes = {n: (first if isinstance(first, int) else n) * bits // 8 for n in batches}
        values.append(Intermediate(value.name, value.type, value.shape, sizes))
    return sorted(values, key=lambda v: -max(v.bytes.values()))[:LARGEST]


def _constants(graph: GraphStructure) -> list[ValueInfo]:
    values = (node.attributes.get("value") for node in graph.walk() if node.op == "Constant")
    return [v for v in values if isinstance(v, ValueInfo)]


def _votes(node: Node, shapes: dict[str, Shape], batches: Sequence[int]) -> RoutingLayer:
    """Votes of a capsedge routing node."""
    spec = ROUTING_OPERATORS[node.operator]
    name = layer_of_weights(node) or node.name or (node.outputs[0] if node.outputs else "")
    try:
        children, weight = shapes[node.inputs[0]], shapes[node.inputs[spec.weight]]
        votes = vote_sizes_of(spec, children, weight, node.attributes)
        per_image = weights = 0
        for value, tensor in zip(spec.inputs, node.inputs, strict=False):
            if not tensor:
                continue  # left out
            width = _WIDTHS.get(value.type, 4)
            if value.batched:
                per_image += width * _per_image(shapes[tensor])
            else:
                weights += width * math.prod(_known(shapes[tensor]))
        per_image += sum(4 * _per_image(shapes[n]) for n in node.outputs if n)
    except (LookupError, ArithmeticError, ValueError):
        return RoutingLayer(name, node.operator)  # shapes that the file does not state
    return RoutingLayer(
        name,
        node.operator,
        votes.positions,
        votes.children,
        votes.parents,
        votes.pose,
        votes={n: 4 * n * votes.elements for n in batches},
        fused={n: n * per_image + weights for n in batches},
    )


def _known(shape: Shape) -> tuple[int, ...]:
    if not all(isinstance(d, int) for d in shape):
        raise ValueError("a free dimension")
    return tuple(int(d) for d in shape)


def _per_image(shape: Shape) -> int:
    return math.prod(_known(shape[1:]))


# --- ``capsedge.inspect`` ---


def inspect(model: ModelLike, *, batch: int | Sequence[int] = 1) -> Inspection | EngineInspection:
    """Inspect a file without running anything in it.

    Args:
        model: an ONNX file from any tool, a ``.safetensors`` checkpoint, or the bytes of either; or a
            TensorRT engine, named ``*.engine``, with its metadata file next to it.
        batch: batch sizes to compute the memory of the votes for; ignored for an engine.

    Returns:
        The `Inspection` of a model or a checkpoint, or the `EngineInspection` of an engine; ``to_dict``
        returns what ``capsedge inspect --json`` prints. For bytes the path is empty.

    Raises:
        UsageError: there is no such file, or a batch size is below 1.
        ArtefactError: the file is damaged or of an unknown kind, or an engine has no metadata file.

    Example:
        >>> inspection = capsedge.inspect("digits.onnx", batch=8)
        >>> inspection.parameters, inspection.operators["capsedge"]
    """
    batches = [batch] if isinstance(batch, int) else list(batch)
    with as_file(model) as path:
        if is_engine(path):
            return inspect_engine(path)
        inspection = inspect_file(path, batches)
    return replace(inspection, path="") if isinstance(model, bytes) else inspection


# --- TensorRT engines, by their metadata file: nothing is loaded ---


def read_engine_layers(path: Path, device: int = 0) -> list[EngineLayer]:
    """The layers of an engine and the model's that they belong to; needs TensorRT and the engine's GPU."""
    from capsedge.runtime.backends.tensorrt_engine import LoadedEngine

    engine = LoadedEngine(path, device)
    with engine.cuda.on(device):
        return engine.layers(engine.best)


def labelled_layers(path: Path, device: int = 0) -> list[dict[str, str]]:
    """An engine's layers in the order in which they run, with the labels of ``capsedge profile``."""
    return [
        {
            "belongs_to": merge_locations(engine_locations(f"{layer.name} {layer.metadata}")).label,
            "name": layer.name,
            "kind": layer.kind,
            "types": ", ".join(sorted(layer.types)),
            "kernel": layer.kernel,
        }
        for layer in read_engine_layers(path, device)
    ]


def inspect_engine(path: Path, device: int = 0) -> EngineInspection:
    """Read an engine's metadata file and compare it with this machine."""
    engine_info = metadata_files.read(path)
    runs, because, timed_for = None, "", ""
    try:
        trt, cuda = import_for(engine_info.target), load_cuda()
        check_engine_machine(path, engine_info, trt, cuda, device)
        runs = True
        here = replace(this_build_machine(trt, cuda, device), power_mode=power_mode())
        timed_for = engine_info.machine.differs_in_speed(here)
    except EnvironmentProblem as error:
        because = error.what
    except ArtefactError as error:
        runs, because = False, error.why
    return EngineInspection(str(path), engine_info, runs, because, timed_for)
