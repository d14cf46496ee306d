"""Files of ``torch.save``, whatever their state dict is wrapped in. Needs torch."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path

import numpy as np

from capsedge.errors import ArtefactError
from capsedge.formats.stored import Floats, Weights
from capsedge.weights import WRAPPERS, Candidate, candidates_of_torch, without_wrappers


def read(path: Path, file: BufferedReader) -> Weights:
    """The tensors of the most likely state dict: one with a usual name, else the one with most tensors.

    Raises:
        ArtefactError: the file is damaged, holds code, or has no tensors by name.
    """
    found = candidates_of_torch(path, file)
    if not found:
        raise ArtefactError(
            f"{path} has no weights.",
            "There is no dictionary of tensors in it.",
            "Save torch.save(model.state_dict(), path).",
        )
    best = min(found, key=_rank)
    notes = [f"the weights are {_said(best)} of the file"] if best.place else []
    notes += [f"{_said(c)} holds tensors of the same names" for c in found if _alike(c, best)]
    tensors: dict[str, Floats] = {}
    for name, tensor in best.read().items():
        plain = without_wrappers(name)
        if plain in tensors:
            raise ArtefactError(f"{path} names '{plain}' twice.", "", "Save it again.")
        tensors[plain] = np.ascontiguousarray(tensor.float().numpy())
    return Weights(tensors, "PyTorch", notes=tuple(notes))


def _rank(candidate: Candidate) -> tuple[int, int]:
    last = candidate.place[-1] if candidate.place else ""
    usual = WRAPPERS.index(last) if last in WRAPPERS else len(WRAPPERS)
    return usual, -len(candidate.shapes)


def _alike(candidate: Candidate, best: Candidate) -> bool:
    return candidate is not best and candidate.shapes == best.shapes


def _said(candidate: Candidate) -> str:
    return "".join(f"['{key}']" for key in candidate.place)
