"""Read a file of weights, whatever tool wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from capsedge.datasets.array_files import Arrays
from capsedge.errors import ArtefactError, UsageError
from capsedge.importers import keras_file
from capsedge.importers.family import Floats, Weights
from capsedge.importers.keras_file import BadHdf5
from capsedge.models.user.weights import (
    WRAPPERS,
    StateDict,
    candidates_in,
    contents_of_torch,
    in_parts,
    no_weights,
)
from capsedge.models.weight_names import (
    common_prefixes,
    unnamed_in,
    unnamed_only_error,
    without_wrappers,
)
from capsedge.runtime.files.archives import Archive, BadArchive
from capsedge.runtime.files.documents import MalformedJson
from capsedge.runtime.files.formats import identify_path
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.runtime.files.safetensors import TYPES, read_header
from capsedge.runtime.onnx_file.stored_values import DIVERGED, first_few_lines, not_finite
from capsedge.spec import limits

# --- Formats, and limits on what they hold ---

Read = Callable[[Path, BufferedReader], Weights]
_READINGS = 20  # other ways to read a file that are tried
# Formats of weights: a file in one of these merely has the wrong suffix.
_NAMED_OTHERWISE = (
    "pytorch",
    "pytorch-legacy",
    "safetensors",
    "checkpoint",
    "hdf5",
    "keras",
    "npz",
)


def read_weights(path: Path | str) -> Weights:
    """Read a file of weights in the format given by its suffix. Nothing in the file is run.

    Args:
        path: ``.pt``, ``.pth``, ``.pkl``, ``.chkpt``, ``.ckpt``, ``.tar``, ``.bin`` of PyTorch;
            ``.safetensors``; ``.npz``; ``.h5``, ``.hd5``, ``.hdf5`` and ``.keras`` of Keras.
    """
    path = Path(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise _not_weights(path)
    with open_regular_file(path, "Check the path of the weights.") as file:
        if file_size(file) > limits.ARRAY_BYTES:
            raise ArtefactError(
                f"{path} is larger than {limits.ARRAY_BYTES // limits.GIB} GiB.",
                "Larger files are not read.",
            )
        try:
            weights = read(path, file)
        except (BadArchive, BadHdf5, MalformedJson) as error:
            raise ArtefactError(
                f"{path} is refused.",
                f"{str(error)[:1].upper()}{str(error)[1:]}.",
                "Save it again.",
            ) from error
    weights = replace(weights, tensors=without_counters(weights.tensors))
    if not weights.tensors:
        raise ArtefactError(f"{path} has no weights.", "It contains no tensors.", "Save it again.")
    wrong = [each for name, t in weights.tensors.items() if (each := not_finite(name, t))]
    if wrong:
        raise ArtefactError(
            f"The weights of {path} are not finite.",
            f"NaN or infinite: {len(wrong)} of {len(weights.tensors)} tensors.",
            DIVERGED,
            details=first_few_lines(wrong),
        )
    return replace(weights, readings=tuple(islice(_readings(weights), _READINGS)))


def _readings(weights: Weights) -> Iterator[Weights]:
    """Other ways to read a file: another dictionary, its parts joined, without a prefix of most names."""
    for each in (weights, *weights.readings):
        if each is not weights:
            each = replace(each, tensors=without_counters(each.tensors))
            yield each
        plain = {without_wrappers(name): t for name, t in each.tensors.items()}
        if len(plain) < len(each.tensors):
            continue  # two names would become one
        if plain.keys() != each.tensors.keys():
            yield replace(each, tensors=plain)
        for prefix in common_prefixes(plain):
            inner = {k.removeprefix(prefix): t for k, t in plain.items() if k.startswith(prefix)}
            left = [k for k in plain if not k.startswith(prefix)]
            notes = [f"'{prefix}' is removed from all names"]
            notes += (
                [f"not part of the network, and left out: {', '.join(left[:3])}"] if left else []
            )
            yield replace(each, tensors=inner, notes=(*each.notes, *notes))


def read_together(paths: Sequence[Path | str]) -> Weights:
    """Read the networks of an ensemble; tensors of several are named ``0/...``, ``1/...`` and so on."""
    if not paths:
        raise UsageError("No file was given.", "", "Pass the weights file.")
    members = [read_weights(path) for path in paths]
    if len(members) == 1:
        return members[0]
    return Weights(
        {f"{k}/{name}": t for k, w in enumerate(members) for name, t in w.tensors.items()},
        ", ".join(dict.fromkeys(w.format for w in members)),
        None,
        tuple(sorted({name for w in members for name in w.lambdas})),
        tuple(dict.fromkeys(note for w in members for note in w.notes)),
    )


def _torch(path: Path, file: BufferedReader) -> Weights:
    weights: Weights = import_module("capsedge.importers.weights_file").read(path, file)
    return weights


def _safetensors(path: Path, file: BufferedReader) -> Weights:
    header = read_header(file)
    start = file.tell()
    tensors: dict[str, Floats] = {}
    for name, tensor in header.tensors.items():
        kind = TYPES[tensor.dtype][0]
        if not kind.startswith(("float16", "float32", "float64", "int", "uint", "bfloat16")):
            raise MalformedJson(f"'{name}' has elements of the type {kind}")
        file.seek(start + tensor.data_offsets[0])
        data = file.read(tensor.data_offsets[1] - tensor.data_offsets[0])
        if kind == "bfloat16":  # the upper half of an FP32
            flat = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            flat = np.frombuffer(data, np.dtype(kind).newbyteorder("<"))
        tensors[name] = flat.reshape(tensor.shape).astype(np.float32)
    return Weights(tensors, "safetensors")


def _npz(path: Path, file: BufferedReader) -> Weights:
    archive = Archive(file)
    names = [n.removesuffix(".npy") for n in archive.names if n.endswith(".npy")]
    if len(names) > limits.TENSORS:
        raise BadArchive(f"it has {len(names):,} arrays, the limit is {limits.TENSORS:,}")
    arrays = Arrays(path, archive, file_size(file))
    return Weights({n: np.asarray(arrays.read(n), np.float32) for n in names}, "NumPy archive")


_READERS: dict[str, Read] = {
    **dict.fromkeys((".pt", ".pth", ".pkl", ".chkpt", ".ckpt", ".tar", ".bin"), _torch),
    ".safetensors": _safetensors,
    ".npz": _npz,
    **dict.fromkeys((".h5", ".hd5", ".hdf5"), lambda _, file: keras_file.read_h5(file)),
    ".keras": lambda _, file: keras_file.read_keras(file),
}


def _not_weights(path: Path) -> UsageError:
    """The error for a file with an unknown suffix; it names the format if the first bytes reveal it."""
    kind = identify_path(path)
    if kind is None or kind.key in _NAMED_OTHERWISE:
        return UsageError(
            f"{path} does not have a weights file's suffix.",
            f"Its suffix is '{path.suffix}'; known: {', '.join(_READERS)}.",
            "Rename it to match its format.",
        )
    fix, command = kind.advice(path)
    known = f"Weights files are named *{', *'.join(_READERS)}."
    return UsageError(f"{path} is {kind.name}, not weights.", known, fix, command=command)


# --- Files of ``torch.save``, whatever wraps their state dict; needs torch ---


def read(path: Path, file: BufferedReader) -> Weights:
    """The tensors of the most likely state dict: one with a common name, or else the largest."""
    value = contents_of_torch(path, file)
    candidates = candidates_in(value)
    if not candidates:
        listed = next(unnamed_in(value), None)
        raise no_weights(path) if listed is None else unnamed_only_error(path, listed)
    ranked = sorted(candidates, key=_rank)
    best, *others = (*ranked, *in_parts(candidates))
    notes = [
        f"{_in_words(c)} holds tensors of the same names" for c in candidates if _alike(c, best)
    ]
    readings = [_weights(c) for c in others[:_READINGS]]
    weights = _weights(best)
    return replace(
        weights,
        notes=(*weights.notes, *notes),
        readings=tuple(r for r in readings if len(r.tensors) > 1),
    )


def _weights(candidate: StateDict) -> Weights:
    """The tensors of a dictionary; without wrappers, unless two names would become one."""
    tensors = {
        name: np.ascontiguousarray(tensor.float().numpy())
        for name, tensor in candidate.read().items()
    }
    plain = {without_wrappers(name): tensor for name, tensor in tensors.items()}
    where = _in_words(candidate) + ", ".join(candidate.parts)
    return Weights(
        plain if len(plain) == len(tensors) else tensors,
        "PyTorch",
        notes=(f"the weights are {where} of the file",) if where else (),
    )


def _rank(candidate: StateDict) -> tuple[int, int]:
    last = candidate.location[-1] if candidate.location else ""
    usual = WRAPPERS.index(last) if last in WRAPPERS else len(WRAPPERS)
    return usual, -len(candidate.shapes)


def _alike(candidate: StateDict, best: StateDict) -> bool:
    return candidate is not best and candidate.shapes == best.shapes


def _in_words(candidate: StateDict) -> str:
    return "".join(f"['{key}']" for key in candidate.location)


T = TypeVar("T")
# Batch counters of normalizations and leftovers of the profiler thop are not part of the function.
_COUNTERS = re.compile(r"(^|\.)(num_batches_tracked|total_ops|total_params)$")


def without_counters(tensors: Mapping[str, T]) -> dict[str, T]:
    """The tensors of a weights file without counters such as ``num_batches_tracked``."""
    return {name: tensor for name, tensor in tensors.items() if not _COUNTERS.search(name)}
