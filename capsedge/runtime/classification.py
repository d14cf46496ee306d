"""Classifying many image files, with a sheet of reconstructions: ``capsedge infer``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.files import opening
from capsedge.runtime.predictions import KEEP, Prediction, Predictor, choose
from capsedge.runtime.scores import answer_doubts
from capsedge.runtime.session import Session
from capsedge.runtime.vision.decoding import SupportsRead
from capsedge.runtime.vision.inputs import folder_images

GROUP = 32  # images per run
_ACTIVE = 0.5  # a second capsule is drawn from this score on


@dataclass
class Classified:
    """The result of every file.

    Attributes:
        files: the files, in the order of their numbers in the results.
        predictions: by the number of the file.
        errors: errors of the files that could not be read, by number.
        warnings: why the scores may say nothing.
        drawn: the colour of each class on the sheet of reconstructions, by number and class.
    """

    files: list[Path]
    predictions: dict[int, Prediction] = field(default_factory=dict)
    errors: dict[int, UsageError] = field(default_factory=dict)
    drawn: dict[int, dict[int, str]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def long_way(self) -> float | None:
        """Of a cascade, the share of the images that its large network decided; None for other models."""
        taken = [p.long_way for p in self.predictions.values() if p.long_way is not None]
        return sum(taken) / len(taken) if taken else None


def image_files(names: Sequence[Path]) -> list[Path]:
    """The named files; for a folder its images, sorted by name.

    Raises:
        UsageError: a folder has no images, or cannot be read.
    """
    files: list[Path] = []
    for name in names:
        files += folder_images(name) if opening.kind(name) == opening.FOLDER else [name]
    return files


def classify_files(
    model: Predictor,
    files: Sequence[Path],
    *,
    opened: Mapping[int, SupportsRead] | None = None,
    top_k: int | None = None,
    threshold: float | None = None,
    invert: bool = False,
    reconstruct: Path | None = None,
    failed: Callable[[UsageError], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Classified:
    """Classify image files; a file that cannot be read does not stop the others.

    Args:
        model: a session or an ensemble.
        opened: files that are open already, by number.
        top_k, threshold, invert: as for `Session.predict`.
        reconstruct: PNG to write: the model's input, beside the decoder's picture of the requested classes;
            without ``top_k`` and ``threshold``, of up to two with a score of at least 0.5.
        failed: called with every error when it happens.
        progress: called with (files done, total files).

    Raises:
        UsageError: an argument is wrong, or the model cannot reconstruct, as no ensemble can.
        ArtefactError: the model was not made by capsedge.
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
        batch: dict[int, NDArray[np.float32]] = {}
        for number, file in numbered[start : start + GROUP]:
            try:
                given = (opened or {}).get(number, file)
                batch[number] = model.prepare(given, invert)
            except UsageError as error:
                result.errors[number] = error
                failed(error)
        if batch:
            stacked = np.stack(list(batch.values()))
            predictions = model.predict(stacked, top_k, threshold, prepared=True)
            if invert:  # prepared floats do not show it
                predictions = [replace(p, hint=KEEP if p.hint else "") for p in predictions]
            result.predictions |= zip(batch, predictions, strict=True)
            if sheet is not None:
                result.drawn |= zip(batch, sheet.draw(stacked, predictions), strict=True)
        progress(min(start + GROUP, len(files)), len(files))
    if sheet is not None:
        sheet.write()
    found = [prediction.scores for prediction in result.predictions.values()]
    result.warnings = tuple(answer_doubts(np.stack(found))) if found else ()
    return result


class Sheet:
    """A PNG with one row per image: the model's input, and the decoder's picture of some classes.

    Args:
        session: the session, which has a decoder.
        path: the file.
        rows: largest number of images.
        active: whether the classes with high scores are drawn instead of those of the prediction.

    Raises:
        UsageError: the file cannot be such a sheet.
    """

    def __init__(self, session: Session, path: Path, rows: int, active: bool) -> None:
        from capsedge.runtime.vision.pictures import check_sheet

        check_sheet(path, rows)
        self._session, self._path, self._active = session, path, active
        self._rows: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []

    def draw(
        self, batch: NDArray[np.float32], predictions: Sequence[Prediction]
    ) -> list[dict[int, str]]:
        """Add one row per image of ``[n, C, H, W]``; returns the colour of each class drawn, by image."""
        from capsedge.runtime.vision.pictures import COLOURS, overlay, seen

        metadata = self._session.metadata
        assert metadata is not None  # predict refuses other files
        assert metadata.preprocessing is not None
        drawn: list[dict[int, str]] = []
        pictures = self._session.reconstruct(batch, prepared=True)
        for prediction, prepared, picture in zip(predictions, batch, pictures, strict=True):
            classes = [label.index for label in prediction.labels][: len(COLOURS)]
            if self._active:
                active = choose(prediction.scores, 2, _ACTIVE)
                classes = active if len(active) > 1 else classes
            classes = classes or choose(prediction.scores, 1, None)
            colours = ["own"] if len(classes) == 1 else list(COLOURS)
            drawn.append(dict(zip(classes, colours, strict=False)))
            self._rows.append((seen(prepared, metadata.preprocessing), overlay(picture, classes)))
        return drawn

    def write(self) -> None:
        """Write the sheet, if it has a row.

        Raises:
            UsageError: it cannot be written there.
        """
        from capsedge.runtime.vision.pictures import write_sheet

        if self._rows:
            write_sheet(self._path, self._rows)
