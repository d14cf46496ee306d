"""Report deployments to Triton, KServe and the web, and keep the manifest of a deployed folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from capsedge.errors import CapsedgeError
from capsedge.runtime.files import reading, text
from capsedge.runtime.files.documents import decode, parse
from capsedge.runtime.files.writing import unchanged_files
from capsedge.runtime.result_summary import Report
from capsedge.spec import limits
from capsedge.spec.fields import MANIFEST

# --- The report of ``capsedge.deploy_web`` ---

ON_DEMAND = "webgpu/"  # files there are fetched on first use


@dataclass(frozen=True)
class DeployedFile:
    """A file of the folder: its path in it, ``/`` between names, bytes, and SHA-256 in hexadecimal."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class WebModel:
    """A model that the page offers.

    Attributes:
        name: the name shown on the page.
        routing: ``dynamic``, ``em`` or ``attention``; empty if its file does not state it.
        precision: ``fp32``, ``fp16``, ``int8`` or ``mixed``.
        files: path of the file for each number of routing iterations.
        compiled: path of the network as WebAssembly, for compiled files.
    """

    name: str
    routing: str
    precision: str
    files: Mapping[int, str]
    compiled: Mapping[int, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Its routing, iterations and precision."""
        iterations = ", ".join(map(str, self.files))
        routing = f"{self.routing} routing, iterations {iterations}, " if self.routing else ""
        return f"{routing}{self.precision}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        files = [
            {
                "iterations": count,
                "path": path,
                **({"compiled": self.compiled[count]} if count in self.compiled else {}),
            }
            for count, path in self.files.items()
        ]
        return {
            "name": self.name,
            "routing": self.routing,
            "precision": self.precision,
            "files": files,
        }


@dataclass(frozen=True, repr=False)
class WebDeployment(Report):
    """A folder that any web server can host.

    Attributes:
        output: the folder.
        models: in the order of the page.
        files: the files in it.
        notes: remarks for the user.
        late: prefixes of the paths that are loaded on first use.
    """

    heading: ClassVar[str] = "Deployed"

    output: Path
    models: tuple[WebModel, ...]
    files: tuple[DeployedFile, ...]
    notes: tuple[str, ...] = ()
    late: tuple[str, ...] = (ON_DEMAND,)

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.bytes for file in self.files)

    @property
    def first_visit(self) -> int:
        """Bytes loaded on the first visit: everything except what is fetched on first use."""
        return sum(file.bytes for file in self.files if not file.path.startswith(self.late))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "output": str(self.output),
            "bytes": self.bytes,
            "bytes_of_first_visit": self.first_visit,
            "models": [model.to_dict() for model in self.models],
            "files": [vars(file) for file in self.files],
            "notes": list(self.notes),
        }

    def _lines(self) -> list[str]:
        return [f"{self.output}: {len(self.models)} models, {text.format_bytes(self.bytes)}"]

    def rows(self) -> list[tuple[str, str]]:
        """The folder and its models."""
        size = text.format_bytes(self.bytes)
        return [
            ("folder", f"{self.output}, {len(self.files)} files, {size}"),
            ("first visit", f"loads at most {text.format_bytes(self.first_visit)}"),
            *((model.name, model.words) for model in self.models),
        ]


# --- The report of ``capsedge.deploy_triton`` and ``capsedge.deploy_kserve`` ---


@dataclass(frozen=True)
class ServedTensor:
    """An input or output of a deployed model: its name, its type in Triton's words, its sizes, -1 if free."""

    name: str
    type: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class TritonModel:
    """A model of a repository.

    Attributes:
        name: the name that requests use.
        backend: ``onnxruntime`` or ``tensorrt``.
        ops: ``fused`` if the operator library or TensorRT plugins run its routing, otherwise ``portable``.
        device: ``cpu`` or ``cuda``.
        max_batch: rows of the largest batch; 0 if requests are not joined.
        inputs, outputs: without the batch; empty for an engine, which declares them to the server itself.
        twin_of: the model whose portable twin it is; empty otherwise.
    """

    name: str
    backend: str
    ops: str
    device: str
    max_batch: int
    inputs: tuple[ServedTensor, ...] = ()
    outputs: tuple[ServedTensor, ...] = ()
    twin_of: str = ""


@dataclass(frozen=True, repr=False)
class TritonDeployment(Report):
    """A model repository for Triton Inference Server.

    Attributes:
        output: the folder.
        mount: the path under which the server sees it.
        architecture: processor architecture of the operator library; empty if no model uses it.
        models: the models, in order.
        files: the files in it.
        notes: remarks for the user.
    """

    heading: ClassVar[str] = "Deployed"

    output: Path
    mount: str
    architecture: str
    models: tuple[TritonModel, ...]
    files: tuple[DeployedFile, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "output": str(self.output)}

    def _lines(self) -> list[str]:
        total = text.format_bytes(sum(file.bytes for file in self.files))
        return [f"{self.output}: {len(self.models)} models, {total}"]

    def rows(self) -> list[tuple[str, str]]:
        """The folder and its models."""
        return [
            ("folder", f"{self.output}, seen by the server at {self.mount}"),
            *((model.name, described(model)) for model in self.models),
        ]


@dataclass(frozen=True, repr=False)
class KServeDeployment(Report):
    """A manifest for KServe.

    Attributes:
        output: the file.
        name: name of the InferenceService.
        models: names of the models that it loads.
        manifest: the document.
    """

    heading: ClassVar[str] = "Deployed"

    output: Path
    name: str
    models: tuple[str, ...]
    manifest: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "output": str(self.output)}

    def _lines(self) -> list[str]:
        return [f"{self.output}: InferenceService {self.name}"]

    def rows(self) -> list[tuple[str, str]]:
        """The file, the service and its models."""
        return [
            ("file", str(self.output)),
            ("service", self.name),
            ("models", ", ".join(self.models)),
        ]


def described(model: TritonModel) -> str:
    """How a model is served, in words."""
    batch = f"batches up to {model.max_batch}" if model.max_batch else "no batching"
    twin = f", twin of {model.twin_of}" if model.twin_of else ""
    return f"{model.backend}, {model.ops} operators, {model.device}, {batch}{twin}"


# --- The manifest: the files of the folder, so that the next run replaces only these ---


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a deployed folder."""
    with reading.open_regular_file(folder / MANIFEST) as file:
        document = parse(file.read(limits.JSON_BYTES + 1).decode(errors="replace"))
    return decode(dict[str, Any], document)


def earlier_files(folder: Path) -> list[str]:
    """The files that the manifest of a folder lists and nobody changed, and itself; none without one."""
    if reading.path_kind(folder) == reading.FOLDER:
        with suppress(CapsedgeError, ValueError):
            listed_files = decode(dict[str, Any], read_manifest(folder).get("files"), "files")
            entries = {path: decode(dict[str, Any], each) for path, each in listed_files.items()}
            sums = {
                path: decode(str, each.get("sha256"), "sha256") for path, each in entries.items()
            }
            return [*unchanged_files(folder, sums), MANIFEST]
    return []


def listed(path: str, content: bytes | Path) -> DeployedFile:
    """A file's entry in the manifest."""
    data = content if isinstance(content, bytes) else content.read_bytes()
    return DeployedFile(path, len(data), hashlib.sha256(data).hexdigest())
