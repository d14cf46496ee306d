"""Run the ONNX file that a folder of C was made from, as the reference that the C is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from capsedge.runtime.load import load, load_bytes
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.session import Session

Arrays = dict[str, NDArray[Any]]

_DRAWS = 3  # number of random roundings
_PORTABLE = RuntimeOptions(ops="portable")


class FileReference:
    """The file in ONNX Runtime, by its function bodies, which fuse nothing.

    The interface is that of `Reference`. The file cannot run in FP64: what rounding does is measured by
    changing every value in its last place.

    Args:
        path: the ONNX file.
        outputs: names of the outputs to compare.
    """

    unchecked: tuple[str, ...] = ()

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        self.path, self.outputs = path, tuple(outputs)
        self._session = load(path, _PORTABLE)
        self._moved: list[Session] = []

    def check_repeatable(self, *inputs: NDArray[Any]) -> None:
        """A file without random numbers, which `verify` refuses, is repeatable."""

    def run(self, *inputs: NDArray[Any], **_: object) -> Arrays:
        """All compared outputs, by name, for the inputs ``[n, ...]`` in the file's order; always in FP32."""
        return self._run(self._session, inputs)

    def _run(self, session: Session, inputs: Sequence[NDArray[Any]]) -> Arrays:
        names = [port.name for port in session.inputs]
        found = session.run(dict(zip(names, inputs, strict=True)))
        return {name: found[name] for name in self.outputs}

    def conditioning(self, *inputs: NDArray[Any]) -> Arrays:
        """How far one rounding of all inputs and weights moves each pose, the largest of a few draws."""
        return self._moves(self.run(*inputs), inputs, _by_pose)

    def noise(self, expected: Arrays, *inputs: NDArray[Any]) -> Arrays:
        """How far it moves any value of an image; broadcasts over the output's elements."""
        return self._moves(expected, inputs, _by_image)

    def _moves(
        self,
        expected: Arrays,
        inputs: Sequence[NDArray[Any]],
        reduced: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> Arrays:
        moved = {name: np.zeros(()) for name in self.outputs}
        for seed, session in enumerate(self._changed()):
            draw = np.random.default_rng(seed)
            found = self._run(session, [_rounded(x, draw) for x in inputs])
            for name in self.outputs:
                off = np.abs(found[name].astype(np.float64) - expected[name])
                moved[name] = np.maximum(moved[name], reduced(np.nan_to_num(off, posinf=0.0)))
        return moved

    def _changed(self) -> Iterator[Session]:
        """The file with its weights changed by one rounding, up or down; made once."""
        while len(self._moved) < _DRAWS:
            draw = np.random.default_rng(len(self._moved))
            model = onnx.load_model_from_string(read_harmless(self.path)[0])
            for tensor in model.graph.initializer:
                if tensor.data_type == onnx.TensorProto.FLOAT:
                    weights = _rounded(numpy_helper.to_array(tensor), draw)
                    tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
            changed = model.SerializeToString()
            self._moved.append(load_bytes(changed, self.path, ops="portable"))
        yield from self._moved


def _rounded(values: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """FP32 values, each moved to one of its neighbours; zeros, and other types, stay."""
    if values.dtype != np.float32:
        return values
    up = draw.integers(0, 2, values.shape, np.int8) == 1
    neighbours = np.nextafter(values, np.where(up, np.float32(np.inf), np.float32(-np.inf)))
    return np.where(values == 0, values, neighbours).astype(np.float32)


def _by_pose(off: NDArray[Any]) -> NDArray[Any]:
    return off.max(axis=-1, keepdims=True, initial=0.0) if off.ndim > 1 else off


def _by_image(off: NDArray[Any]) -> NDArray[Any]:
    largest = off.reshape(len(off), -1).max(axis=1)
    return np.asarray(largest.reshape(-1, *[1] * (off.ndim - 1)))
