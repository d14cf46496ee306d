"""State dicts of PyTorch, whatever they are wrapped in. Needs torch."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.errors import ArtefactError
from capsedge.runtime.files.archives import BadArchive
from capsedge.runtime.files.pickles import BadPickle
from capsedge.torch_file import StoredTensor, TorchFile, unreadable
from capsedge.formats.stored import Floats, Weights

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "best_states", "module")


def read(path: Path, file: BufferedReader) -> Weights:
    """The tensors of a ``torch.save`` file.

    Raises:
        ArtefactError: it is damaged, holds code, or has no tensors by name.
    """
    try:
        content = TorchFile(file)
        stored, notes = _unwrapped(content.value)
        tensors: dict[str, Floats] = {
            name: np.ascontiguousarray(content.read(tensor).float().numpy())
            for name, tensor in stored.items()
        }
    except (BadArchive, BadPickle) as error:
        raise unreadable(path, error) from error
    if not tensors:
        raise ArtefactError(
            f"{path} has no state dict.",
            "It holds no tensors by name.",
            "Save model.state_dict().",
        )
    return Weights(tensors, "PyTorch", notes=tuple(notes))


def _unwrapped(value: Any) -> tuple[dict[str, StoredTensor], list[str]]:
    notes = []
    while type(value) is dict and (
        inner := next((w for w in _WRAPPERS if type(value.get(w)) is dict), "")
    ):
        notes.append(f"the state dict is the entry '{inner}'")
        value = value[inner]
    if type(value) is not dict:
        return {}, notes
    found = {k: v for k, v in value.items() if type(k) is str and type(v) is StoredTensor}
    while found and all(k.startswith("module.") for k in found):
        notes.append("the prefix 'module.' of DataParallel is left out")
        found = {k.removeprefix("module."): v for k, v in found.items()}
    return found, notes
