"""Run a loaded model on prepared arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.backends.backend import Backend, BatchRange, DeviceBackend, closed_error
from capsedge.runtime.session.tensors import (
    LARGEST,
    AnyArray,
    as_array,
    check_rows,
    check_sizes_agree,
    checked_input,
    fixed_bytes,
    stack_images,
)
from capsedge.spec import limits

if TYPE_CHECKING:
    from capsedge.runtime.backends.device_array import DeviceArray

_CHUNK = 64  # images per run of a model with a free batch; bounds memory


class Runner:
    """Runs a backend on prepared arrays: checks and pads them before, and trims the outputs after.

    Args:
        path: the file, for errors.
        backend: the loaded model.

    Raises:
        ArtefactError: the file fixes sizes that are too large.
    """

    def __init__(self, path: Path, backend: Backend) -> None:
        self._path, self._backend = path, backend
        self._inputs, self._outputs = backend.inputs, backend.outputs
        self._input_names = [port.name for port in backend.inputs]
        self._all_outputs = [port.name for port in backend.outputs]
        self._on_device = backend if isinstance(backend, DeviceBackend) else None
        self._described = backend.metadata is not None
        # Nothing is known about models from other tools: some use the most negative number as a mask.
        self._bound = LARGEST if self._described else math.inf
        self._check_sizes()

    def check_open(self) -> None:
        """Raise a UsageError if the model is closed."""
        if self._backend.closed:
            raise closed_error(self._path)

    def _check_sizes(self) -> None:
        """Refuse fixed sizes that are too large, before anything is allocated for a run."""
        for kind, ports in (("inputs", self._inputs), ("outputs", self._outputs)):
            if sum(map(fixed_bytes, ports)) > limits.RUN_BYTES:
                raise ArtefactError(
                    f"{self._path} fixes sizes that are too large.",
                    f"One run would take over {limits.RUN_BYTES // limits.MIB} MiB of {kind}.",
                    "Export it with a free batch or a smaller one.",
                )

    def run(self, arrays: AnyArray | Mapping[str, AnyArray]) -> dict[str, NDArray[Any]]:
        """Every output by name, as `Session.run`."""
        given = self._named(arrays)
        feeds: dict[str, NDArray[Any]] = {}
        for port in self._inputs:
            value = given[port.name]
            array = as_array(value, f"Input '{port.name}'")
            feeds[port.name] = checked_input(port, value if array is None else array, self._bound)
        if len(self._inputs) > 1:
            check_sizes_agree(self._inputs, feeds)
        if self._described and len(feeds[self._inputs[0].name]) == 0:
            # Not every operator of ONNX Runtime accepts empty tensors (MatMul fails, reductions keep
            # their axes), so shapes and types are taken from one black image.
            none = feeds[self._inputs[0].name].astype(np.float32)
            return self.run_batch(none, self._all_outputs)
        return self._backend.run(feeds, self._all_outputs)

    def run_batches(
        self,
        images: AnyArray | Iterable[AnyArray],
        outputs: Sequence[str] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[tuple[NDArray[Any], dict[str, NDArray[Any]]]]:
        """The images and the outputs of one run after another, as `Session.run_batches`."""
        names = self._output_names(outputs)
        if len(self._inputs) != 1:
            raise UsageError(
                f"{self._path} has {len(self._inputs)} inputs.",
                "`run_batches` splits the images of models with one input.",
                "Use `Session.run` with arrays by name.",
            )
        port = self._inputs[0]
        for batch in stack_images(_arrays(images), run_size(self._backend.batches, batch_size)):
            floats = batch.dtype.kind == "f" and port.dtype.startswith("float")
            fed = batch.astype(port.dtype, copy=False) if floats else batch
            yield (
                batch,
                self.run_batch(checked_input(port, fed, self._bound, any_batch=True), names),
            )

    def _output_names(self, chosen: Iterable[str] | None) -> list[str]:
        """The chosen outputs; all if none are chosen.

        Raises:
            UsageError: there is no such output.
        """
        names = self._all_outputs
        chosen = list(chosen or names)
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise UsageError(
                f"The model has no output '{unknown[0]}'.", f"Its outputs: {', '.join(names)}.", ""
            )
        return chosen

    def run_on_device(
        self,
        arrays: Mapping[str, object],
        *,
        out: Mapping[str, object] | None = None,
        stream: object = None,
    ) -> dict[str, DeviceArray]:
        """Every output on the GPU, as `Session.run_on_device`."""
        self.check_open()
        if self._on_device is None:
            raise UsageError(
                f"{self._path} does not run on arrays on a GPU.",
                "Models that run on a GPU do: TensorRT engines, and ONNX files with device='cuda'.",
                "Use `Session.run`, or load the file on a GPU: capsedge.load(..., device='cuda').",
            )
        from capsedge.runtime.backends.device_array import stream_address

        self._check_names(arrays)
        self._output_names(out)
        address = None if stream is None else stream_address(stream)
        return self._on_device.run_on_device(arrays, out, address)

    def _named(self, arrays: AnyArray | Mapping[str, AnyArray]) -> dict[str, object]:
        wanted = self._input_names
        if not isinstance(arrays, Mapping):
            if len(wanted) != 1:
                raise UsageError(
                    f"This model has {len(wanted)} inputs and one array was given.",
                    f"Its inputs: {', '.join(wanted) or 'none'}.",
                    "Pass a dictionary of arrays by input name.",
                )
            return {wanted[0]: arrays}
        self._check_names(arrays)
        return dict(arrays)

    def _check_names(self, arrays: Mapping[str, object]) -> None:
        wanted = self._input_names
        missing = [name for name in wanted if name not in arrays]
        unknown = [str(name) for name in arrays if name not in wanted]
        if missing or unknown:
            raise UsageError(
                "The arrays do not match the model's inputs.",
                f"Missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}.",
                f"Its inputs: {', '.join(wanted)}.",
            )

    def run_batch(self, batch: NDArray[Any], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Run ``[n, C, H, W]``; a batch that is empty or shorter than the fixed one is padded with zeros.

        Raises:
            ArtefactError: an output has more or fewer rows than there are images.
        """
        count, size = len(batch), self._backend.batches.smallest
        if count < size:
            rest = np.zeros((size - count, *batch.shape[1:]), batch.dtype)
            batch = np.concatenate([batch, rest])
        port = self._inputs[0]
        found = self._backend.run({port.name: batch.astype(port.dtype, copy=False)}, outputs)
        check_rows(self._path, found, len(batch))
        if count == len(batch):
            return found
        return {name: value[:count] for name, value in found.items()}


def run_size(batches: BatchRange, batch_size: int | None = None) -> int:
    """Images per run: the fixed batch, otherwise ``batch_size`` or 64, within the backend's limits.

    Raises:
        UsageError: ``batch_size`` is below 1.
    """
    if batch_size is not None and not (
        isinstance(batch_size, (int, np.integer)) and batch_size >= 1
    ):
        raise UsageError(
            f"batch_size is {batch_size!r}.",
            "It must be a whole number of at least 1.",
            "Leave it out for 64.",
        )
    most = _CHUNK if batch_size is None else batch_size
    return batches.fixed or min(most, batches.largest or most)


def _arrays(images: AnyArray | Iterable[AnyArray]) -> NDArray[Any] | Iterator[NDArray[Any]]:
    """A batch, or single images one by one, as numpy's."""
    batch = as_array(images)
    if batch is not None:
        return batch
    assert isinstance(images, Iterable)
    return (np.asarray(image if (a := as_array(image)) is None else a) for image in images)
