"""Checkpoints: safetensors with the model's configuration as JSON in the metadata. Needs torch."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.models import CapsuleModel, build
from capsedge.models.config import config_from_dict
from capsedge.runtime.files import write_bytes

CONFIG_KEY = "capsedge.config"
MAX_BYTES = 4 << 30


def save_checkpoint(
    model: CapsuleModel, path: Path | str, extra: Mapping[str, str] | None = None
) -> None:
    """Write a model's parameters, buffers and configuration, whole or not at all.

    Args:
        model: the model.
        path: the ``.safetensors`` file.
        extra: more metadata, strings only, such as how the model was trained.

    Raises:
        UsageError: the place cannot be written.
        EnvironmentProblem: the disk is full.
    """
    tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    metadata = {CONFIG_KEY: json.dumps(model.config.to_dict()), **(extra or {})}
    write_bytes(path, _ordered(save(tensors, metadata)))


def _ordered(data: bytes) -> bytes:
    """The file with its metadata in order, which safetensors shuffles: equal models make equal files."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + data[end:]


def load_checkpoint(path: Path | str) -> CapsuleModel:
    """Build the model that a checkpoint describes and load its weights, in evaluation mode.

    ``.pt`` and ``.pth`` files hold ``{"config": ..., "state_dict": ...}`` and are read with
    ``weights_only=True``: nothing is unpickled freely.

    Raises:
        UsageError: there is no such file, or it is no checkpoint by its name.
        ArtefactError: the file is damaged, holds code (a pickle), or does not fit its configuration.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", "A checkpoint is one file.", "Name it.")
    if not path.is_file():
        raise UsageError(f"There is no checkpoint {path}.", "", "Check the path.")
    if path.stat().st_size > MAX_BYTES:
        raise ArtefactError(f"{path} is larger than {MAX_BYTES >> 30} GiB.", "It is not read.")
    if path.suffix == ".safetensors":
        config, tensors = _read_safetensors(path)
    elif path.suffix in (".pt", ".pth"):
        config, tensors = _read_torch(path)
    else:
        raise UsageError(
            f"{path} is no checkpoint by its name.",
            f"Its suffix is '{path.suffix}'.",
            "Checkpoints are .safetensors, or .pt with a configuration and a state dict.",
        )
    try:
        model = build(config_from_dict(config))
        model.load_state_dict(tensors)
    except CapsedgeError as error:
        raise ArtefactError(f"{path} does not describe a model.", str(error)) from error
    except RuntimeError as error:
        raise ArtefactError(f"{path} does not fit its own configuration.", str(error)) from error
    return model.eval()


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (no mapping)
        if CONFIG_KEY not in metadata:
            raise ArtefactError(
                f"{path} has no configuration.",
                f"Its metadata lacks '{CONFIG_KEY}'.",
                "Save it with capsedge.checkpoint.save_checkpoint.",
            )
        return dict(json.loads(metadata[CONFIG_KEY])), tensors
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise ArtefactError(
            f"{path} is not a whole safetensors file.", str(error), "Copy or train it again."
        ) from error


def _read_torch(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ArtefactError(
            f"{path} holds more than tensors.",
            "Loading it would run code from the file (a pickle), which capsedge never does.",
            "Where the model was trained, save {'config': ..., 'state_dict': model.state_dict()}, "
            "or better a safetensors checkpoint.",
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise ArtefactError(f"{path} is not a whole PyTorch file.", str(error)) from error
    if not isinstance(content, dict) or not {"config", "state_dict"} <= content.keys():
        raise ArtefactError(
            f"{path} has no configuration.",
            "A .pt checkpoint is {'config': ..., 'state_dict': ...}.",
            "Save both, or use capsedge.checkpoint.save_checkpoint.",
        )
    return dict(content["config"]), dict(content["state_dict"])
