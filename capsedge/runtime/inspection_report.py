"""What an inspection found, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.metadata.engine_metadata import EngineMetadata, range_words
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.metadata.origin import Origin, Pruned
from capsedge.runtime.metadata.table_indices import InputBounds
from capsedge.runtime.onnx_file.stored_values import NotFinite, first_few_lines
from capsedge.runtime.onnx_file.structure import Shape, ValueInfo
from capsedge.runtime.result_summary import Report, Table, shortened_name


@dataclass(frozen=True)
class StoredTensors:
    """Stored tensors of one element type."""

    type: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class RoutingLayer:
    """A routing node and the memory of its votes.

    Attributes:
        name, operator: name and operator of the node.
        positions, children, parents, pose: votes are ``[N, positions, children, parents, pose]``; None
            where the file does not say the shapes.
        votes: batch -> bytes of the votes in FP32, which an unfused graph writes and reads back.
        fused: batch -> bytes that a fused kernel moves: inputs, weights and outputs, once each.
    """

    name: str
    operator: str
    positions: int | None = None
    children: int | None = None
    parents: int | None = None
    pose: int | None = None
    votes: dict[int, int] = field(default_factory=dict)
    fused: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Intermediate:
    """A large intermediate value of the graph: batch -> its bytes."""

    name: str
    type: str
    shape: Shape
    bytes: dict[int, int]


@dataclass(repr=False)
class Inspection(Report):
    """The result of ``inspect``; ``to_dict`` is the document that ``--json`` prints.

    Attributes:
        bounds: the values and lengths that an ONNX file allows, by input.
        training: the BatchNormalization nodes in training mode, which make the result of an image depend on
            the others of its batch.
        not_finite: the tensors with NaN, and the weights with infinite values.
    """

    path: str
    kind: str
    bytes: int
    sha256: str
    tensors: list[StoredTensors]
    ir_version: int | None = None
    opsets: dict[str, int] = field(default_factory=dict)
    producer: str = ""
    inputs: list[ValueInfo] = field(default_factory=list)
    outputs: list[ValueInfo] = field(default_factory=list)
    bounds: dict[str, InputBounds] = field(default_factory=dict)
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    functions: list[dict[str, Any]] = field(default_factory=list)
    routing: list[RoutingLayer] = field(default_factory=list)
    largest: list[Intermediate] = field(default_factory=list)
    buffers: int = 0
    external_data: bool = False
    training: list[str] = field(default_factory=list)
    not_finite: list[NotFinite] = field(default_factory=list)
    metadata: ModelMetadata | None = None
    configuration: dict[str, Any] | None = None
    origin: Origin | None = None
    pruned: Pruned | None = None

    heading: ClassVar[str] = "File"

    def _lines(self) -> list[str]:
        size = f"{format_bytes(self.bytes)}, {self.parameters:,} parameters"
        return [f"{shortened_name(Path(self.path).name)}: {self.kind}, {size}"]

    def rows(self) -> list[tuple[str, str]]:
        """The file, its weights, and what its metadata says."""
        return _facts(self)

    def tables(self) -> list[Table]:
        """Inputs and outputs, operators, functions, large values, and the memory of the votes."""
        operators = [
            (domain, operator, str(count))
            for domain, counts in self.operators.items()
            for operator, count in counts.items()
        ]
        bodies = [
            (f"{f['domain']}.{f['name']}", f["overload"], str(f["nodes"]), str(f["calls"]))
            for f in self.functions
        ]
        return [
            self._ports("Inputs", self.inputs),
            self._ports("Outputs", self.outputs),
            Table("Operators", ("domain", "operator", "nodes"), operators),
            Table("Function bodies", ("function", "overload", "nodes", "calls"), bodies),
            self._values(),
            self._votes(),
        ]

    def _ports(self, title: str, values: Sequence[ValueInfo]) -> Table:
        columns: tuple[str, ...] = ("name", "type", "shape")
        rows: list[tuple[str, ...]] = [(v.name, v.type, _dimensions(v.shape)) for v in values]
        allowed = [_allowed(self.bounds.get(v.name)) for v in values]
        if any(allowed):
            columns = (*columns, "allowed")
            rows = [(*row, words) for row, words in zip(rows, allowed, strict=True)]
        return Table(title, columns, rows)

    def _values(self) -> Table:
        batches = list(dict.fromkeys(n for v in self.largest for n in v.bytes))
        return Table(
            "Largest intermediate values",
            ("value", "type", "shape", *(f"batch {n}" for n in batches)),
            [
                (v.name, v.type, _dimensions(v.shape), *(format_bytes(v.bytes[n]) for n in batches))
                for v in self.largest
            ],
        )

    def _votes(self) -> Table:
        batches = list(dict.fromkeys(n for layer in self.routing for n in layer.votes))
        return Table(
            "Memory of the votes (votes: FP32 tensor of an unfused graph; moved: bytes of a fused kernel)",
            (
                "layer",
                "operator",
                "positions x children x parents x pose",
                *(f"{kind}, batch {n}" for n in batches for kind in ("votes", "moved")),
            ),
            [_layer(layer, batches) for layer in self.routing],
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the weights."""
        if not self.not_finite:
            return ()
        return (f"weights are NaN or infinite: {'; '.join(first_few_lines(self.not_finite))}",)

    @property
    def parameters(self) -> int:
        """Elements of all floating-point tensors in the file, except a checkpoint's running statistics."""
        return sum(t.elements for t in self.tensors if "float" in t.type) - self.buffers

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {"schema": 1, "parameters": self.parameters, **asdict(self)}


@dataclass(frozen=True, repr=False)
class EngineInspection(Report):
    """A TensorRT engine, as described by its metadata file.

    Attributes:
        path: of the engine.
        engine_metadata: the metadata file next to it.
        runs_here: whether it was built for this machine, or for its kind of GPU; None if that is unknown.
        because: why it does not run here, or why this is unknown; empty if it runs.
        timed_for: power mode and multiprocessors for which its kernels were chosen, if they differ here.
    """

    path: str
    engine_metadata: EngineMetadata
    runs_here: bool | None
    because: str
    timed_for: str = ""

    heading: ClassVar[str] = "Engine"

    def _lines(self) -> list[str]:
        runs = {True: "runs here", False: "does not run here", None: "may run here"}[self.runs_here]
        built = self.engine_metadata
        return [
            f"{shortened_name(Path(self.path).name)}: {built.target}, {built.precision}, {runs}"
        ]

    def rows(self) -> list[tuple[str, str]]:
        """The engine, and where it runs."""
        built = self.engine_metadata
        here = {True: "yes", False: "no", None: "not known"}[self.runs_here]
        return [
            ("file", self.path),
            ("size", format_bytes(built.engine_bytes)),
            ("sha256", built.engine_sha256),
            ("runs here", f"{here}: {self.because}" if self.because else here),
            *([("timed for", self.timed_for)] if self.timed_for else []),
            ("built for", built.built_for),
            ("built with", f"{built.built_with}, {built.machine.architecture}"),
            ("batch", range_words(built.batch)),
            *([("length", range_words(built.length))] if built.length else []),
            ("precision", built.precision),
            ("layers", _counts(built.layers)),
            ("products", _counts(built.products)),
            ("routing runs in", built.plugin_library or "TensorRT's own operators"),
            ("made from", f"{built.source}, sha256 {built.source_sha256}"),
            ("build it again", built.rebuild),
        ]

    def tables(self) -> list[Table]:
        """The model."""
        model = self.engine_metadata.model
        return [] if model is None else [Table("Model", ("", ""), _model(model))]

    def to_dict(self) -> dict[str, Any]:
        """As ``capsedge inspect --json`` prints it."""
        return {"schema": 1, "kind": "engine", **asdict(self)}


# --- Rows and cells ---


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "not stated"


def _layer(layer: RoutingLayer, batches: Sequence[int]) -> tuple[str, ...]:
    if not layer.votes:
        return (layer.name, layer.operator, "not stated in the file", *["?"] * (2 * len(batches)))
    sizes = (layer.positions, layer.children, layer.parents, layer.pose)
    cells = (format_bytes(of[n]) for n in batches for of in (layer.votes, layer.fused))
    return (layer.name, layer.operator, " x ".join(map(str, sizes)), *cells)


def _allowed(bounds: InputBounds | None) -> str:
    """The values and lengths that an input allows; empty for any."""
    if bounds is None:
        return ""
    values = [] if bounds.entries is None else [f"0 to {bounds.entries - 1:,}"]
    lengths = [
        f"at most {most:,} along axis {axis}" for axis, most in enumerate(bounds.longest) if most
    ]
    return ", ".join([*values, *lengths])


def _dimensions(shape: Shape | None) -> str:
    return "unknown" if shape is None else "x".join(map(str, shape)) or "scalar"


def _facts(inspection: Inspection) -> list[tuple[str, str]]:
    facts = [
        ("file", inspection.path),
        ("size", format_bytes(inspection.bytes)),
        ("sha256", inspection.sha256),
    ]
    stored = ", ".join(
        f"{t.elements:,} {t.type} in {t.tensors} ({format_bytes(t.bytes)})"
        for t in inspection.tensors
    )
    facts += [("parameters", f"{inspection.parameters:,}"), ("tensors", stored or "none")]
    if inspection.external_data:
        facts.append(("external data", "some weights are in other files beside this one"))
    if inspection.training:
        names = ", ".join(inspection.training[:3]) + (
            " ..." if len(inspection.training) > 3 else ""
        )
        facts.append(
            ("training mode", f"{names}: the result of an image depends on the others of its batch")
        )
    branching = sorted({"If", "Loop", "Scan"} & set(inspection.operators.get("standard", ())))
    if branching:
        facts.append(("CUDA graphs", f"none: {', '.join(branching)} cannot be captured"))
    if inspection.kind == "onnx":
        opsets = ", ".join(
            f"{domain or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items()
        )
        facts.append(("format", f"ONNX IR {inspection.ir_version}, opset {opsets}"))
        facts.append(("producer", inspection.producer or "not stated"))
    if inspection.metadata is not None:
        facts += _model(inspection.metadata)
    elif inspection.kind == "onnx":
        ours = inspection.producer == "capsedge"
        facts.append(("metadata", "none" if ours else "none: a file from another tool"))
    if inspection.origin is not None:
        facts += inspection.origin.facts()
    if inspection.pruned is not None:
        facts += inspection.pruned.facts()
    for key, value in (inspection.configuration or {}).items():
        facts.append((f"config {key}", str(value)))
    return facts


def _model(meta: ModelMetadata) -> list[tuple[str, str]]:
    """The network, as described by the file's metadata."""
    facts = [
        ("architecture", meta.architecture or "not stated"),
        ("routing", meta.routing_text),
        ("task", meta.task),
        *_outputs(meta),
        ("precision", meta.precision),
        ("checkpoint", meta.checkpoint_sha256 or "not stated"),
    ]
    if meta.preprocessing is not None:
        p = meta.preprocessing
        scaling = f"scale {p.scale:.6g}, mean {list(p.mean)}, std {list(p.std)}"
        if p.per_image:
            scaling += f", per image {p.per_image}"
        if p.order != "RGB":
            scaling += f", channels {p.order}"
        size_of_image = "x".join(map(str, p.shape))
        facts.append(("input image", f"{size_of_image}, {p.resize}, {scaling}"))
    if meta.typical_input is not None:
        facts += meta.typical_input.facts()
    if meta.training_split is not None:
        facts.append(("held out", meta.training_split.summary))
    if meta.cascade is not None:
        facts += meta.cascade.facts()
    facts += [(f"parity {key}", _flat(value)) for key, value in meta.parity.items()]
    return facts if meta.origin is None else facts + meta.origin.facts()


def _flat(value: Any) -> str:
    """A metadata value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return str(value)


def _outputs(meta: ModelMetadata) -> list[tuple[str, str]]:
    """The contents of the outputs: classes or values."""
    facts = []
    if meta.class_names or meta.outputs is None:
        facts.append(("classes", f"{len(meta.class_names)}: {', '.join(meta.class_names)}"))
    declared = meta.outputs
    if declared is None:
        facts.append(("scores", "the output called lengths or logits, as in files of capsedge"))
        return facts + _why(meta)
    if declared.scores:
        facts.append(("scores", f"{declared.scores} ({declared.kind})"))
        facts += _why(meta)
        facts.append(("poses", declared.poses or "none"))
    else:
        named = zip(declared.names, declared.units, strict=True)
        values = ", ".join(f"{name} ({unit})" if unit else name for name, unit in named)
        facts.append(("values", f"{values} in {', '.join(declared.values)}"))
    return facts


def _why(meta: ModelMetadata) -> list[tuple[str, str]]:
    """Why this output was chosen for the scores, as stated in the file."""
    return [] if meta.chosen_scores is None else [("why these scores", meta.chosen_scores.reason)]
