"""What a `Session` and an `Ensemble` share: predictions of images."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.images.inputs import Images, OneImage, Size
from capsedge.runtime.result_summary import Summarized
from capsedge.runtime.session.predictions import Prediction
from capsedge.runtime.session.runner import run_size

if TYPE_CHECKING:
    from typing_extensions import Self

    from capsedge.runtime.session.session import Session

Batch = TypeVar("Batch")


class ImageOptions(NamedTuple):
    """How images are read; as for `LoadedModel.predict`."""

    invert: bool
    layout: str | None
    prepared: bool | None
    note: Callable[[Size], None] | None = None  # called with the size of each image in turn


class LoadedModel(Summarized, Generic[Batch]):
    """A model, or several as one, that predicts. ``Batch`` is what one run takes."""

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Free what is loaded; calls in progress are not affected. A second call does nothing."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @property
    @abstractmethod
    def sessions(self) -> tuple[Session, ...]:
        """The session itself, or the members of an ensemble."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the file, or the names of the members' files, for titles."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(session.path for session in self.sessions)

    @property
    def ops(self) -> str:
        """As `Backend.ops`, if it is the same for all members; otherwise ``mixed``."""
        kinds = {session.backend.ops for session in self.sessions}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def class_name(self, index: int) -> str:
        """The name of a class; its number if the file does not name classes."""
        return self.sessions[0].roles.class_name(index)

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
        sizes: Sequence[Size] | None = None,
    ) -> list[Prediction]:
        """Classify or segment images, or compute the values of a regression. ``model(images)`` is the same.

        An ensemble gives the mean of its members' predictions.

        Args:
            images: one image: an image file (a path, its bytes, or open), a Pillow image, or an array of
                numpy, torch or any library with ``__array__`` or DLPack; an array of several; a folder; or an
                iterable of all these, of which one batch at a time is in memory. Arrays are pixels
                ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, several with ``N`` in front, of uint8, uint16,
                bool, or floats from 0 to 1, in any size; or floats ``[N, C, H, W]`` prepared as for
                `Session.run`.
            top_k: maximum number of labels. Without it and without a threshold: the best label, or for a
                multi-label model those with a score of at least 0.5.
            threshold: only labels with at least this score; for a mask of one class, the score from which a
                pixel belongs to it, 0.5 by default.
            invert: for dark ink on a light background.
            layout: the axes of arrays: ``HW``, ``HWC`` or ``CHW``, or the same with ``N`` in front; required
                if a shape is ambiguous.
            prepared: True for floats that already are the model's input, False for pixels; required if floats
                of the model's size could be either.
            batch_size: maximum number of images per run; None for 64. A file with a fixed batch uses that
                size.
            sizes: height and width of each image, for masks of images that are prepared already; otherwise
                their masks have the size of the input.

        Returns:
            One prediction per image.

        Raises:
            UsageError: an image cannot be read, does not fit or is ambiguous, its values are out of range, or
                an argument is wrong.
            ArtefactError: the file does not state its classes and its preprocessing, or computes NaN.
        """
        options = ImageOptions(invert, layout, prepared)
        return list(self._predictions(images, top_k, threshold, options, batch_size, sizes or ()))

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
            batch_size: number of images that are read before their predictions are returned; more is faster.

        Raises:
            UsageError, ArtefactError: as `predict`; wrong arguments raise at once, wrong images when they are
                reached.
        """
        options = ImageOptions(invert, layout, prepared)
        return self._predictions(images, top_k, threshold, options, batch_size)

    def prepare(
        self, image: OneImage, invert: bool = False, *, layout: str | None = None
    ) -> NDArray[np.float32]:
        """The model's input ``[C, H, W]`` for one image, by the file's own preprocessing; for an ensemble
        that of each member, ``[M, C, H, W]``.

        Args:
            image, invert, layout: as for `predict`; an array of floats holds pixels from 0 to 1.

        Raises:
            UsageError: the image cannot be read or does not fit, or there are several.
            ArtefactError: the file does not state the preprocessing.
        """
        return self._prepared(image, ImageOptions(invert, layout, prepared=False))

    def _predictions(
        self,
        images: Images,
        top_k: int | None,
        threshold: float | None,
        options: ImageOptions,
        batch_size: int | None,
        known: Sequence[Size] = (),
    ) -> Iterator[Prediction]:
        """The predictions; wrong arguments are refused at once."""
        top_k, threshold = self.sessions[0].roles.choice(top_k, threshold)
        sizes = deque(known)
        options = options._replace(note=None if known else sizes.append)
        batches = self._read(images, batch_size, options)
        return chain.from_iterable(
            self._predicted(batch, top_k, threshold, options.invert, sizes) for batch in batches
        )

    def _read(
        self, images: Images, batch_size: int | None, options: ImageOptions
    ) -> Iterator[Batch]:
        """Prepared batches, as large as a run of every member takes."""
        size = min(run_size(session.backend.batches, batch_size) for session in self.sessions)
        self._check_open()
        return self._batches(images, size, options)

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse to work after `close`."""

    @abstractmethod
    def _prepared(self, image: OneImage, options: ImageOptions) -> NDArray[np.float32]:
        """As `prepare`."""

    @abstractmethod
    def _batches(self, images: Images, size: int, options: ImageOptions) -> Iterator[Batch]:
        """Prepared batches of at most ``size`` images; wrong arguments are refused at once."""

    @abstractmethod
    def _predicted(
        self,
        batch: Batch,
        top_k: int | None,
        threshold: float | None,
        invert: bool,
        sizes: deque[Size],
    ) -> Iterator[Prediction]:
        """The predictions of a batch, with the labels of an `OutputRoles.choice`.

        Args:
            sizes: height and width of each image, which are taken from its left; empty if they are those of
                the input.
        """
