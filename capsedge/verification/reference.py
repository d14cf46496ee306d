"""The reference: the unpatched module in eager PyTorch, FP32, and FP64 to tell rounding from error."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from capsedge.errors import ArtefactError, UsageError
from capsedge.models import CapsuleModel, build
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata import ModelMetadata

Arrays = dict[str, NDArray[Any]]


class Reference:
    """A module that computes the expected outputs of the artefact.

    Args:
        module: one of the package's models, or any module that takes the images.
        outputs: names of the artefact's outputs.

    Attributes:
        module: a copy in FP32 and evaluation mode; the given module is not changed.
    """

    def __init__(self, module: nn.Module, outputs: Sequence[str]) -> None:
        self.module = copy.deepcopy(module).eval().float()
        self.outputs = tuple(outputs)
        self._double: nn.Module | None = None

    def run(self, images: NDArray[np.float32], dtype: torch.dtype = torch.float32) -> Arrays:
        """All outputs of the artefact, by name, as this module computes them.

        Raises:
            UsageError: the module has no such outputs.
        """
        module = self.module if dtype == torch.float32 else self.double
        with torch.inference_mode():
            result = module(torch.from_numpy(images).to(dtype))
            tensors = self._named(module, result)
        missing = [name for name in self.outputs if name not in tensors]
        if missing:
            raise UsageError(
                f"The reference has no output {', '.join(missing)}.",
                f"Its outputs: {', '.join(tensors)}.",
                "Give the module that the file was exported from.",
            )
        return {name: tensors[name].numpy() for name in self.outputs}

    @property
    def double(self) -> nn.Module:
        """The same module in FP64."""
        if self._double is None:
            self._double = copy.deepcopy(self.module).double()
        return self._double

    def _named(self, module: nn.Module, result: Any) -> Mapping[str, torch.Tensor]:
        if isinstance(module, CapsuleModel):
            tensors = {
                module.score_name: result.scores,
                "poses": result.poses,
                "couplings": result.couplings,
            }
            if "reconstruction" in self.outputs and module.decoder is not None:
                tensors["reconstruction"] = module.reconstruct(result.poses)
            return tensors
        if isinstance(result, Mapping):
            return result
        if isinstance(result, torch.Tensor):
            result = (result,)
        fields = getattr(result, "_fields", None)
        if fields is not None and set(self.outputs) <= set(fields):
            return dict(zip(fields, result, strict=True))
        return dict(zip(self.outputs, result, strict=False))


def find_checkpoint(metadata: ModelMetadata | None) -> Path:
    """The checkpoint in the package that a file was exported from, according to its metadata.

    Raises:
        UsageError: the file names no checkpoint, or one that is not in the package.
    """
    stated = metadata.checkpoint_sha256 if metadata is not None else ""
    if metadata is not None and stated:
        from capsedge.zoo import zoo_checkpoint

        path = zoo_checkpoint(metadata.routing)
        if path.is_file() and sha256(path) == stated:
            return path
    why = f"It was exported from a checkpoint with the SHA-256 {stated}, which is not in the zoo."
    raise UsageError(
        "There is no reference to compare with.",
        why if stated else "The file does not state the checkpoint that it was exported from.",
        "Name it with --checkpoint.",
    )


def check_origin(metadata: ModelMetadata | None, checkpoint: Path, checksum: str) -> None:
    """Refuse a checkpoint that the artefact was not exported from.

    Raises:
        ArtefactError: the file's metadata states another checksum.
    """
    stated = metadata.checkpoint_sha256 if metadata is not None else ""
    if stated and stated != checksum:
        raise ArtefactError(
            f"The file was not exported from {checkpoint}.",
            f"Its metadata names the checkpoint {stated}, this one has {checksum}.",
            "Name the right one with --checkpoint, or export again: "
            f"capsedge export --checkpoint {checkpoint}",
        )


def load_reference(checkpoint: Path, metadata: ModelMetadata | None) -> CapsuleModel:
    """The checkpoint's model, with as many routing iterations as the file was exported with.

    Raises:
        UsageError, ArtefactError: the checkpoint cannot be read.
    """
    from capsedge.checkpoint import load_checkpoint

    model = load_checkpoint(checkpoint)
    if metadata is None or metadata.iterations == model.config.iterations:
        return model
    other = build(model.config, iterations=metadata.iterations)
    other.load_state_dict(model.state_dict())
    return other.eval()
