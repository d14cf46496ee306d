"""A loaded model: running it, predicting with it."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime import passport
from capsedge.runtime.answers import Unfit, answers_of
from capsedge.runtime.backends.onnxruntime_backend import Port
from capsedge.runtime.files import limits
from capsedge.runtime.hints import seen
from capsedge.runtime.inputs import LARGEST, checked, fixed_bytes, stacked
from capsedge.runtime.metadata import REGRESSION, ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.vision.images import prepare
from capsedge.runtime.vision.prediction import Label, Prediction, Value, choose, scores_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from capsedge.runtime.backends.backend import Backend
    from capsedge.runtime.backends.device_array import DeviceArray

OneImage: TypeAlias = "str | os.PathLike[str] | Image | NDArray[Any]"

RECONSTRUCTION = "reconstruction"
DEFAULT_THRESHOLD = (
    0.5  # between the margins 0.1 and 0.9 of the margin loss (Sabour et al. 2017, eq. 4)
)
_CHUNK = 64  # images per run of a model with a free batch; bounds memory


class Session:
    """A loaded model. Safe to use from several threads at once.

    Attributes:
        path: the file it was loaded from.
        metadata: the metadata of the file; None if it is not a file of capsedge.
        inputs, outputs: name, shape and type of each.
        ops: ``fused`` if the capsule operators run in capsedge's operator or plugin library, ``mixed`` if
            the file also has routing in standard operators (`export --with couplings`), which no library
            runs, otherwise ``portable``.
        passport: passport of a TensorRT engine; None for an ONNX file.
        gpu: number of the GPU that it runs on; None on the CPU.
    """

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
        self.ops = ops
        self.passport = engine_passport
        self.gpu = gpu
        self._backend = backend
        # Nothing is known about models of other tools: some use the most negative number as a mask.
        self._bound = math.inf if metadata is None else LARGEST
        self._check_sizes()
        try:
            self._answers = answers_of(metadata, self.inputs, self.outputs)
        except Unfit as error:
            raise ArtefactError(
                f"The metadata of {path} does not fit its graph.",
                str(error),
                "Export the model again with `capsedge export`, or describe it again with "
                "`capsedge optimize`.",
            ) from error

    def __repr__(self) -> str:
        return f"<capsedge.Session {self.path} ops={self.ops}>"

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
        return self.batch or self._backend.smallest_batch

    @property
    def largest_batch(self) -> int | None:
        """The largest batch of one run; None for any."""
        return self.batch or self._backend.largest_batch

    @property
    def score_output(self) -> str | None:
        """The output that decides the class; None if there is none, as for a regression."""
        return self._answers.scores

    @property
    def score_kind(self) -> str:
        """What `score_output` holds: ``length``, ``logits`` or ``probability``; empty if there is none."""
        return self._answers.kind

    @property
    def pose_output(self) -> str | None:
        """The output with a pose for each class; None if there is none."""
        return self._answers.poses

    @property
    def value_outputs(self) -> tuple[str, ...]:
        """The outputs of a regression; empty for a classification."""
        return self._answers.values

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of classes; also False if the file does not state it."""
        return self.metadata is not None and self.metadata.task == "multi-label"

    def class_name(self, index: int) -> str:
        """The name of a class; its number if the file does not name classes."""
        names = self.metadata.class_names if self.metadata else ()
        return names[index] if names else str(index)

    def run(self, arrays: NDArray[Any] | Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the model on arrays as they are.

        Args:
            arrays: one array for a model with one input, or all inputs by name.

        Returns:
            Every output by name.

        Raises:
            ShapeError: the shape or the type of an input is wrong.
            UsageError: an input is missing, unknown, or has NaN or infinite values.
        """
        feeds = self._named(arrays)
        for port in self.inputs:
            feeds[port.name] = checked(port, feeds[port.name], self._bound)
        outputs = [port.name for port in self.outputs]
        if self.metadata is not None and len(feeds[self.inputs[0].name]) == 0:
            # Not every operator of ONNX Runtime accepts empty tensors (MatMul fails, reductions keep
            # their axes), so shapes and types are taken from one black image.
            return self._run_batch(feeds[self.inputs[0].name].astype(np.float32), outputs)
        return self._backend.run(feeds, outputs)

    def run_batches(
        self,
        images: NDArray[Any] | Iterable[NDArray[Any]],
        outputs: Sequence[str] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[tuple[NDArray[Any], dict[str, NDArray[Any]]]]:
        """Run a model with one input on any number of prepared images, batch by batch and in order.

        A batch that is too short for the model is padded with zeros, whose outputs are removed.

        Args:
            images: floats ``[N, C, H, W]``, or an iterable of single images ``[C, H, W]``, of which only one
                batch is in memory at a time. They are cast to the input's
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
        for batch in stacked(images, self._run_size(batch_size)):
            floats = batch.dtype.kind == "f" and port.dtype.startswith("float")
            fed = batch.astype(port.dtype, copy=False) if floats else batch
            yield batch, self._run_batch(checked(port, fed, self._bound, any_batch=True), names)

    def _run_size(self, batch_size: int | None = None) -> int:
        """Images per run: the fixed batch, otherwise ``batch_size`` within the limits of the backend."""
        if batch_size is not None and batch_size < 1:
            raise UsageError(
                f"batch_size is {batch_size}.", "It must be 1 or more.", "Leave it out for 64."
            )
        most = _CHUNK if batch_size is None else batch_size
        return self.batch or min(most, self.largest_batch or most)

    def _output_names(self, chosen: Iterable[str] | None) -> list[str]:
        """The chosen outputs; all if none are chosen.

        Raises:
            UsageError: there is no such output.
        """
        names = [port.name for port in self.outputs]
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

    def _named(self, arrays: NDArray[Any] | Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
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

    def prepare(
        self, image: OneImage, invert: bool = False, name: str = "the image"
    ) -> NDArray[np.float32]:
        """The model's input ``[C, H, W]`` for one image, by the file's own preprocessing.

        Raises:
            UsageError: the image cannot be read or does not fit.
            ArtefactError: the file does not state the preprocessing.
        """
        if isinstance(image, os.PathLike):
            image = Path(image)
        return prepare(image, self._preprocessing(), invert, name)

    def _preprocessing(self) -> Preprocessing:
        metadata = self._metadata()
        if metadata.preprocessing is None:
            raise self._undescribed("no preprocessing: not how to prepare an image")
        return metadata.preprocessing

    def _metadata(self) -> ModelMetadata:
        if self.metadata is None:
            raise self._undescribed("neither its classes nor its preprocessing")
        return self.metadata

    def _undescribed(self, lacking: str) -> ArtefactError:
        """What a file lacks for a prediction, and the command that adds it."""
        sizes = self.inputs[0].shape if self.inputs else ()
        size = sizes[1:3] if sizes[-1:] in ((1,), (3,)) else sizes[2:]
        fixed = len(size) == 2 and all(isinstance(side, int) for side in size)
        words = "x".join(map(str, size)) if fixed else "HEIGHTxWIDTH"
        command = f"capsedge optimize {shlex.quote(str(self.path))} -o described.onnx"
        return ArtefactError(
            f"{self.path} states {lacking}.",
            "Its metadata lacks them." if self.metadata else "It has no metadata of capsedge.",
            f"Describe it, for example: `{command} --classes labels.txt --size {words}`; for a regression "
            "--outputs in place of --classes; --range, --mean and --std as in training (docs/metadata.md). "
            "In Python, `capsedge.optimize` takes the same, and `Session.run` prepared arrays.",
        )

    def predict(
        self,
        images: OneImage | Sequence[OneImage],
        top_k: int | None = None,
        threshold: float | None = None,
        invert: bool = False,
    ) -> list[Prediction]:
        """Classify images, or compute the values of a regression.

        Args:
            images: one image (a file, a Pillow image, an array of pixels ``[H, W]`` or ``[H, W,
                C]``), a sequence of them, a batch of pixels ``[N, H, W, C]``, or a batch of floats
                ``[N, C, H, W]`` prepared as for `run`.
            top_k: largest number of labels. Without it and without a threshold: the best label, or for a
                multi-label model those with a score of at least 0.5.
            threshold: only labels with at least this score.
            invert: for dark ink on a light background.

        Returns:
            One prediction per image.

        Raises:
            UsageError: an image cannot be read or does not fit, or an argument is wrong.
            ArtefactError: the file does not state its classes and its preprocessing, or computes NaN.
        """
        outputs = self._metadata().outputs
        if outputs is not None and outputs.values:
            return self._estimate(outputs, images, top_k, threshold, invert)
        if top_k is not None and top_k < 1:
            raise UsageError(
                f"top_k is {top_k}.", "It must be 1 or more.", "Leave it out for the best label."
            )
        if threshold is not None and not 0 <= threshold <= 1:
            raise UsageError(
                f"threshold is {threshold:g}.",
                "Scores go from 0 to 1.",
                "Use a number between them.",
            )
        if top_k is None and threshold is None:
            if self.multi_label:
                threshold = DEFAULT_THRESHOLD
            else:
                top_k = 1
        predictions: list[Prediction] = []
        for batch in self._batches(images, invert):
            found = self._run_batch(batch, self._answers.all)
            read = self._read(found, top_k, threshold)
            predictions += seen(read, batch, self._metadata(), invert)
        return predictions

    def _estimate(
        self,
        outputs: Outputs,
        images: OneImage | Sequence[OneImage],
        top_k: int | None,
        threshold: float | None,
        invert: bool,
    ) -> list[Prediction]:
        """The predictions of a regression."""
        if top_k is not None or threshold is not None:
            raise UsageError(
                f"{self.path} estimates {', '.join(outputs.names[:8])}.",
                "top_k and threshold choose among classes, and it has none.",
                "Leave them out.",
            )
        none = np.zeros(0), np.zeros((0, 0), np.float32)
        predictions: list[Prediction] = []
        for batch in self._batches(images, invert):
            read = []
            for row in self.values_of(self._run_batch(batch, self._answers.all)):
                named = zip(outputs.names, row.tolist(), outputs.units, strict=True)
                values = tuple(Value(name, value, unit) for name, value, unit in named)
                read.append(Prediction((), *none, "", values))
            predictions += seen(read, batch, self._metadata(), invert)
        return predictions

    def values_of(self, outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The values of a regression ``[N, K]``, in the order of their names, from the model's outputs.

        Raises:
            ArtefactError: one is NaN or infinite, or there are more or fewer than the metadata names.
        """
        parts = [outputs[name].astype(np.float64) for name in self.value_outputs]
        rows = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        self._check_finite(", ".join(self.value_outputs), rows)
        stated = self._metadata().outputs
        if stated is None or rows.shape[1] != len(stated.names):
            raise self._other_size(rows.shape[1], len(stated.names) if stated else 0, "values")
        return rows

    def _batches(
        self, images: OneImage | Sequence[OneImage], invert: bool
    ) -> Iterator[NDArray[np.float32]]:
        """Prepared batches ``[n, C, H, W]``, as large as one run takes."""
        size = self._run_size()
        if isinstance(images, np.ndarray) and images.ndim == 4 and images.dtype.kind == "f":
            if invert:
                raise UsageError(
                    "Prepared arrays cannot be inverted.",
                    "invert works on pixels, before the model's preprocessing.",
                    "Give pixels as uint8 [N, H, W, C].",
                )
            yield from stacked(checked(self.inputs[0], images, self._bound, any_batch=True), size)
            return
        sequence: Iterable[OneImage]
        if isinstance(images, np.ndarray):
            sequence = images if images.ndim == 4 else [images]
        elif isinstance(images, Sequence) and not isinstance(images, (str, bytes)):
            sequence = images
        else:
            sequence = [images]
        prepared = (self.prepare(image, invert, f"image {k}") for k, image in enumerate(sequence))
        yield from stacked(prepared, size)

    def reconstruct(
        self, images: OneImage | Sequence[OneImage], invert: bool = False
    ) -> NDArray[np.float32]:
        """The decoder's pictures of images given as to `predict`: ``[N, J, C, H, W]``, one per class
        capsule.

        Raises:
            UsageError: the file has no decoder; otherwise as `predict`.
        """
        self.check_reconstruction()
        pictures = [
            self._run_batch(batch, [RECONSTRUCTION])[RECONSTRUCTION]
            for batch in self._batches(images, invert)
        ]
        if not pictures:
            raise UsageError("There are no images to reconstruct.", "", "Give at least one.")
        return np.concatenate(pictures).astype(np.float32, copy=False)

    def check_reconstruction(self) -> None:
        """Raise a UsageError if the file has no decoder."""
        if self._metadata().task == REGRESSION:
            raise UsageError(
                f"{self.path} cannot reconstruct images.",
                "It estimates values; pictures belong to classes.",
                "Leave the reconstruction out.",
            )
        if RECONSTRUCTION not in [port.name for port in self.outputs]:
            raise UsageError(
                f"{self.path} cannot reconstruct images.",
                f"It has no output '{RECONSTRUCTION}'.",
                "Export the model with its decoder: `capsedge export --with reconstruction`.",
            )

    def _run_batch(self, batch: NDArray[Any], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Run ``[n, C, H, W]``; a batch that is empty or shorter than the fixed one is padded with zeros."""
        count, size = len(batch), self.smallest_batch
        if count < size:
            rest = np.zeros((size - count, *batch.shape[1:]), batch.dtype)
            batch = np.concatenate([batch, rest])
        port = self.inputs[0]
        found = self._backend.run({port.name: batch.astype(port.dtype, copy=False)}, outputs)
        if count == len(batch):
            return found
        return {name: value[:count] for name, value in found.items()}

    def _check_finite(self, name: str, values: NDArray[Any]) -> None:
        if not np.isfinite(values).all():
            raise ArtefactError(
                f"{self.path} computed {name} that are NaN or infinite.",
                "The weights may be damaged, or their range too large for the file's precision.",
                "Run `capsedge verify` on the file.",
            )

    def _other_size(self, found: int, named: int, what: str) -> ArtefactError:
        return ArtefactError(
            f"{self.path} computed {found} {what} of an image.",
            f"Its metadata names {named}.",
            "Describe it again with `capsedge optimize`.",
        )

    def _read(
        self,
        outputs: Mapping[str, NDArray[Any]],
        top_k: int | None,
        threshold: float | None,
    ) -> Iterator[Prediction]:
        answers = self._answers
        assert answers.scores is not None  # a classification has one
        found = outputs[answers.scores]
        self._check_finite(answers.scores, found)
        named = len(self._metadata().class_names)
        if found.ndim != 2 or (named and found.shape[1] != named):
            raise self._other_size(int(np.prod(found.shape[1:])), named, "scores")
        scores, kind = scores_of(found, answers.kind, self.multi_label)
        none = np.zeros((*scores.shape, 0), np.float32)
        of_poses = none if answers.poses is None else outputs[answers.poses]
        for row, poses in zip(scores, of_poses, strict=True):
            poses = poses.astype(np.float32).reshape(len(row), -1)
            labels = tuple(
                Label(self.class_name(j), j, float(row[j]), poses[j])
                for j in choose(row, top_k, threshold)
            )
            yield Prediction(labels, row, poses, kind)
