"""Running a loaded model on arrays as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime import passport
from capsedge.runtime.arrays import AnyArray, as_array
from capsedge.runtime.backends.onnxruntime_backend import Port
from capsedge.runtime.files import limits
from capsedge.runtime.inputs import LARGEST, checked, fixed_bytes, shape_text, stacked
from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.summary import Row, Summarized, Summary, short

if TYPE_CHECKING:
    from typing_extensions import Self

    from capsedge.runtime.backends.backend import Backend
    from capsedge.runtime.backends.device_array import DeviceArray

_SHOWN = 6  # ports in a summary
_CHUNK = 64  # images per run of a model with a free batch; bounds memory


class Runner(Summarized):
    """The part of a `Session` that runs its model on arrays as they are."""

    def __init__(
        self,
        path: Path,
        backend: Backend,
        metadata: ModelMetadata | None,
        ops: str,
        engine_passport: passport.Passport | None = None,
        gpu: int | None = None,
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.inputs: tuple[Port, ...] = backend.inputs
        self.outputs: tuple[Port, ...] = backend.outputs
        self._all_outputs = [port.name for port in backend.outputs]
        self.ops = ops
        self.passport = engine_passport
        self.gpu = gpu
        self._loaded: Backend | None = backend
        self._batches_taken = backend.smallest_batch, backend.largest_batch
        # Nothing is known about models of other tools: some use the most negative number as a mask.
        self._bound = math.inf if metadata is None else LARGEST
        self._check_sizes()

    def __enter__(self) -> Self:
        self._backend  # noqa: B018 - refuses a closed session
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _summary(self) -> Summary:
        ports = " -> ".join(
            ", ".join(f"{short(p.name)} {shape_text(p.shape)}" for p in few)
            for few in (self.inputs[:_SHOWN], self.outputs[:_SHOWN])
        )
        where = "cpu" if self.gpu is None else f"cuda:{self.gpu}"
        state = "closed" if self.closed else f"{self.ops} operators, {where}"
        names = self.metadata.class_names if self.metadata else ()
        classes = ", ".join(map(short, names[:10])) + (" ..." if len(names) > 10 else "")
        rows = [Row("file", str(self.path)), Row("runs", state)]
        rows += [
            Row(short(p.name), f"{shape_text(p.shape)} {p.dtype}") for p in self.inputs[:_SHOWN]
        ]
        rows += [
            Row(short(p.name), f"{shape_text(p.shape)} {p.dtype}") for p in self.outputs[:_SHOWN]
        ]
        rows += [Row("classes", f"{len(names)}: {classes}")] if names else []
        return Summary("Session", [f"{short(self.path.name)}: {state}", ports], rows)

    def close(self) -> None:
        """Free the model; calls that still run are not disturbed. A second call does nothing."""
        backend, self._loaded = self._loaded, None
        free = getattr(backend, "close", None)
        if free is not None:
            free()

    @property
    def closed(self) -> bool:
        """Whether `close` was called; ``path``, ``metadata`` and the ports stay known."""
        return self._loaded is None

    @property
    def _backend(self) -> Backend:
        if self._loaded is None:
            raise UsageError(
                f"The session of {self.path} is closed.",
                "It ended with its `with` block, or with close().",
                "Load the model again: capsedge.load(...).",
            )
        return self._loaded

    def _check_sizes(self) -> None:
        """Refuse fixed sizes that are too large, before anything is allocated for a run."""
        for kind, ports in (("inputs", self.inputs), ("outputs", self.outputs)):
            if sum(map(fixed_bytes, ports)) > limits.RUN_BYTES:
                raise ArtefactError(
                    f"{self.path} fixes sizes that are too large.",
                    f"One run would take over {limits.RUN_BYTES // limits.MIB} MiB of {kind}.",
                    "Export it with a free batch, or a smaller one.",
                )

    @property
    def batch(self) -> int | None:
        """The fixed batch of the file; None if the batch is free."""
        sizes = [port.shape[0] for port in self.inputs if port.shape]
        fixed = [size for size in sizes if isinstance(size, int)]
        return fixed[0] if fixed and len(fixed) == len(sizes) else None

    @property
    def smallest_batch(self) -> int:
        """The smallest batch of one run."""
        return self.batch or self._batches_taken[0]

    @property
    def largest_batch(self) -> int | None:
        """The largest batch of one run; None for any."""
        return self.batch or self._batches_taken[1]

    def run(self, arrays: AnyArray | Mapping[str, AnyArray]) -> dict[str, NDArray[Any]]:
        """Run the model on arrays as they are.

        Args:
            arrays: one array for a model with one input, or all inputs by name: of numpy, torch or any
                library that `arrays.as_array` reads; those on a GPU are copied.

        Returns:
            Every output by name.

        Raises:
            ShapeError: the shape or the type of an input is wrong.
            UsageError: an input is missing, unknown, or has NaN or infinite values.
        """
        given = self._named(arrays)
        feeds: dict[str, NDArray[Any]] = {}
        for port in self.inputs:
            value = given[port.name]
            array = as_array(value, f"Input '{port.name}'")
            feeds[port.name] = checked(port, value if array is None else array, self._bound)
        outputs = self._all_outputs
        if self.metadata is not None and len(feeds[self.inputs[0].name]) == 0:
            # Not every operator of ONNX Runtime accepts empty tensors (MatMul fails, reductions keep
            # their axes), so shapes and types are taken from one black image.
            return self._run_batch(feeds[self.inputs[0].name].astype(np.float32), outputs)
        return self._backend.run(feeds, outputs)

    def run_batches(
        self,
        images: AnyArray | Iterable[AnyArray],
        outputs: Sequence[str] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[tuple[NDArray[Any], dict[str, NDArray[Any]]]]:
        """Run a model with one input on any number of prepared images, batch by batch and in order.

        A batch that is too short for the model is padded with zeros, whose outputs are removed.

        Args:
            images: floats ``[N, C, H, W]``, or an iterable of single images ``[C, H, W]``, of which only one
                batch is in memory at a time; arrays as for `run`. They are cast to the input's
                floating-point type.
            outputs: names of the outputs to compute; None for all.
            batch_size: most images per run; None for 64. A file with a fixed batch uses that one.

        Yields:
            The images of one run ``[n, C, H, W]``, and its outputs by name, each ``[n, ...]``.

        Raises:
            ShapeError: the shape or the type of an image is wrong.
            UsageError: the model has several inputs, an image has NaN or infinite values, there is no such
                output, or ``batch_size`` is below 1.
        """
        names = self._output_names(outputs)
        if len(self.inputs) != 1:
            raise UsageError(
                f"{self.path} has {len(self.inputs)} inputs.",
                "`run_batches` splits the images of models with one input.",
                "Use `Session.run` with arrays by name.",
            )
        port = self.inputs[0]
        for batch in stacked(_arrays(images), self._run_size(batch_size)):
            floats = batch.dtype.kind == "f" and port.dtype.startswith("float")
            fed = batch.astype(port.dtype, copy=False) if floats else batch
            yield batch, self._run_batch(checked(port, fed, self._bound, any_batch=True), names)

    def _run_size(self, batch_size: int | None = None) -> int:
        """Images per run: the fixed batch, otherwise ``batch_size`` within the limits of the backend."""
        if batch_size is not None and not (
            isinstance(batch_size, (int, np.integer)) and batch_size >= 1
        ):
            raise UsageError(
                f"batch_size is {batch_size!r}.",
                "It is a whole number from 1.",
                "Leave it out for 64.",
            )
        most = _CHUNK if batch_size is None else batch_size
        return self.batch or min(most, self.largest_batch or most)

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
        """Run an engine on arrays that are on its GPU, as they are; no data passes through the host.

        Args:
            arrays: all inputs by name: objects with ``__dlpack__`` or ``__cuda_array_interface__``, as
                torch's and cupy's. The engine waits for pending writes to them.
            out: arrays on the GPU that outputs are written to, by name; the others get new memory.
            stream: a CUDA stream (torch's, cupy's, or its address as a number). The run is queued on the
                stream and the call returns at once; inputs and ``out`` must stay alive and unchanged until
                the stream has passed it. Without a stream the call waits for the results.

        Returns:
            Every output by name, on the GPU, with both protocols: ``torch.from_dlpack(output)``.

        Raises:
            UsageError: the model is not an engine, an array is missing, unknown, not on the GPU or may not
                be written.
            ShapeError: the shape or the type of an array is wrong.
        """
        run = getattr(self._backend, "run_on_device", None)
        if run is None:
            raise UsageError(
                f"{self.path} does not run on arrays on a GPU.",
                "Only TensorRT engines do.",
                "Use `Session.run`, or build an engine with `capsedge build`.",
            )
        from capsedge.runtime.backends.device_array import stream_address

        self._check_names(arrays)
        self._output_names(out)
        address = None if stream is None else stream_address(stream)
        results: dict[str, DeviceArray] = run(arrays, out, address)
        return results

    def _named(self, arrays: AnyArray | Mapping[str, AnyArray]) -> dict[str, object]:
        wanted = [port.name for port in self.inputs]
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
        wanted = [port.name for port in self.inputs]
        missing = [name for name in wanted if name not in arrays]
        unknown = [str(name) for name in arrays if name not in wanted]
        if missing or unknown:
            raise UsageError(
                "The arrays do not match the model's inputs.",
                f"Missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}.",
                f"Its inputs: {', '.join(wanted)}.",
            )

    def _run_batch(self, batch: NDArray[Any], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Run ``[n, C, H, W]``; a batch that is empty or shorter than the fixed one is padded with zeros.

        Raises:
            ArtefactError: an output has more or fewer rows than there are images.
        """
        count, size = len(batch), self.smallest_batch
        if count < size:
            rest = np.zeros((size - count, *batch.shape[1:]), batch.dtype)
            batch = np.concatenate([batch, rest])
        port = self.inputs[0]
        found = self._backend.run({port.name: batch.astype(port.dtype, copy=False)}, outputs)
        self._check_rows(found, len(batch))
        if count == len(batch):
            return found
        return {name: value[:count] for name, value in found.items()}

    def _check_rows(self, outputs: Mapping[str, NDArray[Any]], images: int) -> None:
        """Refuse outputs that do not have one row per image.

        Raises:
            ArtefactError: one has not.
        """
        for name, value in outputs.items():
            if value.ndim < 1 or len(value) != images:
                raise ArtefactError(
                    f"{self.path} computed other rows of '{name}' than images.",
                    f"Its shape is {list(value.shape)} for {images} images.",
                    "Export the model again so that every output has one row per image.",
                )


def _arrays(images: AnyArray | Iterable[AnyArray]) -> NDArray[Any] | Iterator[NDArray[Any]]:
    """A batch, or single images one by one, as numpy's."""
    batch = as_array(images)
    if batch is not None:
        return batch
    assert isinstance(images, Iterable)
    return (np.asarray(image if (a := as_array(image)) is None else a) for image in images)
