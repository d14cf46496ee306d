"""A loaded model: running it, predicting with it, looking into it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import Backend, Port, cuda_graphs_text
from capsedge.runtime.images.inputs import ImageInput, Images, OneImage, Size
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.result_summary import Row, Summary, shortened_name
from capsedge.runtime.session.capabilities import Capabilities
from capsedge.runtime.session.decoder import Decoder, classes_of, poses_of
from capsedge.runtime.session.loaded_model import ImageOptions, LoadedModel
from capsedge.runtime.session.output_roles import OutputRoles
from capsedge.runtime.session.predictions import Prediction
from capsedge.runtime.session.routing_trace import Trace, run_traced
from capsedge.runtime.session.runner import Runner
from capsedge.runtime.session.tensors import AnyArray, fixed_bytes, shape_text
from capsedge.spec import limits
from capsedge.spec.vocabularies import RECONSTRUCTION

if TYPE_CHECKING:
    from capsedge.runtime.backends.device_array import DeviceArray

_SHOWN = 6  # ports in a summary
_TRACED_CHUNK = 16  # images of a run


class Session(LoadedModel[NDArray[Any]]):
    """A loaded model. A context manager; safe to use from several threads at once.

    Args:
        path: the file from which it was loaded.
        backend: the file, loaded.
        decoder: the file's decoder; None if it has none that can run separately.

    Attributes:
        path: the file from which it was loaded.
        metadata: the metadata of the file; None if it was not written by capsedge.
        inputs, outputs: name, shape and type of each.
        backend: what runs the model, with ``ops``, ``gpu``, ``batches`` and ``engine_metadata``.
        roles: the meaning of each output.
        image_input: how an image becomes the input.

    Raises:
        ArtefactError: the metadata does not fit the graph, or the file fixes sizes that are too large.
    """

    def __init__(self, path: Path, backend: Backend, decoder: Decoder | None = None) -> None:
        self.path = path
        self.backend = backend
        self.metadata: ModelMetadata | None = backend.metadata
        self.inputs: tuple[Port, ...] = backend.inputs
        self.outputs: tuple[Port, ...] = backend.outputs
        self.image_input = ImageInput(path, self.metadata, self.inputs)
        self.roles = OutputRoles(path, self.image_input, self.metadata, self.inputs, self.outputs)
        self._runner = Runner(path, backend)
        self._decoder = decoder

    def close(self) -> None:
        """Free the model; calls in progress are not affected. A second call does nothing."""
        self.backend.close()
        if self._decoder is not None:
            self._decoder.close()

    @cached_property
    def can(self) -> Capabilities:
        """What the file supports besides running and predicting, or the reason why not."""
        whole = self.backend.engine_metadata is not None
        return Capabilities(self.path, self.image_input, self.outputs, self._decoder, whole)

    @property
    def closed(self) -> bool:
        """Whether `close` was called; ``path``, ``metadata`` and the ports remain available."""
        return self.backend.closed

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The session itself."""
        return (self,)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    def run(self, arrays: AnyArray | Mapping[str, AnyArray]) -> dict[str, NDArray[Any]]:
        """Run the model on prepared arrays.

        Args:
            arrays: one array for a model with one input, or all inputs by name: of numpy, torch or any
                library with ``__array__`` or DLPack; those on a GPU are copied.

        Returns:
            Every output by name.

        Raises:
            ShapeError: the shape or the type of an input is wrong.
            UsageError: an input is missing, unknown, or has NaN or infinite values.
        """
        return self._runner.run(arrays)

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
            batch_size: maximum number of images per run; None for 64. A file with a fixed batch uses that
                size.

        Yields:
            The images of one run ``[n, C, H, W]``, and its outputs by name, each ``[n, ...]``.

        Raises:
            ShapeError: the shape or the type of an image is wrong.
            UsageError: the model has several inputs, an image has NaN or infinite values, there is no such
                output, or ``batch_size`` is below 1.
        """
        return self._runner.run_batches(images, outputs, batch_size)

    def run_on_device(
        self,
        arrays: Mapping[str, object],
        *,
        out: Mapping[str, object] | None = None,
        stream: object = None,
    ) -> dict[str, DeviceArray]:
        """Run a model on arrays in its GPU's memory; no data passes through the host.

        Args:
            arrays: all inputs by name: objects with ``__dlpack__`` or ``__cuda_array_interface__``, such as
                those of torch and cupy. The model waits for pending writes to them.
            out: arrays on the GPU that outputs are written to, by name; the others get new memory.
            stream: a CUDA stream (torch's, cupy's, or its address as a number). The run is queued on the
                stream. With an engine, the call then returns at once; inputs and ``out`` must stay alive and
                unchanged until the stream has passed it. Without a stream, and always with ONNX Runtime, the
                call waits for the results.

        Returns:
            Every output by name, on the GPU, with both protocols: ``torch.from_dlpack(output)``.

        Raises:
            UsageError: the model does not run on a GPU, or an array is missing, unknown, not on the GPU or
                read-only.
            ShapeError: the shape or the type of an array is wrong.
        """
        return self._runner.run_on_device(arrays, out=out, stream=stream)

    def _check_open(self) -> None:
        self._runner.check_open()

    def _prepared(self, image: OneImage, options: ImageOptions) -> NDArray[np.float32]:
        return self.image_input.reader(*options[:3]).one(image)

    def _batches(self, images: Images, size: int, options: ImageOptions) -> Iterator[NDArray[Any]]:
        """Prepared batches ``[n, C, H, W]``."""
        return self.image_input.batches(images, size, *options)

    def _predicted(
        self,
        batch: NDArray[Any],
        top_k: int | None,
        threshold: float | None,
        invert: bool,
        sizes: deque[Size],
    ) -> Iterator[Prediction]:
        roles = self.roles
        outputs = self._runner.run_batch(batch, roles.all)
        own = [sizes.popleft() for _ in range(min(len(batch), len(sizes)))]
        return iter(roles.predictions(batch, outputs, top_k, threshold, invert, own))

    def reconstruct(
        self,
        images: Images,
        invert: bool = False,
        *,
        layout: str | None = None,
        prepared: bool | None = None,
    ) -> NDArray[np.float32]:
        """Reconstructions of images, which are passed as to `predict`: ``[N, J, C, H, W]``, one per class
        capsule.

        Raises:
            UsageError: the file has no decoder; otherwise as `predict`.
        """
        self.can.check_reconstruct()
        pictures = [
            self._runner.run_batch(batch, [RECONSTRUCTION])[RECONSTRUCTION]
            for batch in self._read(images, None, ImageOptions(invert, layout, prepared))
        ]
        if not pictures:
            raise UsageError("There are no images to reconstruct.", "", "Pass at least one.")
        return np.concatenate(pictures).astype(np.float32, copy=False)

    def decode(
        self,
        poses: AnyArray | Sequence[object],
        classes: AnyArray | Sequence[int] | int | None = None,
    ) -> NDArray[np.float32]:
        """Reconstructions of given poses; only the decoder runs.

        The reconstruction of a class is decoded only from its capsule, with all others masked to zero (Sabour
        et al. 2017, section 4.1), so it does not depend on other poses. For the poses that the model finds in
        images, the result equals that of `reconstruct`.

        Args:
            poses: of all classes ``[N, J, P]`` or ``[J, P]``, as `Prediction.poses`; with ``classes`` of one
                class each ``[N, P]`` or ``[P]``. Arrays of any library, or lists.
            classes: the class of each pose ``[N]``, or one for all.

        Returns:
            Pictures ``[N, J, C, H, W]``; with ``classes`` ``[N, C, H, W]``.

        Raises:
            UsageError: the file has no decoder that needs only poses, or an argument is wrong.
            ShapeError: the poses have another shape.
        """
        self._runner.check_open()
        decoder = self.can.check_decode()
        known, size = decoder.capsules
        if classes is None:
            return decoder.decode(poses_of(poses, (known, size)))
        checked = poses_of(poses, (size,))
        return decoder.of_classes(checked, classes_of(classes, len(checked), known))

    def trace(
        self,
        images: Images,
        invert: bool = False,
        *,
        layout: str | None = None,
        prepared: bool | None = None,
    ) -> Trace:
        """The routing of images, which are passed as to `predict`: couplings, poses and agreement of every
        iteration of every routed layer.

        Raises:
            UsageError: the file has no trace, or the values of so many images take over 1 GiB; otherwise as
                `predict`.
        """
        declared = self.can.check_trace()
        ports = [port for port in self.outputs if port.name in declared.outputs]
        per_image = max(1, sum(map(fixed_bytes, ports)) // (self.backend.batches.fixed or 1))
        most = max(1, limits.RUN_BYTES // per_image)
        options = ImageOptions(invert, layout, prepared)
        batches = self._read(images, min(most, _TRACED_CHUNK), options)
        return run_traced(declared, per_image, batches, self._runner.run_batch)

    def _summary(self) -> Summary:
        shown = self.inputs[:_SHOWN], self.outputs[:_SHOWN]
        flow = " -> ".join(
            ", ".join(f"{shortened_name(p.name)} {shape_text(p.shape)}" for p in ports)
            for ports in shown
        )
        gpu, ops = self.backend.gpu, self.backend.ops
        where = "cpu" if gpu is None else f"cuda:{gpu}"
        state = "closed" if self.closed else f"{ops} operators, {where}"
        names = self.metadata.class_names if self.metadata else ()
        classes = ", ".join(map(shortened_name, names[:10])) + (" ..." if len(names) > 10 else "")
        graphs = cuda_graphs_text(self.backend)
        rows = [Row("file", str(self.path)), Row("runs", ", ".join(filter(None, [state, graphs])))]
        rows += [
            Row(shortened_name(p.name), f"{shape_text(p.shape)} {p.dtype}") for p in chain(*shown)
        ]
        rows += [Row("classes", f"{len(names)}: {classes}")] if names else []
        return Summary("Session", [f"{shortened_name(self.path.name)}: {state}", flow], rows)
