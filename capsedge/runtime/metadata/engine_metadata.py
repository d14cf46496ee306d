"""Read the metadata file of an engine: what the engine is, how it was built, and whether it fits this
machine.

``NAME.engine`` holds only TensorRT's bytes; everything that the runtime must know before it passes them to
TensorRT is in ``NAME.engine.json`` next to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from capsedge.errors import ArtefactError
from capsedge.runtime.files import documents
from capsedge.runtime.files.documents import MalformedJson, decode
from capsedge.runtime.files.reading import file_size, open_regular_file, path_kind
from capsedge.runtime.files.writing import sha256, with_suffix_appended, write_text
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.spec import limits
from capsedge.spec.fields import ENGINE_SCHEMA
from capsedge.spec.vocabularies import PLUGINS, PRECISIONS, TARGETS, TENSORRT, TENSORRT_RTX

MAX_SIZE = 2**31 - 1  # of a batch or a length
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}")  # needs no quotes in a shell


@dataclass(frozen=True)
class BuildMachine:
    """The properties of a machine that an engine depends on.

    Attributes:
        tensorrt: version of TensorRT or TensorRT-RTX, with all four parts.
        cuda: version of the CUDA runtime; empty for a portable engine.
        gpu: name of the GPU; empty for a portable engine, which is built without one.
        compute_capability: compute capability of the GPU, as ``"8.7"``; empty for a portable engine.
        architecture: architecture of the CPU.
        multiprocessors: number of the GPU's enabled multiprocessors; 0 if unknown.
        power_mode: power mode of a Jetson, such as ``MAXN_SUPER``; it determines clocks and multiprocessors.
    """

    tensorrt: str
    cuda: str
    gpu: str
    compute_capability: str
    architecture: str
    multiprocessors: int = 0
    power_mode: str = ""

    def differs_in_speed(self, here: BuildMachine) -> str:
        """The differences, in words, that affect only the speed of an engine; it runs here nevertheless."""
        differences = []
        if 0 not in (self.multiprocessors, here.multiprocessors) and (
            self.multiprocessors != here.multiprocessors
        ):
            differences.append(
                f"{self.multiprocessors} multiprocessors, here {here.multiprocessors}"
            )
        if self.power_mode != here.power_mode and "" not in (self.power_mode, here.power_mode):
            differences.append(f"power mode {self.power_mode}, here {here.power_mode}")
        return "; ".join(differences)


@dataclass(frozen=True)
class EngineMetadata:
    """The content of an engine's metadata file.

    Attributes:
        engine_sha256, engine_bytes: of the engine that it belongs to.
        machine: the machine that it was built on.
        plugin: ``native`` (no plugin) or ``fused``.
        plugin_library, plugin_sha256: the plugin library; empty without one.
        precision: the requested precision, which was found in the engine.
        layers: layers of the engine by the element types of their data: ``{"FP16": 12}``.
        batch: smallest, best and largest batch.
        source, source_sha256: the ONNX file.
        metadata: the ONNX file's properties under ``capsedge.``, and what it states of its inputs.
        command: the command that built it, for the record; errors advise `rebuild`.
        products: convolutions and matrix products by the type of their inputs: ``{"INT8": 4}``.
        target: ``tensorrt``: one GPU and one TensorRT; or ``tensorrt-rtx``: portable between GPUs.
        compute_capabilities: those of the GPUs that a portable engine was built for; empty for ``tensorrt``.
        length: smallest, best and largest size of the axes that the ONNX file leaves free besides the batch;
            empty if there are none.
    """

    engine_sha256: str
    engine_bytes: int
    machine: BuildMachine
    plugin: str
    plugin_library: str
    plugin_sha256: str
    precision: str
    layers: Mapping[str, int]
    batch: tuple[int, int, int]
    source: str
    source_sha256: str
    metadata: Mapping[str, str]
    command: str
    products: Mapping[str, int] = field(default_factory=dict)
    target: str = TENSORRT
    compute_capabilities: tuple[str, ...] = ()
    length: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not _is_range(self.batch):
            raise ValueError(f"batch {list(self.batch)}")
        if self.length and not _is_range(self.length):
            raise ValueError(f"length {list(self.length)}")
        if self.plugin not in PLUGINS:
            raise ValueError(f"plugin '{self.plugin}'")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision '{self.precision}', known: {', '.join(PRECISIONS)}")
        if self.target not in TARGETS:
            raise ValueError(f"target '{self.target}', known: {', '.join(TARGETS)}")
        if bool(self.compute_capabilities) != self.portable:
            raise ValueError(f"compute capabilities of an engine for '{self.target}'")
        for capability in self.compute_capabilities:
            if not _CAPABILITY.fullmatch(capability):
                raise ValueError(f"compute capability '{capability}'")

    @property
    def portable(self) -> bool:
        """Whether the engine is for several kinds of GPU, that is, for TensorRT-RTX."""
        return self.target == TENSORRT_RTX

    @property
    def built_for(self) -> str:
        """The GPUs, in words."""
        if self.portable:
            return f"RTX GPUs of compute capability {', '.join(self.compute_capabilities)}"
        return f"{self.machine.gpu}, compute capability {self.machine.compute_capability}"

    @property
    def built_with(self) -> str:
        """The software, in words."""
        cuda = f" and CUDA {self.machine.cuda}" if self.machine.cuda else ""
        return f"{TARGETS[self.target]} {self.machine.tensorrt}{cuda}"

    @property
    def rebuild(self) -> str:
        """The command that builds such an engine, made only of checked values and safe to run as printed."""
        source = self.source if _FILE_NAME.fullmatch(self.source) else "MODEL.onnx"
        words = ["capsedge", "build", source, "--plugin", self.plugin]
        if self.portable:
            words += ["--target", self.target]
            words += ["--compute-capability", ",".join(self.compute_capabilities)]
        words += ["--precision", self.precision]
        words += ["--batch", range_text(self.batch)]
        if self.length:
            words += ["--length", range_text(self.length)]
        return " ".join(words)

    @property
    def model(self) -> ModelMetadata | None:
        """The metadata of the model; None if it came from another tool."""
        return ModelMetadata.from_properties(self.metadata)

    def to_json(self) -> str:
        """The document."""
        return (
            json.dumps({"schema": ENGINE_SCHEMA, **asdict(self)}, indent=2, sort_keys=True) + "\n"
        )


def _is_range(sizes: Sequence[int]) -> bool:
    """Whether these are a smallest, best and largest size."""
    return len(sizes) == 3 and 1 <= sizes[0] <= sizes[1] <= sizes[2] <= MAX_SIZE


def range_text(sizes: Sequence[int]) -> str:
    """A smallest, best and largest size, as `capsedge build` takes them: ``1:8:32``, or ``8`` for one."""
    return ":".join(map(str, sizes if sizes[0] < sizes[-1] else sizes[:1]))


def range_words(sizes: Sequence[int]) -> str:
    """The batches or lengths that an engine takes, in words: ``1 to 32, best 8``."""
    low, best, high = sizes
    return f"{best}" if low == high else f"{low} to {high}, best {best}"


def metadata_path(engine: Path) -> Path:
    """The path of an engine's metadata file."""
    return with_suffix_appended(engine, ".json")


def write(engine: Path, metadata: EngineMetadata) -> None:
    """Write a metadata file next to its engine."""
    write_text(metadata_path(engine), metadata.to_json())


def read(engine: Path) -> EngineMetadata:
    """The metadata file of an engine, after its checksum has been compared with the engine's bytes."""
    with open_regular_file(engine, "Name an engine.") as file:
        size = file_size(file)
    path = metadata_path(engine)
    if path_kind(path) is None:
        raise ArtefactError(
            f"{engine} has no metadata file.",
            f"{path.name} should be next to it and state what the engine was built for.",
            "Copy both files, or build the engine here: `capsedge build MODEL.onnx`.",
        )
    try:
        values = decode(dict[str, Any], documents.read(path, limits.METADATA_VALUES))
        schema = decode(int, values.pop("schema", None), "schema")
        if schema != ENGINE_SCHEMA:
            raise MalformedJson(f"schema {schema}; this version of capsedge reads {ENGINE_SCHEMA}")
        engine_info = decode(EngineMetadata, values)
    except MalformedJson as error:
        raise ArtefactError(
            f"The metadata file {path} cannot be read.",
            f"{error}.",
            "Build the engine again: `capsedge build MODEL.onnx`.",
        ) from error
    if engine_info.engine_bytes != size or engine_info.engine_sha256 != sha256(engine):
        raise ArtefactError(
            f"{engine} is not the engine that its metadata file describes.",
            "Its size or its checksum differs: it was replaced, cut off or damaged.",
            f"Build it again: `{engine_info.rebuild}`.",
        )
    return engine_info


def check(engine: Path, metadata: EngineMetadata, here: BuildMachine, plugin: Path | None) -> None:
    """Compare an engine's metadata file with this machine, before TensorRT sees the engine.

    Args:
        plugin: the installed plugin library; None if there is none.
    """
    built = metadata.machine
    what = [
        (TARGETS[metadata.target], built.tensorrt, here.tensorrt),
        ("CPU architecture", built.architecture, here.architecture),
    ]
    if not metadata.portable:
        what += [
            ("compute capability", built.compute_capability, here.compute_capability),
            ("GPU", built.gpu, here.gpu),
        ]
    problems = [
        f"{name} is {now}, the engine needs {then}" for name, then, now in what if then != now
    ]
    wanted = metadata
    if metadata.portable and here.compute_capability not in metadata.compute_capabilities:
        listed = (*metadata.compute_capabilities, here.compute_capability)
        wanted = replace(metadata, compute_capabilities=listed)
        problems.append(
            f"the GPU {here.gpu} has compute capability {here.compute_capability}, the engine is for "
            + ", ".join(metadata.compute_capabilities)
        )
    if _number(here.cuda) < _number(built.cuda):
        problems.append(f"the driver is for CUDA {here.cuda}, the engine needs {built.cuda}")
    if metadata.plugin_sha256:
        if plugin is None:
            problems.append("the plugin library of capsedge is not here")
        elif sha256(plugin) != metadata.plugin_sha256:
            problems.append(f"the plugin library {plugin} is not the one it was built with")
    if problems:
        raise ArtefactError(
            f"{engine} was not built for this machine.",
            "; ".join(problems)
            + f". It was built for {metadata.built_for} on {built.architecture}, "
            f"with {metadata.built_with}.",
            f"Build it {'again' if metadata.portable else 'here'}: `{wanted.rebuild}`.",
        )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", version))
