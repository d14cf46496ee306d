"""HDF5 files, opened by a process that can open nothing else (`capsedge.formats.hdf5_worker`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files import limits
from capsedge.runtime.files.confined import Bounds, Ended, confined
from capsedge.runtime.files.documents import Malformed, decode, parse

_WORKER = "capsedge.formats.hdf5_worker"
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
class Hdf5:
    """The content of a file.

    Attributes:
        arrays: numbers by path, without a leading slash.
        texts: the attributes of every group that a Keras file has, by path.
    """

    arrays: Mapping[str, NDArray[Any]]
    texts: Texts


@dataclass(frozen=True)
class _Answer:
    arrays: dict[str, tuple[str, list[int]]]
    texts: dict[str, dict[str, str | list[str]]]


def read_hdf5(file: IO[bytes]) -> Hdf5:
    """Read an open file.

    Args:
        file: a real file, not a buffer.

    Raises:
        BadHdf5: it is refused.
        EnvironmentProblem: h5py is not installed.
    """
    if find_spec("h5py") is None:
        raise EnvironmentProblem(
            "Keras files need h5py.", "It is not installed here.", "pip install 'capsedge[import]'"
        )
    bounds = Bounds(limits.KERAS_SECONDS, limits.KERAS_MEMORY, limits.ARRAY_BYTES)
    with confined(_WORKER, file, bounds, _ENVIRONMENT) as ended:
        return content_of(ended)


def content_of(ended: Ended) -> Hdf5:
    """The content that the process answered with.

    Raises:
        BadHdf5: it refused the file, or did not answer as it should.
    """
    if ended.code is None:
        raise BadHdf5(f"reading it takes over {limits.KERAS_SECONDS} s")
    header = ended.answer.readline(limits.JSON_BYTES)
    if not header:
        last = (ended.said.strip().splitlines() or ["it said nothing"])[-1]
        raise BadHdf5(f"the process that read it ended ({ended.code}): {last[:200]}")
    try:
        values = parse(header)
        if type(values) is dict and values.keys() == {"refused"}:
            raise BadHdf5(decode(str, values["refused"], "refused"))
        answer = decode(_Answer, values)
        arrays = {path: _array(ended, *what) for path, what in answer.arrays.items()}
    except Malformed as error:
        raise BadHdf5(f"the process that read it gave a damaged answer: {error}") from error
    if ended.answer.read(1):
        raise BadHdf5("the process that read it gave too long an answer")
    texts: Texts = {
        path: {k: v if isinstance(v, str) else tuple(v) for k, v in found.items()}
        for path, found in answer.texts.items()
    }
    return Hdf5(arrays, texts)


def _array(ended: Ended, kind: str, shape: list[int]) -> NDArray[Any]:
    if kind not in _TYPES or min(shape, default=0) < 0:
        raise BadHdf5(f"it has an array of the type {kind[:20]}")
    size = math.prod(shape) * np.dtype(kind).itemsize
    if size > limits.ARRAY_BYTES:
        raise BadHdf5(f"it has an array of {size:,} bytes")
    data = ended.answer.read(size)
    if len(data) != size:
        last = (ended.said.strip().splitlines() or ["it is not whole"])[-1]
        raise BadHdf5(f"an array cannot be read: {last[:200]}")
    return np.frombuffer(data, kind).reshape(shape)
