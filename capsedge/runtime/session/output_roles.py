"""Determine the meaning of a model's outputs, and make predictions from their values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.images.inputs import ImageInput, Size
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs
from capsedge.runtime.metadata.scores import SCORES, scores_of, shape_fault
from capsedge.runtime.onnx_file.stored_values import DIVERGED, NotFinite, find_not_finite_in, why_of
from capsedge.runtime.session.masks import Mask, as_maps, level_of, map_classes, mask_of_image
from capsedge.runtime.session.predictions import (
    DEFAULT_THRESHOLD,
    Label,
    Prediction,
    RegressionValue,
    with_hints,
)
from capsedge.runtime.session.tensors import check_rows, shape_fits
from capsedge.spec.fields import UNKNOWN
from capsedge.spec.vocabularies import ESCALATED, POSES, REGRESSION, SEGMENTATION

_KINDS = {"lengths": "length", "logits": "logits"}


def choose_classes(
    scores: NDArray[np.float64], top_k: int | None, threshold: float | None
) -> list[int]:
    """Class numbers, best first, ties ascending: scores of at least ``threshold``, at most ``top_k``."""
    order = [int(j) for j in np.argsort(-scores, kind="stable")]
    if threshold is not None:
        order = [j for j in order if scores[j] >= threshold]
    return order[:top_k]


def _is_number(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


class OutputRoles:
    """The meaning of a model's outputs and of their values.

    Args:
        path: the file, for errors.
        image_input: image input of the model.
        metadata: what the file states; None for a file from another tool, whose outputs have a role by their
            names.
        inputs, outputs: inputs and outputs of the model.

    Attributes:
        scores: the output that decides the class; None if there is none, as for a regression.
        kind: kind of the scores: ``length``, ``logits`` or ``probability``; empty if there are none.
        poses: the output with a pose for each class; None if there is none.
        values: the outputs of a regression; empty for a classification.
        escalated: for a cascade, the output ``[N]`` that marks images decided by its large network; else
            None.
        all: the outputs that a prediction is made of.
        segmentation: whether the scores are maps, which make a mask.
        multi_label: whether an image may have any number of classes; also False if the file does not state
            it.

    Raises:
        ArtefactError: the metadata does not fit the graph.
    """

    def __init__(
        self,
        path: Path,
        image_input: ImageInput,
        metadata: ModelMetadata | None,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
    ) -> None:
        self._path, self._image_input = path, image_input
        try:
            named = _named_outputs(metadata, inputs, outputs)
        except _RolesError as error:
            raise ArtefactError(
                f"The metadata of {path} does not fit its graph.",
                str(error),
                "Export the model again with `capsedge export`, or correct its metadata with "
                "`capsedge optimize`.",
            ) from error
        self.scores, self.kind, self.poses = named.scores, named.kind, named.poses
        self.values, self.escalated = named.values, named.escalated
        self.multi_label = metadata is not None and metadata.task == "multi-label"
        self.segmentation = metadata is not None and metadata.task == SEGMENTATION
        self._names = () if metadata is None else metadata.class_names
        self._maps = named.maps
        self.all = tuple(named.all)

    def class_name(self, index: int) -> str:
        """The name of a class; its number if the file does not name classes."""
        return self._names[index] if self._names else str(index)

    def choice(self, top_k: int | None, threshold: float | None) -> tuple[int | None, float | None]:
        """The labels to choose: what is asked for, or the default of the task; none of a regression."""
        declared = self._image_input.metadata.outputs
        if declared is not None and declared.values:
            if top_k is not None or threshold is not None:
                raise UsageError(
                    f"{self._path} estimates {', '.join(declared.names[:8])}.",
                    "top_k and threshold choose among classes, but it has none.",
                    "Leave them out.",
                )
            return None, None
        if self.segmentation and top_k is not None:
            raise UsageError(
                f"{self._path} segments images.",
                "top_k chooses among the classes of an image, but each pixel has its own.",
                "Leave it out.",
            )
        if self.segmentation and threshold is not None and not self.one_map:
            raise UsageError(
                f"{self._path} gives each pixel one of {self._maps} classes.",
                "threshold decides whether a pixel is of a single class; here the largest score decides.",
                "Leave it out.",
            )
        if top_k is not None and not (_is_number(top_k, int, np.integer) and top_k >= 1):
            raise UsageError(
                f"top_k is {top_k!r}.",
                "It must be a whole number of at least 1.",
                "Leave it out for the best class only.",
            )
        if threshold is not None and not (
            _is_number(threshold, int, float, np.number) and 0 <= threshold <= 1
        ):
            raise UsageError(
                f"threshold is {threshold!r}.",
                "Scores go from 0 to 1.",
                "Use a number in this range.",
            )
        if self.segmentation:
            usual = DEFAULT_THRESHOLD if self.one_map else None
            return None, usual if threshold is None else threshold
        if top_k is None and threshold is None:
            return (None, DEFAULT_THRESHOLD) if self.multi_label else (1, None)
        return top_k, threshold

    def predictions(
        self,
        images: NDArray[Any],
        outputs: Mapping[str, NDArray[Any]],
        top_k: int | None = None,
        threshold: float | None = None,
        invert: bool = False,
        sizes: Sequence[Size] = (),
    ) -> list[Prediction]:
        """The predictions given by outputs of the model, as `Session.predict` returns them.

        Args:
            images: what was run, prepared: ``[N, C, H, W]`` in the model's layout.
            outputs: at least those of `all`, each ``[N, ...]``.
            invert: whether the images were inverted when they were prepared.
            sizes: height and width of each image, for its mask; left out, those of the input.

        Returns:
            One prediction per image.
        """
        top_k, threshold = self.choice(top_k, threshold)
        check_rows(self._path, outputs, len(images))
        metadata = self._image_input.metadata
        if metadata.outputs is not None and metadata.outputs.values:
            results = self._estimates(metadata.outputs, outputs)
        elif self.segmentation:
            results = self._masks(images, outputs, threshold, sizes)
        else:
            results = self._classified(metadata, outputs, top_k, threshold)
        return list(with_hints(results, images, metadata, invert))

    def estimates(self, outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The values of a regression ``[N, K]``, in the order of their names, from the model's outputs."""
        parts = [outputs[name].astype(np.float64) for name in self.values]
        rows = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        self._check_finite(", ".join(self.values), rows)
        declared = self._image_input.metadata.outputs
        if declared is None or rows.shape[1] != len(declared.names):
            raise self._other_size(rows.shape[1], len(declared.names) if declared else 0, "values")
        return rows

    def _estimates(
        self, declared: Outputs, outputs: Mapping[str, NDArray[Any]]
    ) -> Iterator[Prediction]:
        none = np.zeros(0), np.zeros((0, 0), np.float32)
        for row in self.estimates(outputs):
            named = zip(declared.names, row.tolist(), declared.units, strict=True)
            values = tuple(RegressionValue(name, value, unit) for name, value, unit in named)
            yield Prediction((), *none, "", values)

    def masks(
        self,
        outputs: Mapping[str, NDArray[Any]],
        sizes: Sequence[Size],
        threshold: float | None = None,
    ) -> list[Mask]:
        """The mask of each image, of its own size ``[H, W]``, from the outputs of a segmentation.

        Args:
            sizes: height and width of each image.
            threshold: the score of the only map from which a pixel is foreground; 0.5 by default.
        """
        assert self.scores is not None  # a segmentation has one
        raw = outputs[self.scores]
        self._check_finite(self.scores, raw)
        p = self._image_input.metadata.preprocessing
        layout = "NCHW" if p is None else p.layout
        count = map_classes(raw.shape[1:], layout) if raw.ndim in (3, 4) else 0
        if count != self._maps or 0 in raw.shape:
            raise self._other_size(int(count or 0), self._maps, "maps")
        if len(sizes) != len(raw):
            raise UsageError(
                f"There are {len(sizes)} sizes for {len(raw)} images.",
                "Each image has a height and a width.",
                "Pass one for each, or leave sizes out.",
            )
        level = level_of(DEFAULT_THRESHOLD if threshold is None else threshold, self.kind)
        return [
            mask_of_image(as_maps(one, layout), p, size, level)
            for one, size in zip(raw, sizes, strict=True)
        ]

    def input_masks(self, outputs: Mapping[str, NDArray[Any]]) -> list[Mask]:
        """The mask of each image in the size of the input, from the outputs of a segmentation."""
        p = self._image_input.metadata.preprocessing
        rows = len(outputs[self.scores or ""])
        return self.masks(outputs, [(0, 0) if p is None else (p.height, p.width)] * rows)

    @property
    def one_map(self) -> bool:
        """Whether the scores of a segmentation are of one class that is there or not."""
        return self._maps == 1

    @property
    def mask_classes(self) -> tuple[str, ...]:
        """The names of the classes in a mask, by number."""
        return tuple(map(self.class_name, range(max(2, self._maps))))

    def _masks(
        self,
        images: NDArray[Any],
        outputs: Mapping[str, NDArray[Any]],
        threshold: float | None,
        sizes: Sequence[Size],
    ) -> Iterator[Prediction]:
        p = self._image_input.metadata.preprocessing
        last = p is not None and p.layout == "NHWC"
        own = images.shape[1:3] if last else images.shape[2:]
        none = np.zeros(0), np.zeros((0, 0), np.float32)
        names = self.mask_classes
        for mask in self.masks(outputs, sizes or [(own[0], own[1])] * len(images), threshold):
            yield Prediction((), *none, "", mask=mask, mask_classes=names)

    def _classified(
        self,
        metadata: ModelMetadata,
        outputs: Mapping[str, NDArray[Any]],
        top_k: int | None,
        threshold: float | None,
    ) -> Iterator[Prediction]:
        assert self.scores is not None  # a classification has one
        raw = outputs[self.scores]
        self._check_finite(self.scores, raw)
        named = len(metadata.class_names)
        if raw.ndim != 2 or (named and raw.shape[1] != named):
            raise self._other_size(int(np.prod(raw.shape[1:])), named, "scores")
        scores, kind = scores_of(raw, self.kind, self.multi_label)
        none = np.zeros((*scores.shape, 0), np.float32)
        of_poses = none if self.poses is None else outputs[self.poses]
        if of_poses.shape[:2] != scores.shape:
            raise self._other_size(int(np.prod(of_poses.shape[1:2])), scores.shape[1], "poses")
        escalations: NDArray[Any] | list[None] = [None] * len(scores)
        if self.escalated is not None:
            escalations = outputs[self.escalated]
            if escalations.ndim != 1:
                raise self._other_size(
                    int(np.prod(escalations.shape[1:])), 1, "decisions of the cascade"
                )
        for row, poses, long in zip(scores, of_poses, escalations, strict=True):
            poses = poses.astype(np.float32).reshape(len(row), -1)
            labels = tuple(
                Label(self.class_name(j), j, float(row[j]), poses[j])
                for j in choose_classes(row, top_k, threshold)
            )
            escalated = None if long is None else bool(long)
            yield Prediction(labels, row, poses, kind, escalated=escalated)

    def _check_finite(self, name: str, values: NDArray[Any]) -> None:
        if np.isfinite(values).all():
            return
        what = f"{self._path} computed {name} that are NaN or infinite."
        if self._damaged:
            raise ArtefactError(
                what, f"So are weights in the file. {why_of(self._damaged)}", DIVERGED
            )
        raise ArtefactError(
            what,
            "The weights may be damaged, or their range too large for the file's precision.",
            "Run `capsedge verify` on the file.",
        )

    @cached_property
    def _damaged(self) -> list[NotFinite]:
        """Weights that are not finite; the file is searched only once something has gone wrong."""
        return find_not_finite_in(self._path)

    def _other_size(self, computed: int, named: int, what: str) -> ArtefactError:
        return ArtefactError(
            f"{self._path} computed {computed} {what} of an image.",
            f"Its metadata names {named}.",
            "Correct its metadata with `capsedge optimize`.",
        )


class _RolesError(ValueError):
    """The metadata of a file does not fit its graph; the message says why."""


@dataclass(frozen=True)
class _NamedOutputs:
    """Outputs by their role, as in `OutputRoles`."""

    scores: str | None = None
    kind: str = ""
    poses: str | None = None
    values: tuple[str, ...] = ()
    escalated: str | None = None
    maps: int = 0  # of the scores of a segmentation

    @property
    def all(self) -> list[str]:
        return [name for name in (self.scores, self.poses, *self.values, self.escalated) if name]


def _named_outputs(
    metadata: ModelMetadata | None, inputs: Sequence[Port], outputs: Sequence[Port]
) -> _NamedOutputs:
    """The outputs of a file by their role."""
    ports = {port.name: port for port in outputs}
    if metadata is None:
        return _by_name(ports)
    _check_input(metadata, inputs)
    names = ", ".join(ports)
    declared = metadata.outputs
    if declared is None:
        named = _by_name(ports)
        if len(set(SCORES) & set(ports)) != 1 or named.poses is None:
            raise _RolesError(f"It needs the outputs lengths or logits, and poses; it has {names}.")
    else:
        named = _NamedOutputs(
            declared.scores or None, declared.kind, declared.poses or None, declared.values
        )
        missing = [name for name in named.all if name not in ports]
        if missing:
            raise _RolesError(f"It names the output {missing[0]}; the graph has {names}.")
    if metadata.task == REGRESSION:
        _check_values(metadata, [ports[name] for name in named.values])
    elif metadata.task == SEGMENTATION:
        assert named.scores is not None  # ModelMetadata refuses a segmentation without
        named = replace(named, maps=_maps(metadata, ports[named.scores]))
    else:
        assert named.scores is not None  # both kinds of metadata have one
        poses = None if named.poses is None or declared is None else ports[named.poses]
        _check_classes(metadata, ports[named.scores], poses)
    return named if metadata.cascade is None else _of_cascade(named, ports)


def _of_cascade(outputs: _NamedOutputs, ports: dict[str, Port]) -> _NamedOutputs:
    port = ports.get(ESCALATED)
    if port is None or port.dtype != "bool" or len(port.shape) != 1:
        raise _RolesError(
            f"It states a cascade; the graph has no output {ESCALATED} [N] of type bool."
        )
    return replace(outputs, escalated=ESCALATED)


def _by_name(ports: dict[str, Port]) -> _NamedOutputs:
    scores = next(
        (n for n, port in ports.items() if n in SCORES and not shape_fault(n, port.shape[1:])), None
    )
    poses = POSES if POSES in ports else None
    return _NamedOutputs(scores, _KINDS.get(scores or "", ""), poses)


def _check_input(metadata: ModelMetadata, inputs: Sequence[Port]) -> None:
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        raise _RolesError(f"It has {len(inputs)} inputs, not one, images [N, C, H, W].")
    p, sizes = metadata.preprocessing, inputs[0].shape[1:]
    if p is not None and not shape_fits(p.shape, sizes):
        raise _RolesError(f"It prepares images {list(p.shape)} for an input {list(sizes)}.")


def _check_classes(metadata: ModelMetadata, scores: Port, poses: Port | None) -> None:
    count, sizes = len(metadata.class_names), scores.shape[1:]
    if shape_fault(scores.name, sizes, count) and (count or metadata.outputs is not None):
        raise _RolesError(f"It names {count} classes, {scores.name} has {list(sizes)}.")
    if poses is None:
        return
    classes = count or sizes[0]
    if len(poses.shape) < 3 or (
        isinstance(classes, int) and not shape_fits((classes,), poses.shape[1:2])
    ):
        raise _RolesError(f"{poses.name} has {list(poses.shape[1:])}, not a pose for each class.")


def _maps(metadata: ModelMetadata, scores: Port) -> int:
    """The number of maps of a segmentation."""
    p, sizes, named = metadata.preprocessing, scores.shape[1:], len(metadata.class_names)
    of = f"{scores.name} has {list(sizes)}"
    if len(sizes) not in (2, 3):
        raise _RolesError(f"A mask needs scores [H, W] or [maps, H, W], {of}.")
    count = map_classes(sizes, "NCHW" if p is None else p.layout)
    if not isinstance(count, int):
        count = named or 1
    if count > UNKNOWN:
        raise _RolesError(f"A mask has at most {UNKNOWN} classes, {of}.")
    if named and named != max(2, count):
        raise _RolesError(f"It names {named} classes, {of}, maps of {max(2, count)}.")
    return count


def _elements(port: Port) -> int | None:
    """Values of one image in an output; None if the file leaves it open."""
    sizes = port.shape[1:]
    return math.prod(s for s in sizes if isinstance(s, int)) if _fixed(sizes) else None


def _fixed(sizes: Sequence[int | str | None]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _check_values(metadata: ModelMetadata, ports: Sequence[Port]) -> None:
    assert metadata.outputs is not None  # ModelMetadata refuses a regression without
    named = len(metadata.outputs.names)
    counts = [_elements(port) for port in ports]
    known = sum(count for count in counts if count is not None)
    wrong = known > named if None in counts else known != named
    if wrong or not all(port.shape for port in ports):
        of = ", ".join(f"{port.name} {list(port.shape[1:])}" for port in ports)
        raise _RolesError(f"It names {named} values, the outputs have {of}.")
