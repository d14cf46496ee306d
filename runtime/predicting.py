"""Predictions for images of any kind: what a session and an ensemble offer alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from capsedge.runtime.vision.given import Images
from capsedge.runtime.vision.prediction import Prediction


class Predictor(ABC):
    """What predicts, all images at once or one after another."""

    def predict(
        self,
        images: Images,
        top_k: int | None = None,
        threshold: float | None = None,
        invert: bool = False,
        *,
        layout: str | None = None,
        prepared: bool | None = None,
        batch_size: int | None = None,
    ) -> list[Prediction]:
        """Classify images, or compute the values of a regression. ``session(images)`` is the same.

        Args:
            images: one image: an image file (a path, its bytes, or open), a Pillow image, or an array of
                numpy, torch or any library with ``__array__`` or DLPack; an array of several; a folder; or an
                iterable of all these, of which one batch at a time is in memory. Arrays are pixels
                ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, several with ``N`` in front, of uint8, uint16,
                bool, or floats from 0 to 1, in any size; or floats ``[N, C, H, W]`` prepared as for `run`.
            top_k: largest number of labels. Without it and without a threshold: the best label, or for a
                multi-label model those with a score of at least 0.5.
            threshold: only labels with at least this score.
            invert: for dark ink on a light background.
            layout: the axes of arrays: ``HW``, ``HWC`` or ``CHW``, or the same with ``N`` in front; needed
                where a shape can be read in two ways.
            prepared: True for floats that are the model's input already, False for pixels; needed where
                floats in the model's size can be both.
            batch_size: most images per run; None for 64. A file with a fixed batch uses that one.

        Returns:
            One prediction per image.

        Raises:
            UsageError: an image cannot be read, does not fit or can be read in two ways, its values are out
                of range, or an argument is wrong.
            ArtefactError: the file does not state its classes and its preprocessing, or computes NaN.
        """
        reading = {"layout": layout, "prepared": prepared}
        return list(self._predictions(images, top_k, threshold, invert, batch_size, **reading))

    __call__ = predict

    def stream(
        self,
        images: Images,
        top_k: int | None = None,
        threshold: float | None = None,
        invert: bool = False,
        *,
        layout: str | None = None,
        prepared: bool | None = None,
        batch_size: int = 1,
    ) -> Iterator[Prediction]:
        """The predictions of `predict` one after another, each as soon as its batch is read.

        Args:
            images: as for `predict`; an iterable may be endless, such as the frames of a camera.
            top_k, threshold, invert, layout, prepared: as for `predict`.
            batch_size: images that are read before their predictions come; more are faster.

        Raises:
            UsageError, ArtefactError: as `predict`; for wrong arguments at once, otherwise where an image is
                reached.
        """
        reading = {"layout": layout, "prepared": prepared}
        return self._predictions(images, top_k, threshold, invert, batch_size, **reading)

    @abstractmethod
    def _predictions(
        self,
        images: Images,
        top_k: int | None,
        threshold: float | None,
        invert: bool,
        batch_size: int | None,
        **reading: Any,
    ) -> Iterator[Prediction]:
        """The predictions, one after another; wrong arguments are refused at once.

        Args:
            reading: ``layout`` and ``prepared``.
        """
