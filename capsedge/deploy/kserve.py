"""Write an InferenceService of KServe for a model repository of `deploy_triton`.

Every scalar is written as JSON, which YAML 1.2 reads as the same value.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.deploy.deploy_options import KServeOptions
from capsedge.deploy.deployment import KServeDeployment, read_manifest
from capsedge.deploy.triton import KIND
from capsedge.errors import ArtefactError, UsageError
from capsedge.options import takes_options
from capsedge.runtime import zoo
from capsedge.runtime.files import reading
from capsedge.runtime.files.documents import MalformedJson, decode
from capsedge.runtime.files.writing import as_path, write_text
from capsedge.spec.fields import MANIFEST

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import KServeKeywords

# --- YAML in block style, written without a YAML package ---


def block_style(document: Mapping[str, Any]) -> str:
    """The text of a document of mappings, lists of scalars, and scalars; keys are plain words."""
    return "".join(f"{line}\n" for line in _lines(document))


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {line}" for line in _lines(value))
        elif isinstance(value, list):
            yield f"{key}:"
            yield from (f"  - {json.dumps(each)}" for each in value)
        else:
            yield f"{key}: {json.dumps(value)}"


# --- ``capsedge.deploy_kserve`` ---

MOUNT = "/mnt/models"  # folder where KServe mounts the storage
RUNTIME = "kserve-tritonserver"
SCHEMES = ("gs", "s3", "pvc", "https", "http", "hdfs", "webhdfs", "oci", "hf")
_STORAGE = re.compile(rf"({'|'.join(SCHEMES)})://[!-~]+")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_RELEASE = re.compile(r"[0-9]{2}\.[0-9]{2}")
_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]+")
# Linux's names of processors, and Kubernetes' own.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class _ModelSpec:
    name: str
    device: str
    ops: str
    twin_of: str


@takes_options(KServeOptions)
def deploy_kserve(
    repository: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: KServeOptions = KServeOptions(),
    *,
    storage: str,
    **_keywords: Unpack[KServeKeywords],
) -> KServeDeployment:
    """Write an InferenceService (``serving.kserve.io/v1beta1``) that runs a model repository in Triton.

    Args:
        repository: the folder that `deploy_triton` wrote, with ``mount="/mnt/models"`` if its models use the
            operator library.
        output: the YAML file.
        storage: address of a copy of the folder that the cluster can read, such as ``s3://bucket/models``.

    Returns:
        The service's name, its models and the document.

    Raises:
        UsageError: there is no such folder, an option does not fit, KServe could not run a model, or the file
            cannot be written.
        ArtefactError: the folder was not written by `deploy_triton`.

    Example:
        >>> deployment = capsedge.deploy_kserve("repository/", "service.yaml", storage="s3://models/digits")
        >>> deployment.name
        'digits-dynamic'
    """
    folder = as_path(repository, "the path of a model repository")
    target = as_path(output, "the path of a YAML file to write")
    mount, architecture, listed = _read(folder)
    loaded = _chosen(listed, options.models)
    _check_storage(storage)
    uses_library = any(m.ops == "fused" and m.device == "cpu" for m in loaded)
    if uses_library and mount != MOUNT:
        raise UsageError(
            f"KServe would not find the operator library of {folder}.",
            f"The repository was written for the mount point {mount}, but KServe mounts it at {MOUNT}.",
            f"Write it again with mount='{MOUNT}'.",
            command=f"Write it again: capsedge deploy triton ... --mount {MOUNT}.",
        )
    _check_plugins(loaded)
    service = _service_name(options.name, loaded[0].name)
    predictor: dict[str, Any] = dict(_replicas(options.replicas))
    if uses_library and architecture in _ARCHITECTURES:
        predictor["nodeSelector"] = {"kubernetes.io/arch": _ARCHITECTURES[architecture]}
    predictor["model"] = {
        "modelFormat": {"name": "triton", "version": "2"},
        "runtime": RUNTIME,
        "runtimeVersion": f"{options.release}-py3",
        "protocolVersion": "v2",
        "storageUri": storage,
        "args": ["--model-control-mode=explicit", *(f"--load-model={m.name}" for m in loaded)],
        **_resources(options.cpus, options.memory, any(m.device != "cpu" for m in loaded)),
    }
    document = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": service},
        "spec": {"predictor": predictor},
    }
    write_text(target, block_style(document))
    return KServeDeployment(target, service, tuple(m.name for m in loaded), document)


def _read(folder: Path) -> tuple[str, str, list[_ModelSpec]]:
    """The mount, architecture and models of a repository, read from its manifest."""
    there = reading.path_kind(folder)
    if there == reading.FILE or (there is None and str(folder) in zoo.FILES):
        raise UsageError(
            f"{folder} is not a model repository.",
            "KServe runs a folder of models in its storage.",
            f"Write one with deploy_triton(..., mount='{MOUNT}') and pass its folder.",
            command=f"Write one, and name its folder: capsedge deploy triton {folder} -o repository "
            f"--mount {MOUNT}",
        )
    if there is None:
        raise UsageError(
            f"There is no folder {folder}.", "", "Write one with `capsedge deploy triton`."
        )
    try:
        values = read_manifest(folder)
        if values.get("kind") != KIND:
            raise MalformedJson("it describes another kind of folder")
        mount, architecture = (decode(str, values.get(k), k) for k in ("mount", "architecture"))
        models = decode(list[_ModelSpec], values.get("models"), "models")
        _check_models(models)
    except (MalformedJson, UsageError) as error:
        why = f"{error.what} {error.why}" if isinstance(error, UsageError) else str(error)
        raise ArtefactError(
            f"{folder} is not a model repository written by capsedge.",
            f"Its {MANIFEST} cannot be used: {why}",
            "Write the folder with `capsedge deploy triton`.",
        ) from error
    return mount, architecture, models


def _check_models(models: Sequence[_ModelSpec]) -> None:
    """Refuse models that `deploy_triton` would not have listed."""
    own = {m.name for m in models if not m.twin_of}
    if not own or len({m.name for m in models}) < len(models):
        raise MalformedJson("its models do not have distinct names")
    for model in models:
        if not (
            _MODEL_NAME.fullmatch(model.name)
            and model.device in ("cpu", "cuda")
            and model.ops in ("fused", "portable")
            and model.twin_of in ("", *own)
        ):
            raise MalformedJson("it lists something that is not a model")


def _chosen(listed: Sequence[_ModelSpec], names: Sequence[str]) -> list[_ModelSpec]:
    unknown = [name for name in names if name not in {m.name for m in listed}]
    if unknown:
        raise UsageError(
            f"The repository has no model '{unknown[0]}'.",
            "",
            f"It has {', '.join(m.name for m in listed)}.",
        )
    return [m for m in listed if (m.name in names if names else not m.twin_of)]


def _check_plugins(loaded: Sequence[_ModelSpec]) -> None:
    fused = [m.name for m in loaded if m.ops == "fused" and m.device != "cpu"]
    if fused:
        raise UsageError(
            f"KServe's Triton runtime cannot run {fused[0]}.",
            "It is an engine with fused routing, and the runtime has no plugin library for it.",
            "Build the engine with plugin 'native', or choose other models.",
            command="Build the engine with `capsedge build --plugin native`, or deploy other models.",
        )


def _check_storage(storage: str) -> None:
    if not _STORAGE.fullmatch(storage):
        raise UsageError(
            f"KServe cannot read from '{storage}'.",
            f"Expected: an address that begins with one of {', '.join(f'{s}://' for s in SCHEMES)}",
            "Copy the repository to such a place, and name it with --storage.",
        )


def _service_name(name: str | None, model: str) -> str:
    if name is None:
        name = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
        name = (name if name[:1].isalpha() else f"model-{name}")[:63].rstrip("-")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"A Kubernetes service cannot be called '{name}'.",
            "Expected: up to 63 lower-case letters, digits and '-', beginning with a letter and "
            "not ending with '-'.",
            "Choose another name with --name.",
        )
    return name


def _replicas(replicas: tuple[int, int] | None) -> dict[str, int]:
    if replicas is None:
        return {}
    least, most = replicas
    return {"minReplicas": least, "maxReplicas": most}


def _resources(cpus: int | None, memory: str, gpu: bool) -> dict[str, Any]:
    amounts: dict[str, str] = {}
    if cpus is not None:
        amounts["cpu"] = str(cpus)
    if memory:
        amounts["memory"] = memory
    if gpu:
        amounts["nvidia.com/gpu"] = "1"
    return {"resources": {"requests": amounts, "limits": dict(amounts)}} if amounts else {}
