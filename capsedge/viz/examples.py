"""Prepare the images of a picture for the model and for display, with the model's predictions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files import reading as opening
from capsedge.runtime.images.inputs import ImageReader, Images, folder_images
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.session.classify import input_picture
from capsedge.runtime.session.predictions import Prediction
from capsedge.runtime.session.session import Session
from capsedge.spec.vocabularies import SEGMENTATION

MOST_IMAGES = 12  # rows at which a picture is still readable
MOST_CLASSES = 10


@dataclass(frozen=True, eq=False)
class Examples:
    """Images of one picture.

    Attributes:
        names: names of the images.
        inputs: ``[N, C, H, W]`` as the model takes them.
        pixels: ``[N, H, W, 3]`` as displayed.
        predictions: one per image.
        notes: states which images are omitted.
    """

    names: tuple[str, ...]
    inputs: NDArray[np.float32]
    pixels: NDArray[np.uint8]
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)


def read_examples(
    session: Session, images: Images, invert: bool = False, most: int = MOST_IMAGES
) -> Examples:
    """Read and classify, or segment, the images of a picture.

    Args:
        most: maximum number of images that the picture shows.
    """
    source = _one_by_one(images)
    reader = ImageReader(preprocessing_of(session), invert)
    prepared = list(islice(reader.images(source), most + 1))
    if not prepared:
        raise UsageError("There are no images to show.", "", "Pass at least one.")
    listed = source if isinstance(source, (list, tuple)) and len(source) >= len(prepared) else ()
    names = [_name(listed[n] if listed else None, n) for n in range(len(prepared))]
    left_out = f"Only the first {most} images are shown."
    inputs = np.stack(prepared[:most]).astype(np.float32, copy=False)
    top = None if session.roles.segmentation else 1
    return Examples(
        tuple(names[:most]),
        inputs,
        shown(session, inputs),
        tuple(session.predict(inputs, top_k=top, prepared=True)),
        (left_out,) if len(prepared) > most else (),
    )


def shown(session: Session, inputs: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Prepared images ``[N, C, H, W]`` as pixels ``[N, H, W, 3]``."""
    preprocessing = preprocessing_of(session)
    return np.stack([input_picture(image, preprocessing) for image in inputs])


def preprocessing_of(session: Session) -> Preprocessing:
    """How the model's images are prepared."""
    metadata = session.metadata
    if metadata is not None and metadata.task != SEGMENTATION:
        session.can.check_classes()
    if metadata is None or metadata.preprocessing is None:
        raise session.image_input.undescribed("no preprocessing: not how to show its input")
    return metadata.preprocessing


def check_drawable(session: Session, what: str, values: NDArray[np.floating[Any]]) -> None:
    """Raise an ArtefactError if a model computed values that cannot be drawn: NaN or infinity."""
    if not np.isfinite(values).all():
        raise ArtefactError(
            f"{session.path} computed {what} that are NaN or infinite.",
            "The weights may be damaged, or their range too large for the file's precision.",
            "Run `capsedge verify` on the file.",
        )


def class_index(session: Session, text: str, count: int) -> int:
    """The number of a class from its name or number."""
    names = [session.class_name(j) for j in range(count)]
    if text in names:
        return names.index(text)
    if text.isascii() and text.isdigit() and int(text) < count:
        return int(text)
    raise UsageError(
        f"The model has no class '{text}'.",
        f"Its classes: {', '.join(names[:12])}{', ...' if count > 12 else ''}.",
        "Choose one of them, or its number, counted from 0.",
    )


def class_names(session: Session, classes: Iterable[int]) -> list[str]:
    """The names of some classes."""
    return [session.class_name(int(j)) for j in classes]


def best_classes(scores: NDArray[np.float64], count: int) -> list[int]:
    """The numbers of the classes with the highest scores, best first."""
    return [int(j) for j in np.argsort(-scores, kind="stable")[:count]]


def _one_by_one(images: Images) -> object:
    """A file or a folder as a list of files; anything else unchanged."""
    if not isinstance(images, (str, os.PathLike)):
        return images
    path = Path(images)
    return folder_images(path) if opening.path_kind(path) == opening.FOLDER else [path]


def _name(item: object, number: int) -> str:
    return Path(item).name if isinstance(item, (str, os.PathLike)) else f"image {number + 1}"


def score_name(session: Session) -> str:
    """What a score is. EM routing's, stored as the length of a capsule, is called an activation."""
    metadata = session.metadata
    em = metadata is not None and metadata.routing == "em"
    return "activation" if em and session.roles.kind == "length" else session.roles.kind
