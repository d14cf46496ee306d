"""A loaded model: running it, predicting with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime import passport
from capsedge.runtime.answers import Unfit, answers_of, check_no_choice
from capsedge.runtime.explaining import Explaining
from capsedge.runtime.hints import seen
from capsedge.runtime.metadata import ModelMetadata, Outputs
from capsedge.runtime.predicting import Predictor
from capsedge.runtime.vision.given import Images
from capsedge.runtime.vision.prediction import Label, Prediction, Value, choose, scores_of

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Backend
    from capsedge.runtime.decoder import Decoder

DEFAULT_THRESHOLD = (
    0.5  # between the margins 0.1 and 0.9 of the margin loss (Sabour et al. 2017, eq. 4)
)


class Session(Explaining, Predictor):
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
        decoder: Decoder | None = None,
    ) -> None:
        super().__init__(path, backend, metadata, ops, engine_passport, gpu, decoder=decoder)
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
    def long_way_output(self) -> str | None:
        """Of a cascade, the output ``[N]`` of the images that its large network decided; else None."""
        return self._answers.long_way

    @property
    def answer_outputs(self) -> tuple[str, ...]:
        """The outputs that a prediction is made of."""
        return tuple(self._answers.all)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of classes; also False if the file does not state it."""
        return self.metadata is not None and self.metadata.task == "multi-label"

    def class_name(self, index: int) -> str:
        """The name of a class; its number if the file does not name classes."""
        names = self.metadata.class_names if self.metadata else ()
        return names[index] if names else str(index)

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
        batches = self._batches(images, batch_size, invert, **reading)

        def answered(batch: NDArray[Any]) -> Iterator[Prediction]:
            found = self._run_batch(batch, self._answers.all)
            return self._interpreted(batch, found, top_k, threshold, invert)

        return chain.from_iterable(answered(batch) for batch in batches)

    def predictions_of(
        self,
        images: NDArray[Any],
        outputs: Mapping[str, NDArray[Any]],
        top_k: int | None = None,
        threshold: float | None = None,
        invert: bool = False,
    ) -> list[Prediction]:
        """The predictions that outputs of the model mean, as `predict` returns them.

        Args:
            images: what was run, prepared: ``[N, C, H, W]`` in the model's layout.
            outputs: at least `answer_outputs`, each ``[N, ...]``.
            top_k, threshold: as for `predict`.
            invert: whether the images were inverted when they were prepared.

        Returns:
            One prediction per image.

        Raises:
            UsageError, ArtefactError: as `predict`.
        """
        top_k, threshold = self._choice(top_k, threshold)
        self._check_rows(outputs, len(images))
        return list(self._interpreted(images, outputs, top_k, threshold, invert))

    def check_choice(self, top_k: int | None, threshold: float | None) -> None:
        """Refuse a choice of labels that `predict` would refuse.

        Raises:
            UsageError: a number is wrong, or the model has no classes to choose from.
            ArtefactError: the file does not state what its answer is.
        """
        self._choice(top_k, threshold)

    def _interpreted(
        self,
        batch: NDArray[Any],
        found: Mapping[str, NDArray[Any]],
        top_k: int | None,
        threshold: float | None,
        invert: bool,
    ) -> Iterator[Prediction]:
        outputs = self._metadata().outputs
        if outputs is not None and outputs.values:
            read = self._estimate(outputs, found)
        else:
            read = self._read(found, top_k, threshold)
        return seen(read, batch, self._metadata(), invert)

    def _choice(
        self, top_k: int | None, threshold: float | None
    ) -> tuple[int | None, float | None]:
        """The labels to choose: what was asked for, or the default of the task; none of a regression."""
        outputs = self._metadata().outputs
        if outputs is not None and outputs.values:
            check_no_choice(self.path, outputs, top_k, threshold)
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
        if of_poses.shape[:2] != scores.shape:
            raise self._other_size(int(np.prod(of_poses.shape[1:2])), scores.shape[1], "poses")
        taken: NDArray[Any] | list[None] = [None] * len(scores)
        if answers.long_way is not None:
            taken = outputs[answers.long_way]
            if taken.ndim != 1:
                raise self._other_size(int(np.prod(taken.shape[1:])), 1, "decisions of the cascade")
        for row, poses, long in zip(scores, of_poses, taken, strict=True):
            poses = poses.astype(np.float32).reshape(len(row), -1)
            labels = tuple(
                Label(self.class_name(j), j, float(row[j]), poses[j])
                for j in choose(row, top_k, threshold)
            )
            long_way = None if long is None else bool(long)
            yield Prediction(labels, row, poses, kind, long_way=long_way)
