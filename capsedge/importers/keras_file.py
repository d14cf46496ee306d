"""Read the weights of Keras files: ``.h5`` of Keras 1, 2 and 3, and ``.keras``.

A weight is named ``layer/weight``, as the file names both (``capsule/W``, ``model_1/conv1/kernel``). Keras 3
counts weights, and before 3.6 layers too: weights of its own layers get their names back
(``conv2d_1/kernel``), others keep their number (``capsule_layer/0``). Nothing of a configuration is run; its
Lambda layers, which are code, are only listed.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from io import BufferedReader
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem
from capsedge.importers.family import Floats, Weights
from capsedge.runtime.files.archives import Archive, BadArchive
from capsedge.runtime.files.documents import MalformedJson, decode, parse
from capsedge.runtime.files.sandbox import SandboxLimits, SandboxResult, run_in_sandbox
from capsedge.spec import limits

# --- HDF5, opened by a sandboxed process (`capsedge.importers.hdf5_worker`) ---

_WORKER = "capsedge.importers.hdf5_worker"
_ENVIRONMENT = {
    "HDF5_PLUGIN_PATH": "::",
    "HDF5_PLUGIN_PRELOAD": "::",  # no plugins at all
    "OPENBLAS_NUM_THREADS": "1",  # its buffers count as address space
}
_TYPES = {f"<{letter}{width}" for letter in "fiu" for width in (2, 4, 8)} | {"|i1", "|u1"}
Texts = dict[str, dict[str, str | tuple[str, ...]]]


class BadHdf5(ValueError):
    """The file is damaged, exceeds the limits, or holds more than groups, numbers and text."""


@dataclass(frozen=True)
class Hdf5Content:
    """The content of a file.

    Attributes:
        arrays: numbers by path, without a leading slash.
        texts: the attributes of every group that a Keras file has, by path.
    """

    arrays: Mapping[str, NDArray[Any]]
    texts: Texts


@dataclass(frozen=True)
class _WorkerOutput:
    arrays: dict[str, tuple[str, list[int]]]
    texts: dict[str, dict[str, str | list[str]]]


def read_hdf5(file: IO[bytes]) -> Hdf5Content:
    """Read the HDF5 content of a Keras file, which must be open and a real file."""
    if find_spec("h5py") is None:
        raise EnvironmentProblem(
            "Keras files need h5py.", "It is not installed.", "pip install 'capsedge[import]'"
        )
    bounds = SandboxLimits(limits.KERAS_SECONDS, limits.KERAS_MEMORY, limits.ARRAY_BYTES)
    with run_in_sandbox(_WORKER, file, bounds, _ENVIRONMENT) as ended:
        return content_of(ended)


def content_of(ended: SandboxResult) -> Hdf5Content:
    """The content that the process answered with."""
    if ended.exit_code is None:
        raise BadHdf5(f"reading it takes over {limits.KERAS_SECONDS} s")
    header = ended.output.readline(limits.JSON_BYTES)
    if not header:
        last = (ended.log.strip().splitlines() or ["it said nothing"])[-1]
        raise BadHdf5(f"the process that read it ended ({ended.exit_code}): {last[:200]}")
    try:
        values = parse(header)
        if type(values) is dict and values.keys() == {"refused"}:
            raise BadHdf5(decode(str, values["refused"], "refused"))
        answer = decode(_WorkerOutput, values)
        arrays = {path: _array(ended, *what) for path, what in answer.arrays.items()}
    except MalformedJson as error:
        raise BadHdf5(f"the process that read it returned a damaged result: {error}") from error
    if ended.output.read(1):
        raise BadHdf5("the process that read it returned too long a result")
    texts: Texts = {
        path: {k: v if isinstance(v, str) else tuple(v) for k, v in attributes.items()}
        for path, attributes in answer.texts.items()
    }
    return Hdf5Content(arrays, texts)


def _array(ended: SandboxResult, kind: str, shape: list[int]) -> NDArray[Any]:
    if kind not in _TYPES or min(shape, default=0) < 0:
        raise BadHdf5(f"it has an array of the type {kind[:20]}")
    size = math.prod(shape) * np.dtype(kind).itemsize
    if size > limits.ARRAY_BYTES:
        raise BadHdf5(f"it has an array of {size:,} bytes")
    data = ended.output.read(size)
    if len(data) != size:
        last = (ended.log.strip().splitlines() or ["it is not whole"])[-1]
        raise BadHdf5(f"an array cannot be read: {last[:200]}")
    return np.frombuffer(data, kind).reshape(shape)


# --- Whole models and weights ---

_COUNTED = (
    "layers",
    "_layer_checkpoint_dependencies",
)  # words of Keras 3 between a model and its layers
_OPTIMIZER = ("optimizer", "optimizer_weights")
# In the order in which Keras 3 stores them; a bias may be missing.
_WEIGHTS = {
    "conv2d": ("kernel", "bias"),
    "dense": ("kernel", "bias"),
    "separable_conv2d": ("depthwise_kernel", "pointwise_kernel", "bias"),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
}
_CHUNK = 1 << 20


def read_h5(file: BufferedReader) -> Weights:
    """A ``.h5`` file. Raises BadHdf5 if it is refused, or is not a Keras file."""
    content = read_hdf5(file)
    config = _json(content.texts.get("", {}).get("model_config"))
    return keras_file_weights(content, config, "Keras HDF5")


def read_keras(file: BufferedReader) -> Weights:
    """A ``.keras`` archive."""
    archive = Archive(file)
    config = _json(_member(archive, "config.json", limits.JSON_BYTES).decode(errors="replace"))
    with tempfile.TemporaryFile() as unpacked, archive.member("model.weights.h5") as content:
        left = limits.KERAS_BYTES
        while part := content.read(_CHUNK):
            left -= len(part)
            if left < 0:
                raise BadArchive(f"its weights have over {limits.KERAS_BYTES >> 20} MiB")
            unpacked.write(part)
        unpacked.flush()
        return keras_file_weights(read_hdf5(unpacked), config, "Keras archive")


def _member(archive: Archive, name: str, most: int) -> bytes:
    with archive.member(name) as content:
        data = content.read(most + 1)
    if len(data) > most:
        raise BadArchive(f"'{name}' has over {most:,} bytes")
    return data


def _json(text: object) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return decode(dict[str, Any], parse(str(text).encode(errors="replace"), nan="null"))
    except MalformedJson as error:
        raise BadHdf5(f"its configuration cannot be read: {error}") from error


def keras_file_weights(content: Hdf5Content, config: dict[str, Any] | None, kind: str) -> Weights:
    """The weights by name. Raises BadHdf5 if there are none, or a name occurs twice."""
    tensors: dict[str, Floats] = {}
    for name, array in _named(content):
        if name in tensors:
            raise BadHdf5(f"it names '{name}' twice")
        tensors[name] = np.ascontiguousarray(array, np.float32)
    if not tensors:
        raise BadHdf5("it holds no weights as Keras stores them")
    version = content.texts.get("", {}).get("keras_version")
    words = f"{kind}, {version}" if isinstance(version, str) else kind
    return Weights(tensors, words, config, tuple(lambdas(config)) if config else ())


def _named(content: Hdf5Content) -> Iterator[tuple[str, NDArray[Any]]]:
    """Weights by name; from the names that Keras 1 and 2 list, else from the paths of Keras 3."""
    base = "model_weights/" if "layer_names" in content.texts.get("model_weights", {}) else ""
    layers = content.texts.get(base.rstrip("/"), {}).get("layer_names")
    if layers is not None:
        for layer in (layers,) if isinstance(layers, str) else layers:
            names = content.texts.get(f"{base}{layer}", {}).get("weight_names", ())
            for name in (names,) if isinstance(names, str) else names:
                path = f"{base}{layer}/{name}"
                if path not in content.arrays:
                    raise BadHdf5(f"it lists '{path}' but does not contain it")
                plain = name.removesuffix(":0")
                yield (
                    plain if plain.startswith(f"{layer}/") else f"{layer}/{plain}",
                    content.arrays[path],
                )
        return
    for path, array in content.arrays.items():
        parts = path.split("/")
        if len(parts) >= 2 and parts[-2] == "vars" and parts[0] not in _OPTIMIZER:
            yield _name_of_keras_3(content, parts), array


def _name_of_keras_3(content: Hdf5Content, parts: list[str]) -> str:
    """The name of a weight at a path such as ``layers/conv2d_1/vars/0``."""
    places = ["/".join(parts[: k + 1]) for k in range(len(parts) - 2)]
    layers = [
        str(content.texts.get(f"{place}/vars", {}).get("name", part))
        for place, part in zip(places, parts, strict=False)
        if part not in _COUNTED
    ]
    kinds = (re.sub(r"_\d+$", "", word) for word in (*parts[-3:-2], *layers[-1:]))
    known = next((_WEIGHTS[kind] for kind in kinds if kind in _WEIGHTS), ())
    group = "/".join(parts[:-1])
    stored = sum(f"{group}/{k}" in content.arrays for k in range(len(known) + 1))
    bias = bool(known) and known[-1] == "bias"
    whole = stored in ((len(known), len(known) - 1) if bias else (len(known),))
    index = int(parts[-1]) if re.fullmatch("[0-9]{1,4}", parts[-1]) else len(known)
    weight = known[index] if whole and index < len(known) else parts[-1]
    return "/".join((*layers, weight))


def lambdas(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of the Lambda layers anywhere in a configuration, sorted."""
    names, rest = set(), [config]
    while rest:
        value: Any = rest.pop()
        if isinstance(value, Mapping):
            if value.get("class_name") in ("Lambda", "TFOpLambda"):
                inner = value.get("config")
                name = inner.get("name") if isinstance(inner, Mapping) else value.get("name")
                names.add(str(name))
            rest += value.values()
        elif isinstance(value, (list, tuple)):
            rest += value
    yield from sorted(names)
