"""What callers pass as a file: a path, or for models the bytes too; anything else is refused in words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from capsedge.errors import UsageError
from capsedge.runtime.files.writing import temporary_folder, write_bytes

GivenModel: TypeAlias = "str | os.PathLike[str] | bytes"

MODEL, MODEL_OR_BYTES = "the path of a model", "the path of a model or its bytes"
WEIGHTS, DATA = "the path of a file of weights", "the path of a data set"
OUTPUT, FILE, SESSION = "the path of a file to write", "the path of a file", "a session"

_MODULE, _STATE, _ARRAY, _ONNX = "a module", "a state dict", "an array", "an ONNX model in memory"
_BUILD = "Build the network, load the weights with load_state_dict, and "
_FIXES = {
    (MODEL, _MODULE): "Export it first: capsedge.export(module, 'model.onnx', example=...).",
    (MODEL, _STATE): _BUILD + "export it: capsedge.export(module, 'model.onnx', example=...).",
    (MODEL, _ARRAY): "Arrays are for a loaded model: capsedge.load('model.onnx').run(array).",
    (MODEL, _ONNX): "Save it with onnx.save(model, 'model.onnx') and pass that path.",
    (MODEL_OR_BYTES, _ONNX): "Pass model.SerializeToString().",
    (WEIGHTS, _MODULE): "It is loaded already: pass it to capsedge.export.",
    (WEIGHTS, _STATE): _BUILD + "pass it to capsedge.export; or save the weights with torch.save.",
    (DATA, _ARRAY): "Save it with numpy.savez('data.npz', images=array) and pass that path.",
}


@contextmanager
def as_file(model: GivenModel) -> Iterator[Path]:
    """The model's file; for bytes one named ``model.onnx``, in a folder that is gone afterwards.

    Raises:
        UsageError: it is neither a path nor bytes.
        EnvironmentProblem: the disk is full.
    """
    if not isinstance(model, bytes):
        yield as_path(model, MODEL_OR_BYTES)
        return
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        write_bytes(path, model)
        yield path


def as_path(given: object, wanted: str) -> Path:
    """A path, from what a caller passed.

    Args:
        wanted: what should have been passed, one of the constants above.

    Raises:
        UsageError: it is not a path.
    """
    if isinstance(given, (str, os.PathLike)) and isinstance(os.fspath(given), str):
        return Path(given)
    raise refusal(given, wanted)


def refusal(given: object, wanted: str) -> UsageError:
    """The error for anything but what was wanted, with the way from one to the other if there is one."""
    found = in_words(given)
    usual = "Pass a string or a pathlib.Path."
    if wanted == SESSION:
        usual = "Load one: capsedge.load('model.onnx')."
    of_models = _FIXES.get((MODEL, found), usual) if wanted == MODEL_OR_BYTES else usual
    return UsageError(
        f"{found[0].upper()}{found[1:]} is not {wanted}.",
        "",
        _FIXES.get((wanted, found), of_models),
    )


def in_words(value: object) -> str:
    """What a value is, in words; frameworks' types are told by what they have, so none is imported."""
    if value is None or isinstance(value, (str, os.PathLike)):
        return "None" if value is None else "a path"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Mapping):
        weights = value and all(hasattr(v, "shape") for v in value.values())
        return _STATE if weights else f"a value of type {type(value).__name__}"
    for attribute, words in (
        ("state_dict", _MODULE),
        ("SerializeToString", _ONNX),
        ("__array__", _ARRAY),
    ):
        if hasattr(value, attribute):
            return words
    return f"a value of type {type(value).__name__}"
