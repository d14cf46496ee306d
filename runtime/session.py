"""A loaded model: running it, predicting with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime import passport
from capsedge.runtime.answers import Unfit, answers_of
from capsedge.runtime.hints import seen
from capsedge.runtime.inputs import checked, stacked
from capsedge.runtime.metadata import REGRESSION, ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.predicting import Predictor
from capsedge.runtime.running import Runner
from capsedge.runtime.vision.given import Images, OneImage, Reading, on_host
from capsedge.runtime.vision.prediction import Label, Prediction, Value, choose, scores_of

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Backend

RECONSTRUCTION = "reconstruction"
DEFAULT_THRESHOLD = (
    0.5  # between the margins 0.1 and 0.9 of the margin loss (Sabour et al. 2017, eq. 4)
)


class Session(Runner, Predictor):
    """A loaded model. A context manager; safe to use from several threads at once.

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
        super().__init__(path, backend, metadata, ops, engine_passport, gpu)
        try:
            self._answers = answers_of(metadata, self.inputs, self.outputs)
        except Unfit as error:
            raise ArtefactError(
                f"The metadata of {path} does not fit its graph.",
                str(error),
                "Export the model again with `capsedge export`, or describe it again with "
                "`capsedge optimize`.",
            ) from error

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file that was loaded; of an `Ensemble`, those of its members."""
        return (self.path,)

    @property
    def name(self) -> str:
        """The name of the file, for a title."""
        return self.path.name

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

    def prepare(
        self, image: OneImage, invert: bool = False, *, layout: str | None = None
    ) -> NDArray[np.float32]:
        """The model's input ``[C, H, W]`` for one image, by the file's own preprocessing.

        Args:
            image, invert, layout: as for `predict`; an array of floats holds pixels from 0 to 1.

        Raises:
            UsageError: the image cannot be read or does not fit, or there are several.
            ArtefactError: the file does not state the preprocessing.
        """
        reading = Reading(self._preprocessing(), invert, layout, prepared=False)
        found = list(islice(reading.images(image), 2))
        if len(found) != 1:
            raise UsageError(
                f"prepare takes one image, not {'several' if found else 'none'}.",
                "",
                "Prepare them one by one, or pass them all to Session.predict.",
            )
        return found[0].astype(np.float32, copy=False)

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
            "--outputs in place of --classes; --range, --mean and --std as in training "
            "(docs/reference/metadata.md). In Python, `capsedge.optimize` takes the same, and `Session.run` "
            "prepared arrays.",
        )

    def _predictions(
        self,
        images: Images,
        top_k: int | None,
        threshold: float | None,
        invert: bool,
        batch_size: int | None,
        **reading: Any,
    ) -> Iterator[Prediction]:
        top_k, threshold = self._choice(top_k, threshold)
        outputs = self._metadata().outputs
        estimated = outputs if outputs is not None and outputs.values else None
        batches = self._batches(images, batch_size, invert, **reading)

        def answered(batch: NDArray[Any]) -> Iterator[Prediction]:
            found = self._run_batch(batch, self._answers.all)
            if estimated is not None:
                read = self._estimate(estimated, found)
            else:
                read = self._read(found, top_k, threshold)
            return seen(read, batch, self._metadata(), invert)

        return chain.from_iterable(answered(batch) for batch in batches)

    def _choice(
        self, top_k: int | None, threshold: float | None
    ) -> tuple[int | None, float | None]:
        """The labels to choose: what was asked for, or the default of the task; none of a regression."""
        outputs = self._metadata().outputs
        if outputs is not None and outputs.values:
            _check_no_choice(self.path, outputs, top_k, threshold)
            return None, None
        if top_k is not None and not (isinstance(top_k, (int, np.integer)) and top_k >= 1):
            raise UsageError(
                f"top_k is {top_k!r}.", "It is a whole number from 1.", "Leave it out for the best."
            )
        if threshold is not None and not (
            isinstance(threshold, (int, float, np.number)) and 0 <= threshold <= 1
        ):
            raise UsageError(
                f"threshold is {threshold!r}.",
                "Scores go from 0 to 1.",
                "Use a number between them.",
            )
        if top_k is None and threshold is None:
            return (None, DEFAULT_THRESHOLD) if self.multi_label else (1, None)
        return top_k, threshold

    def _estimate(
        self, outputs: Outputs, found: Mapping[str, NDArray[Any]]
    ) -> Iterator[Prediction]:
        """The predictions of a regression."""
        none = np.zeros(0), np.zeros((0, 0), np.float32)
        for row in self.values_of(found):
            named = zip(outputs.names, row.tolist(), outputs.units, strict=True)
            values = tuple(Value(name, value, unit) for name, value, unit in named)
            yield Prediction((), *none, "", values)

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
        self,
        images: Images,
        batch_size: int | None,
        invert: bool,
        layout: str | None = None,
        prepared: bool | None = None,
    ) -> Iterator[NDArray[Any]]:
        """Prepared batches ``[n, C, H, W]``, as large as one run takes."""
        size, port = self._run_size(batch_size), self.inputs[0]
        self._backend  # noqa: B018 - refuses a closed session before an image is read
        given = on_host(images)
        stated = self._metadata().preprocessing is not None or invert or prepared is False
        found: NDArray[Any] | Iterator[NDArray[Any]]
        if not stated and _floats(given):
            found = given
        else:
            reading = Reading(self._preprocessing(), invert, layout, prepared)
            whole = reading.batch(given)
            found = reading.images(given) if whole is None else whole
        batches = stacked(found, size)
        if not port.dtype.startswith("float"):  # what is prepared is cast when it runs
            port = replace(port, dtype="float32")
        return (checked(port, batch, self._bound, any_batch=True) for batch in batches)

    def reconstruct(
        self,
        images: Images,
        invert: bool = False,
        *,
        layout: str | None = None,
        prepared: bool | None = None,
    ) -> NDArray[np.float32]:
        """The decoder's pictures of images given as to `predict`: ``[N, J, C, H, W]``, one per class
        capsule.

        Raises:
            UsageError: the file has no decoder; otherwise as `predict`.
        """
        self.check_reconstruction()
        pictures = [
            self._run_batch(batch, [RECONSTRUCTION])[RECONSTRUCTION]
            for batch in self._batches(images, None, invert, layout, prepared)
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


def _floats(given: object) -> TypeGuard[NDArray[Any]]:
    """Whether it is an array that can be prepared already: of floats, of four dimensions."""
    return isinstance(given, np.ndarray) and given.ndim == 4 and given.dtype.kind == "f"


def _check_no_choice(
    path: Path, outputs: Outputs, top_k: int | None, threshold: float | None
) -> None:
    if top_k is not None or threshold is not None:
        raise UsageError(
            f"{path} estimates {', '.join(outputs.names[:8])}.",
            "top_k and threshold choose among classes, and it has none.",
            "Leave them out.",
        )
