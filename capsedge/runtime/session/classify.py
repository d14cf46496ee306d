"""Classify many image files and draw a sheet of reconstructions, for ``capsedge infer``."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.files.writing import write_bytes
from capsedge.runtime.images.decoding import SupportsRead
from capsedge.runtime.images.inputs import Size
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.scores import decision_warnings
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.session.output_roles import choose_classes
from capsedge.runtime.session.predictions import KEEP, Prediction
from capsedge.runtime.session.runner import run_size
from capsedge.runtime.session.session import Session
from capsedge.spec.fields import CONFIDENT

if TYPE_CHECKING:
    from capsedge.runtime.session.ensemble import (
        Ensemble,  # brings threads, which one model does not need
    )

GROUP = 32  # images per run


@dataclass
class Classified:
    """The result of every file.

    Attributes:
        files: the files, in the order of their numbers in the results.
        predictions: predictions by the number of the file.
        errors: errors of the files that could not be read, by number.
        warnings: reasons why the scores may be meaningless.
        drawn: the colour of each class on the sheet of reconstructions, by number and class.
    """

    files: list[Path]
    predictions: dict[int, Prediction] = field(default_factory=dict)
    errors: dict[int, UsageError] = field(default_factory=dict)
    drawn: dict[int, dict[int, str]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def escalated(self) -> float | None:
        """For a cascade, the share of the images that its large network decided; None for other models."""
        escalated = [p.escalated for p in self.predictions.values() if p.escalated is not None]
        return sum(escalated) / len(escalated) if escalated else None


def classify_files(
    model: Session | Ensemble,
    files: Sequence[Path],
    *,
    opened: Mapping[int, SupportsRead] | None = None,
    top_k: int | None = None,
    threshold: float | None = None,
    invert: bool = False,
    reconstruct: Path | None = None,
    failed: Callable[[UsageError], None] = lambda _: None,
    each: Callable[[int, Prediction], Prediction] | None = None,
    progress: Progress = silent,
) -> Classified:
    """Classify image files; a file that cannot be read does not stop the others.

    Args:
        opened: files that are open already, by number.
        reconstruct: PNG to write: the model's input, beside the decoder's picture of the requested classes;
            without ``top_k`` and ``threshold``, of up to two with a score of at least 0.5.
        failed: called with every error when it happens.
        each: called with the number and the prediction of every file; what it returns is kept in its place.
    """
    result = Classified(list(files))
    sheet: Sheet | None = None
    if reconstruct is not None:
        if isinstance(model, Session):
            model.can.check_reconstruct()
            sheet = Sheet(model, reconstruct, len(files), top_k is None and threshold is None)
        else:
            model.reconstruct(())  # an ensemble refuses: pictures belong to one network
    numbered = list(enumerate(files))
    for start in range(0, len(files), GROUP):
        batch: dict[int, tuple[NDArray[np.float32], Size]] = {}
        for number, file in numbered[start : start + GROUP]:
            try:
                source = (opened or {}).get(number, file)
                batch[number] = _prepared(model, source, invert)
            except UsageError as error:
                result.errors[number] = error
                failed(error)
        if batch:
            stacked = np.stack([image for image, _ in batch.values()])
            sizes = [size for _, size in batch.values()]
            predictions = model.predict(stacked, top_k, threshold, prepared=True, sizes=sizes)
            if invert:  # prepared floats do not show it
                predictions = [replace(p, hint=KEEP if p.hint else "") for p in predictions]
            kept = predictions if each is None else list(map(each, batch, predictions))
            result.predictions |= zip(batch, kept, strict=True)
            if sheet is not None:
                result.drawn |= zip(batch, sheet.draw(stacked, predictions), strict=True)
        progress("classifying", min(start + GROUP, len(files)), len(files))
    if sheet is not None:
        sheet.write()
    scores = [p.scores for p in result.predictions.values() if not p.mask_classes]
    result.warnings = tuple(decision_warnings(np.stack(scores))) if scores else ()
    return result


def _prepared(
    model: Session | Ensemble, source: object, invert: bool
) -> tuple[NDArray[np.float32], Size]:
    """An image as the model's input, and its own size; an ensemble makes no masks of that size."""
    if isinstance(model, Session):
        return model.image_input.reader(invert, prepared=False).sized(source)
    return model.prepare(source, invert), (0, 0)  # type: ignore[arg-type]


class Sheet:
    """A PNG with one row per image: the model's input, and the decoder's picture of some classes.

    Args:
        session: the session, which has a decoder.
        rows: largest number of images.
        active: whether the classes with high scores are drawn instead of those of the prediction.

    Raises:
        UsageError: the file cannot be such a sheet.
    """

    def __init__(self, session: Session, path: Path, rows: int, active: bool) -> None:

        check_sheet(path, rows)
        self._session, self._path, self._active = session, path, active
        self._rows: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []

    def draw(
        self, batch: NDArray[np.float32], predictions: Sequence[Prediction]
    ) -> list[dict[int, str]]:
        """Add one row per image of ``[n, C, H, W]``; returns the colour of each class drawn, by image."""

        metadata = self._session.metadata
        assert metadata is not None  # predict refuses other files
        assert metadata.preprocessing is not None
        drawn: list[dict[int, str]] = []
        pictures = self._session.reconstruct(batch, prepared=True)
        for prediction, prepared, picture in zip(predictions, batch, pictures, strict=True):
            classes = [label.index for label in prediction.labels][: len(COLOURS)]
            if self._active:
                active = choose_classes(prediction.scores, 2, CONFIDENT)
                classes = active if len(active) > 1 else classes
            classes = classes or choose_classes(prediction.scores, 1, None)
            colours = ["own"] if len(classes) == 1 else list(COLOURS)
            drawn.append(dict(zip(classes, colours, strict=False)))
            self._rows.append(
                (
                    input_picture(prepared, metadata.preprocessing),
                    blend_class_pictures(picture, classes),
                )
            )
        return drawn

    def write(self) -> None:
        """Write the sheet, if it has a row. Raises UsageError if it cannot be written there."""

        if self._rows:
            write_sheet(self._path, self._rows)


# --- The contact sheet: inputs, and the pictures of their most active capsules ---

# Red and green are those of the MultiMNIST figure in Sabour et al. 2017; pixels where both digits have
# ink are yellow.
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.2, 0.3, 1.0),
    "magenta": (1.0, 0.0, 1.0),
    "cyan": (0.0, 1.0, 1.0),
    "orange": (1.0, 0.5, 0.0),
}
MAX_ROWS = 100
_GAP = (64, 64, 64)
_SIDE = 224  # pictures are enlarged to at most this many pixels, and at least half of it


def input_picture(prepared: NDArray[np.float32], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """The prepared input as pixels ``[H, W, 3]``; scaled by its own range if standardized by itself."""
    if preprocessing.layout == "NHWC":
        prepared = prepared.transpose(2, 0, 1)
    if preprocessing.per_image == "standardize":
        low, high = prepared.min(), prepared.max()
        pixels = (prepared - low) / (high - low if high > low else 1.0)
    else:
        mean, std = (np.reshape(v, (-1, 1, 1)) for v in (preprocessing.mean, preprocessing.std))
        pixels = (prepared * std + mean) / preprocessing.scale / 255.0
    return _pixels(pixels[::-1] if preprocessing.order == "BGR" else pixels)


def blend_class_pictures(
    pictures: NDArray[np.float32], classes: Sequence[int]
) -> NDArray[np.uint8]:
    """The pictures of some classes in one: a single class in its own colours, several in one colour each.

    Args:
        pictures: ``[J, C, H, W]``, values 0..1.
        classes: best first, at most as many as there are `COLOURS`.

    Returns:
        ``[H, W, 3]``.
    """
    if len(classes) == 1:
        return _pixels(pictures[classes[0]])
    total = np.zeros((3, *pictures.shape[2:]))
    for index, colour in zip(classes, COLOURS.values(), strict=False):
        ink = np.clip(pictures[index], 0.0, 1.0).mean(axis=0)
        total += np.reshape(colour, (3, 1, 1)) * ink
    return _pixels(total)


def _pixels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """``[C, H, W]`` of 0..1 as ``[H, W, 3]``; any other number of channels is shown in grey."""
    if len(values) != 3:
        values = np.repeat(values.mean(axis=0, keepdims=True), 3, axis=0)
    pixels: NDArray[np.uint8] = np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8)
    return pixels.transpose(1, 2, 0)


def check_sheet(target: Path | str, rows: int) -> None:
    """Raise a UsageError if a sheet with this many rows cannot be written to that file."""
    if Path(target).suffix.lower() != ".png":
        raise UsageError(f"Cannot write {target}.", "The picture is a PNG file.", "Name it *.png.")
    if rows > MAX_ROWS:
        raise UsageError(
            f"{rows} reconstructions do not fit into one picture.",
            f"A picture holds {MAX_ROWS}.",
            "Pass fewer images with --reconstruct.",
        )


def write_sheet(
    target: Path | str, rows: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]]
) -> None:
    """Write a PNG with one row per image: the model's input left, the decoder's picture right."""
    check_sheet(target, len(rows))
    from PIL import Image

    lines: list[NDArray[np.uint8]] = []
    for left, right in rows:
        left, right = _enlarged(left), _enlarged(right)
        height = max(len(left), len(right))
        gap = np.full((height, 4, 3), _GAP, np.uint8)
        line = np.concatenate([_filled(left, height), gap, _filled(right, height)], axis=1)
        if lines:
            lines.append(np.full((4, line.shape[1], 3), _GAP, np.uint8))
        lines.append(line)
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(lines)).save(buffer, "PNG")
    write_bytes(target, buffer.getvalue())


def _enlarged(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    times = max(1, _SIDE // max(picture.shape[:2]))
    return picture.repeat(times, axis=0).repeat(times, axis=1)


def _filled(picture: NDArray[np.uint8], height: int) -> NDArray[np.uint8]:
    result = np.zeros((height, *picture.shape[1:]), np.uint8)
    result[: len(picture)] = picture
    return result


# --- Arrays ---


def run_rows(
    session: Session, arrays: Mapping[str, NDArray[Any]], batch_size: int | None = None
) -> dict[str, NDArray[Any]]:
    """Every output for every row.

    Args:
        arrays: all inputs by name, ``[n, ...]`` each; whole numbers are cast to the input's type if it holds
            them.
        batch_size: rows per run; None for 64. A file with a fixed batch uses that, and its last run is filled
            up.

    Returns:
        The outputs by name, ``[n, ...]``.
    """
    inputs = {port.name: _cast(arrays[port.name], port.dtype) for port in session.inputs}
    counts = {name: len(x) if x.ndim else 0 for name, x in inputs.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        sizes = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(
            "The inputs do not have the same number of rows, or have none.",
            f"Rows: {sizes}.",
            "Pass one row of each input for every sample.",
        )
    rows = next(iter(counts.values()))
    size = run_size(session.backend.batches, batch_size)
    runs: list[dict[str, NDArray[Any]]] = []
    for start in range(0, rows, size):
        at = np.arange(start, min(start + size, rows))
        filled = np.resize(at, max(len(at), session.backend.batches.smallest))
        outputs = session.run({name: x[filled] for name, x in inputs.items()})
        runs.append({name: value[: len(at)] for name, value in outputs.items()})
    return {name: np.concatenate([part[name] for part in runs]) for name in runs[0]}


def _cast(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert numbers of the same kind to the type of an input; `Session.run` refuses any others."""
    kinds = {"f": "f", "i": "iu", "u": "iu"}.get(np.dtype(dtype).kind, "")
    if array.dtype.kind not in kinds:
        return array
    cast = array.astype(dtype, copy=False)
    return cast if array.dtype.kind == "f" or np.array_equal(cast, array) else array
