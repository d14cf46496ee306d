"""Images made the input of a loaded model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.inputs import checked, stacked
from capsedge.runtime.metadata import ModelMetadata, Preprocessing
from capsedge.runtime.running import Runner
from capsedge.runtime.vision.given import Images, OneImage, Reading, on_host


def undescribed(model: Runner, lacking: str) -> ArtefactError:
    """What a file lacks for a prediction, and the command that adds it."""
    sizes = model.inputs[0].shape if model.inputs else ()
    size = sizes[1:3] if sizes[-1:] in ((1,), (3,)) else sizes[2:]
    fixed = len(size) == 2 and all(isinstance(side, int) for side in size)
    words = "x".join(map(str, size)) if fixed else "HEIGHTxWIDTH"
    command = f"capsedge optimize {shlex.quote(str(model.path))} -o described.onnx"
    return ArtefactError(
        f"{model.path} states {lacking}.",
        "Its metadata lacks them." if model.metadata else "It has no metadata of capsedge.",
        f"Describe it, for example: `{command} --classes labels.txt --size {words}`; for a regression "
        "--outputs in place of --classes; --range, --mean and --std as in training "
        "(docs/reference/metadata.md). In Python, `capsedge.optimize` takes the same, and `Session.run` "
        "prepared arrays.",
    )


class Preparing(Runner):
    """The part of a `Session` that prepares images by the file's own preprocessing."""

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
            raise undescribed(self, "no preprocessing: not how to prepare an image")
        return metadata.preprocessing

    def _metadata(self) -> ModelMetadata:
        if self.metadata is None:
            raise undescribed(self, "neither its classes nor its preprocessing")
        return self.metadata

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


def _floats(given: object) -> TypeGuard[NDArray[Any]]:
    """Whether it is an array that can be prepared already: of floats, of four dimensions."""
    return isinstance(given, np.ndarray) and given.ndim == 4 and given.dtype.kind == "f"
