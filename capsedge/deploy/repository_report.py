"""What ``capsedge.deploy_triton`` and ``capsedge.deploy_kserve`` return."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsedge.deploy.report import DeployedFile
from capsedge.runtime import quantities
from capsedge.runtime.summary import Row, Summarized, Summary


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
        name: as requests name it.
        backend: ``onnxruntime`` or ``tensorrt``.
        ops: ``fused`` if the operator library or TensorRT plugins run its routing, otherwise ``portable``.
        device: ``cpu`` or ``cuda``.
        max_batch: rows of the largest batch; 0 if requests are not joined.
        inputs, outputs: without the batch; none of an engine, which tells the server its own.
        twin_of: the model that it is the portable twin of; empty for others.
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
class TritonDeployment(Summarized):
    """A model repository for Triton Inference Server.

    Attributes:
        output: the folder.
        mount: where the server sees it.
        architecture: of the processor that the operator library is for; empty where no model uses it.
        models: in their order.
        files: what it holds.
        notes: what a person should know.
    """

    output: Path
    mount: str
    architecture: str
    models: tuple[TritonModel, ...]
    files: tuple[DeployedFile, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "output": str(self.output)}

    def _summary(self) -> Summary:
        total = quantities.size(sum(file.bytes for file in self.files))
        rows = [Row(model.name, described(model)) for model in self.models]
        line = f"{self.output}: {len(self.models)} models, {total}"
        return Summary("TritonDeployment", [line], rows)


@dataclass(frozen=True, repr=False)
class KServeDeployment(Summarized):
    """A manifest for KServe.

    Attributes:
        output: the file.
        name: of the InferenceService.
        models: names of the models that it loads.
        manifest: the document.
    """

    output: Path
    name: str
    models: tuple[str, ...]
    manifest: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "output": str(self.output)}

    def _summary(self) -> Summary:
        line = f"{self.output}: InferenceService {self.name}"
        return Summary("KServeDeployment", [line], [Row("models", ", ".join(self.models))])


def described(model: TritonModel) -> str:
    """How a model is served, in words."""
    batch = f"batches up to {model.max_batch}" if model.max_batch else "no batching"
    twin = f", twin of {model.twin_of}" if model.twin_of else ""
    return f"{model.backend}, {model.ops} operators, {model.device}, {batch}{twin}"
