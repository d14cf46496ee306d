"""The images that a caller gives, of any kind, as the input of a model."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, ShapeError, UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.files import reading
from capsedge.runtime.images.decoding import (
    SupportsRead,
    is_encoded,
    is_pillow,
    is_stream,
    name_of_open_file,
    stream_bytes,
)
from capsedge.runtime.images.headers import SUFFIXES, is_image_name
from capsedge.runtime.images.preprocessing import (
    KINDS,
    check_layout,
    describe_non_image,
    pixel_batch,
    sized,
)
from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing
from capsedge.runtime.session.tensors import (
    LARGEST,
    AnyArray,
    as_array,
    checked_input,
    stack_images,
)

if TYPE_CHECKING:
    from PIL.Image import Image

OneImage: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | SupportsRead | Image | AnyArray"
)
Images: TypeAlias = "OneImage | Iterable[OneImage]"

Floats = NDArray[np.floating[Any]]
Size = tuple[int, int]  # height and width of an image
_SLACK = 1e-3  # share of the declared range, to allow for rounding and overshooting interpolation


def folder_images(folder: Path) -> list[Path]:
    """The images of a folder, sorted by name."""
    names = [name for name in reading.list_folder(folder) if is_image_name(name)]
    if not names:
        raise UsageError(
            f"The folder {folder} has no images.",
            f"Images are files named *{', *'.join(SUFFIXES)}; subfolders are not searched.",
            "Pass a folder with images.",
        )
    return [folder / name for name in names]


@dataclass(frozen=True)
class ImageReader:
    """How images become the input of a model.

    Attributes:
        preprocessing: preprocessing of the model.
        invert: for dark ink on a light background.
        layout: axes of arrays, such as ``NCHW``; None infers them from the shape.
        prepared: whether floats already are the model's input; None infers it from shape and values.
    """

    preprocessing: Preprocessing
    invert: bool = False
    layout: str | None = None
    prepared: bool | None = None

    def __post_init__(self) -> None:
        check_layout(self.layout)
        if self.prepared and self.invert:
            raise UsageError(
                "Prepared arrays cannot be inverted.",
                "invert works on pixels, before the model's preprocessing.",
                "Pass pixels as uint8, or as floats from 0 to 1 with prepared=False.",
            )

    def images(self, source: object) -> Iterator[Floats]:
        """Every image as the model's input ``[C, H, W]``, in its layout; read one by one.

        Args:
            source: `Images`: one image (a path, the bytes of a file, an open binary file, a Pillow image, an
                array), a folder, an array of several images, or an iterable of any of these.
        """
        return (image for image, _ in self.sized_images(source))

    def sized_images(self, source: object) -> Iterator[tuple[Floats, Size]]:
        """As `images`, each with the size of the image itself; of prepared floats that is their own."""
        count = 0
        for item in _items(source):
            for image in self._read(item, f"image {count}", count):
                yield image
                count += 1

    def batch(self, source: object) -> Floats | None:
        """An array that already is the model's input, ``[N, C, H, W]`` in its layout; None for others."""
        return self._as_prepared(source, "the array") if isinstance(source, np.ndarray) else None

    def one(self, source: object) -> NDArray[np.float32]:
        """A single image as the model's input ``[C, H, W]``, in its layout."""
        return only(self.images(source))

    def sized(self, source: object) -> tuple[NDArray[np.float32], Size]:
        """As `one`, with the size of the image itself."""
        noted: list[Size] = []
        image = only(_noting(self.sized_images(source), noted.append))
        return image, noted[0]

    def _read(self, item: object, name: str, number: int) -> Iterator[tuple[Floats, Size]]:
        item = on_host(item, name)
        if not isinstance(item, np.ndarray):
            if not _is_file(item):
                raise _refused(item, name)
            yield sized(item, self.preprocessing, self.invert, name)
            return
        ready = self._as_prepared(item, name)
        if ready is not None:
            own = self.preprocessing.height, self.preprocessing.width
            yield from ((image, own) for image in ready)
            return
        batch = pixel_batch(item, self.preprocessing, self.layout, name)
        for k, pixels in enumerate(batch):
            yield sized(pixels, self.preprocessing, self.invert, f"image {number + k}")

    def _as_prepared(self, array: NDArray[Any], name: str) -> Floats | None:
        """``[N, C, H, W]`` in the model's layout, if the array holds prepared floats."""
        p = self.preprocessing
        own = self._to_model_layout(array)
        if self.prepared:
            if own is None:
                raise ShapeError(
                    f"{name} has the shape {list(array.shape)} and the type {array.dtype}.",
                    f"Prepared, it is floats {list(p.shape)}, or several of them.",
                    "Prepare images with Session.prepare, or pass pixels without prepared=True.",
                )
            _check_declared(own, p, name)
            return own
        if own is None or self.prepared is False or (self.invert and _plain(p)):
            return None
        if not _plain(p) and own.size and own.min() >= 0 and own.max() <= 1:
            low, high = declared_range(p)
            raise UsageError(
                f"{name} could be pixels or a prepared input.",
                f"Its values go from {own.min():g} to {own.max():g}: pixels from 0 to 1, or values of the "
                f"model's input, which go from {low:g} to {high:g}.",
                "Set prepared=False for pixels, or prepared=True for the model's input.",
            )
        if self.invert:
            raise UsageError(
                "Prepared arrays cannot be inverted.",
                "invert works on pixels, before the model's preprocessing.",
                "Pass pixels as uint8 [N, H, W, C].",
            )
        _check_declared(own, p, name)
        return own

    def _to_model_layout(self, array: NDArray[Any]) -> Floats | None:
        """Floats in the model's size as ``[N, C, H, W]`` in its layout; None for other arrays."""
        if array.dtype.kind != "f" or array.ndim not in (3, 4):
            return None
        p = self.preprocessing
        own = "CHW" if p.layout == "NCHW" else "HWC"
        declared = own if self.layout is None else self.layout.removeprefix("N")
        if declared != own and {declared, own} == {"CHW", "HWC"} and self.prepared:
            array = np.moveaxis(array, *((-3, -1) if declared == "CHW" else (-1, -3)))
        elif declared != own:
            return None
        if array.shape[-3:] != p.shape:
            return None
        return array if array.ndim == 4 else array[None]


class ImageInput:
    """The images that a model takes, and how they become its input.

    Args:
        path: the file, for errors.
        metadata: what it states of its model; None for a file from another tool.
        inputs: inputs of the model; a file with metadata has one.
    """

    def __init__(self, path: Path, metadata: ModelMetadata | None, inputs: Sequence[Port]) -> None:
        self._path, self._metadata, self._inputs = path, metadata, inputs

    @property
    def metadata(self) -> ModelMetadata:
        """What the file states."""
        if self._metadata is None:
            raise self.undescribed("neither its classes nor its preprocessing")
        return self._metadata

    @property
    def preprocessing(self) -> Preprocessing:
        """How an image becomes the input. Raises ArtefactError if the file does not state it."""
        declared = self.metadata.preprocessing
        if declared is None:
            raise self.undescribed("no preprocessing, so images cannot be prepared for it")
        return declared

    def undescribed(self, lacking: str) -> ArtefactError:
        """The error for what the file does not state, with the command that adds it."""
        sizes = self._inputs[0].shape if self._inputs else ()
        size = sizes[1:3] if sizes[-1:] in ((1,), (3,)) else sizes[2:]
        fixed = len(size) == 2 and all(isinstance(side, int) for side in size)
        words = "x".join(map(str, size)) if fixed else "HEIGHTxWIDTH"
        command = f"capsedge optimize {shlex.quote(str(self._path))} -o described.onnx"
        return ArtefactError(
            f"{self._path} states {lacking}.",
            "Its metadata lacks them." if self._metadata else "It has no metadata of capsedge.",
            f"Describe it, for example: `{command} --classes labels.txt --size {words}`; for a "
            "regression, use --describe outputs=yaw,pitch in place of --classes; set --range, --mean and "
            "--std as in training (docs/reference/metadata.md). In Python, `capsedge.optimize` takes them as "
            "`description`, and `Session.run` takes prepared arrays.",
        )

    def reader(
        self, invert: bool = False, layout: str | None = None, prepared: bool | None = None
    ) -> ImageReader:
        """Reads images by the preprocessing of the file."""
        return ImageReader(self.preprocessing, invert, layout, prepared)

    def batches(
        self,
        images: Images,
        size: int,
        invert: bool = False,
        layout: str | None = None,
        prepared: bool | None = None,
        note: Callable[[Size], None] | None = None,
    ) -> Iterator[NDArray[Any]]:
        """Prepared batches ``[n, C, H, W]`` of at most ``size`` images.

        Args:
            images, invert, layout, prepared: as for `Session.predict`. Without preprocessing in the file,
                floats ``[N, C, H, W]`` are used unchanged.
            note: called with the size of each image in turn, before its batch; not for arrays that are
                prepared.
        """
        source = on_host(images)
        declared = self.metadata.preprocessing is not None or invert or prepared is False
        arrays: NDArray[Any] | Iterator[NDArray[Any]]
        if not declared and _ready(source):
            arrays = source
        else:
            reader = self.reader(invert, layout, prepared)
            whole = reader.batch(source)
            arrays = _noting(reader.sized_images(source), note) if whole is None else whole
        port = self._inputs[0]
        if not port.dtype.startswith("float"):  # what is prepared is cast when it runs
            port = replace(port, dtype="float32")
        return (
            checked_input(port, batch, LARGEST, any_batch=True)
            for batch in stack_images(arrays, size)
        )


def _noting(
    images: Iterator[tuple[Floats, Size]], note: Callable[[Size], None] | None
) -> Iterator[Floats]:
    for image, size in images:
        if note is not None:
            note(size)
        yield image


def _ready(source: object) -> TypeGuard[NDArray[Any]]:
    """Whether it is an array that can be prepared already: of floats, of four dimensions."""
    return isinstance(source, np.ndarray) and source.ndim == 4 and source.dtype.kind == "f"


def only(images: Iterator[Floats]) -> NDArray[np.float32]:
    """The only one of some prepared images. Raises UsageError if there are several, or none."""
    prepared = list(islice(images, 2))
    if len(prepared) != 1:
        raise UsageError(
            f"prepare takes one image, not {'several' if prepared else 'none'}.",
            "",
            "Prepare them one by one, or pass them all to predict.",
        )
    return prepared[0].astype(np.float32, copy=False)


def read_for_members(readers: Sequence[ImageReader], source: object) -> Iterator[Floats]:
    """Every image as the input of several models of one shape, ``[M, C, H, W]``; each item is taken once."""
    count = 0
    for item in _items(source):
        name = f"image {count}"
        if is_stream(item):
            name = name_of_open_file(item, name)
            item = stream_bytes(item, name)
        for images in zip(*(r._read(item, name, count) for r in readers), strict=True):
            yield np.stack([image for image, _ in images])
            count += 1


def declared_range(p: Preprocessing) -> tuple[float, float]:
    """The lowest and the highest value that preprocessing produces from pixels."""
    if p.per_image == "standardize":
        most = math.sqrt(p.height * p.width * p.channels)
        return -most, most
    ends = [
        (level * p.scale - mean) / std
        for level in (0.0, 255.0)
        for mean, std in zip(*_each_channel(p), strict=True)
    ]
    return min(ends), max(ends)


def _each_channel(p: Preprocessing) -> tuple[Sequence[float], Sequence[float]]:
    mean, std = (v if len(v) == p.channels else v * p.channels for v in (p.mean, p.std))
    return mean, std


def _plain(p: Preprocessing) -> bool:
    """Whether the model's input equals pixels from 0 to 1, so both readings of an array agree."""
    return (
        (p.per_image, p.order) == ("", "RGB")
        and math.isclose(p.scale * 255, 1, rel_tol=1e-6)
        and not any(p.mean)
        and set(p.std) == {1.0}
    )


def _check_declared(values: Floats, p: Preprocessing, name: str) -> None:
    """Refuse prepared values that the model's preprocessing cannot produce from any image; NaN is left to
    `tensors.checked_input`, and so are values that are too large for float32's squares."""
    if not values.size:
        return
    low, high = declared_range(p)
    found_low, found_high = float(values.min()), float(values.max())
    if not max(abs(found_low), abs(found_high)) < LARGEST:
        return
    slack = _SLACK * (high - low)
    if low - slack <= found_low and found_high <= high + slack:
        return
    levels = found_low >= 0 and 1 < found_high <= 255
    if not levels:
        fix = "Prepare images with Session.prepare; Session.run takes any values."
    elif _plain(p):
        fix = "Pass uint8, or divide by 255; Session.run takes any values."
    else:
        fix = "Pass uint8; Session.run takes any values."
    raise UsageError(
        f"{name} has values from {found_low:g} to {found_high:g}.",
        f"The model's preprocessing gives values from {low:g} to {high:g}.",
        fix,
    )


def on_host(source: object, name: str = "the array") -> object:
    """An array of any library as a numpy array; anything else unchanged."""
    if _is_file(source):
        return source
    array = as_array(source, name)
    return source if array is None else array


def _is_file(item: object) -> bool:
    """Whether it is one image, and not an array."""
    paths = isinstance(item, (str, os.PathLike))
    return paths or is_encoded(item) or is_pillow(item) or is_stream(item)


def _items(source: object) -> Iterator[object]:
    """The single items of folders, iterables and arrays of paths; anything else unchanged."""
    if isinstance(source, (str, os.PathLike)):
        yield from _files(source)
        return
    source = on_host(source)
    if isinstance(source, np.ndarray) and source.dtype.kind in "UO" and source.ndim == 1:
        source = source.tolist()  # paths, such as a column of a table
    if isinstance(source, (Mapping, set, frozenset)):
        raise _refused(source, "The argument")
    if _is_file(source) or isinstance(source, np.ndarray) or not isinstance(source, Iterable):
        yield source
        return
    for item in source:
        yield from _files(item) if isinstance(item, (str, os.PathLike)) else (item,)


def _files(path: str | os.PathLike[str]) -> Iterator[object]:
    if not os.fspath(path):
        raise UsageError("The path of an image is empty.", "", "Pass a file or a folder.")
    if reading.path_kind(Path(path)) == reading.FOLDER:
        yield from folder_images(Path(path))
    else:
        yield path


def _refused(item: object, name: str) -> UsageError:
    fix = "Convert it first."
    if isinstance(item, Mapping):
        fix = "Pass only the images, such as item['image']; Session.run takes inputs by name."
    elif isinstance(item, (list, tuple)) or hasattr(type(item), "__getitem__"):
        fix = "Pass only the images, such as `(image for image, label in loader)`, in one sequence."
    elif isinstance(item, (set, frozenset)):
        fix = "Pass a list, so that the order is defined."
    return UsageError(f"{name} {describe_non_image(item)}.", f"Images are {KINDS}.", fix)


def image_files(names: Sequence[Path]) -> list[Path]:
    """The given files, and the images of given folders, sorted by name."""
    files: list[Path] = []
    for name in names:
        files += folder_images(name) if reading.path_kind(name) == reading.FOLDER else [name]
    return files
