"""Reading image files, and Pillow's images, as arrays of pixels. Pillow only decodes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files import formats, reading
from capsedge.runtime.images import headers
from capsedge.runtime.video.frames import is_video
from capsedge.spec import limits

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION = 0x0112  # EXIF tag
_PHOTOMETRIC = 262  # TIFF tag; 0 is white
_EXIF_BYTES = 65_536  # the most that a JPEG file holds


class SupportsRead(Protocol):
    """A binary file: ``open(path, "rb")``, `io.BytesIO`, a response of `urllib`."""

    def read(self, size: int, /) -> bytes: ...


def read_image(path: Path | str) -> NDArray[Any]:
    """Decode an image file: PNG, JPEG, GIF, BMP, TIFF or WebP; of several frames or pages, only the first.

    Returns:
        ``[H, W, C]``, uint8 (uint16 for 16-bit grey), rotated according to the EXIF orientation. C is 1 for
        grey, 2 for grey and alpha, 3 for RGB and 4 for RGB and alpha.
    """
    check_image(path)
    with reading.open_regular_file(path, "Name an image that may be read.") as file:
        _check_bytes(str(path), reading.file_size(file))
        return decode(file.read(limits.IMAGE_FILE_BYTES), str(path), Path(path))


def read_values(path: Path) -> tuple[NDArray[np.uint8], bool]:
    """The values ``[H, W]`` of a PNG with one value a pixel, as a mask has them, and whether it is indexed:
    whether they are numbers of colours, and not levels of grey.

    Raises:
        UsageError: it cannot be read, or has colours, transparency or more than 8 bits.
    """
    check_image(path)
    with reading.open_regular_file(path, "Name a mask that may be read.") as file:
        _check_bytes(str(path), reading.file_size(file))
        data = file.read(limits.IMAGE_FILE_BYTES)
    encoding = headers.encoding_of(data)
    if encoding is None:
        raise _no_image(str(path), data, path)
    with _explained(str(path), encoding.name):
        for height, width in encoding.sizes(data, str(path)):
            check_size(str(path), height, width)
        with encoding.opened(data) as image:
            check_size(str(path), image.height, image.width)
            if encoding.name != "PNG" or image.mode not in ("P", "L", "1"):
                raise UsageError(
                    f"{path} is not a mask.",
                    f"It is a {encoding.name} image of mode {image.mode}.",
                    "Save it as a PNG that is indexed, or grey with 8 bits: one value a pixel.",
                )
            image.load()
            values = np.asarray(image).astype(np.uint8) * (255 if image.mode == "1" else 1)
            return values.astype(np.uint8), image.mode == "P"


def text_in_image(path: Path, key: str) -> str:
    """A text that an image file holds, such as a chunk of a PNG; empty if there is none of this name."""
    with reading.open_regular_file(path, "Name an image that may be read.") as file:
        _check_bytes(str(path), reading.file_size(file))
        data = file.read(limits.IMAGE_FILE_BYTES)
    encoding = headers.encoding_of(data)
    if encoding is None:
        return ""
    with _explained(str(path), encoding.name), encoding.opened(data) as image:
        found = image.info.get(key, "")
    return found if isinstance(found, str) else ""


def check_image(path: Path | str) -> None:
    """Refuse a path that leads nowhere."""
    if reading.path_kind(path) is None:
        if str(path).startswith(("http:", "https:")):
            fix = "Download it, or pass the open response: urllib.request.urlopen(address)."
            raise UsageError(f"{path} is not a file.", "Images are not downloaded.", fix)
        if any(sign in str(path) for sign in "*?["):
            raise UsageError(
                f"There is no file {path}.",
                "Patterns are not expanded.",
                "Pass pathlib.Path(folder).glob('*.png'), or the folder.",
                command="Pass the folder, or a pattern that matches; unquoted, so the shell expands it.",
            )
        raise UsageError(f"There is no file {path}.", "", "Check the name of the image.")


def name_of_open_file(file: SupportsRead, name: str) -> str:
    """The name that an open file states, such as its path; otherwise the given name."""
    own = getattr(file, "name", None)
    return own if isinstance(own, str) and own else name


def read_stream(file: SupportsRead, name: str) -> NDArray[Any]:
    """Decode the image that an open binary file holds from its position on, as `read_image`."""
    name = name_of_open_file(file, name)
    return decode(stream_bytes(file, name), name)


def stream_bytes(file: SupportsRead, name: str) -> bytes:
    """The content of an open binary file from its position on, up to a byte over the limit of `decode`."""
    parts: list[bytes] = []
    left = (
        limits.IMAGE_FILE_BYTES + 1
    )  # one more byte distinguishes a longer file from one that ends there
    text = isinstance(file, io.TextIOBase)
    try:
        while left > 0 and not text and (part := file.read(left)):
            text = not isinstance(part, (bytes, bytearray, memoryview))
            parts.append(b"" if text else bytes(part))
            left -= len(parts[-1])
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{name} cannot be read.", f"{error}.", "Open the file again.") from error
    if text:
        raise UsageError(
            f"{name} is opened as a text file.",
            "Images are binary files.",
            "Open it with open(path, 'rb'), or pass the path.",
        )
    if not parts:
        raise UsageError(
            f"{name} is empty.",
            "The file is at its end.",
            "If it was read before, call file.seek(0).",
        )
    return b"".join(parts)


def decode(
    data: bytes | bytearray | memoryview, name: str, path: Path | None = None
) -> NDArray[Any]:
    """Decode the content of an image file, as `read_image`.

    Args:
        path: the file; None if the content is not from a file.
    """
    _check_bytes(name, memoryview(data).nbytes)
    data = bytes(data)
    if not data:
        raise UsageError(f"{name} is empty.", "It has 0 bytes.", "Get a new copy of the image.")
    encoding = headers.encoding_of(data)
    if encoding is None:
        raise _no_image(name, data, path)
    with _explained(name, encoding.name):
        for height, width in encoding.sizes(data, name):
            check_size(name, height, width)
        with encoding.opened(data) as image:
            check_size(name, image.height, image.width)
            return pixels_of(image)


@contextmanager
def _explained(name: str, kind: str = "") -> Iterator[None]:
    """Turn the block's failures to decode an image into readable errors."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the limits here are lower.
            warnings.simplefilter("ignore")
            yield
    except UsageError:
        raise
    except ImportError as error:
        raise EnvironmentProblem(
            f"{name} cannot be decoded.",
            f"The installed Pillow cannot read {kind}: {error}.",
            "pip install --force-reinstall pillow, or convert the image to PNG.",
        ) from error
    except (Image.DecompressionBombError, MemoryError) as error:
        raise _too_large(name, "Pillow refuses to allocate memory for its pixels.") from error
    except Exception as error:  # decoders of damaged files raise many kinds, none of them ours
        is_one = f"It begins like a {kind} file. " if kind else ""
        raise UsageError(
            f"{name} is damaged.",
            f"{is_one}The decoder reports: {error}.",
            "Get a new copy of the image, or convert it to PNG.",
        ) from error


def _check_bytes(name: str, size: int) -> None:
    if size > limits.IMAGE_FILE_BYTES:
        raise _too_large(
            name, f"The file has {size:,} bytes, the limit is {limits.IMAGE_FILE_BYTES:,}."
        )


def _no_image(name: str, data: bytes, path: Path | None) -> UsageError:
    identified = formats.identify_content(data)
    what = f"{name} is not a readable image"
    if path is not None and is_video(path):
        return UsageError(
            f"{what}.",
            "It is named like a video.",
            "Videos go to capsedge.VideoFile, whose frames are images (docs/how-to/moving-pictures.md).",
        )
    if identified is None or identified.key == "image":
        return UsageError(
            f"{what}.",
            f"Its first bytes are not those of a {headers.FORMATS.replace(' and ', ' or ')} file.",
            "Convert it to PNG."
            if path is not None
            else "Pass the bytes of an image file, or pixels as an array.",
        )
    if path is None:
        fix = command = "Pass the bytes of such a file."
    else:
        fix, command = identified.advice(path)
    return UsageError(
        f"{what}: it is {identified.name}.",
        f"{headers.FORMATS} files are read.",
        fix,
        command=command,
    )


def _too_large(name: str, why: str) -> UsageError:
    return UsageError(f"{name} is too large.", why, "Make the image smaller.")


def check_size(name: str, height: int, width: int) -> None:
    """Refuse an image without pixels, and one with more than the limits allow."""
    if height < 1 or width < 1:
        raise UsageError(
            f"{name} has no pixels.", f"It has {width}x{height}.", "Use another image."
        )
    if max(height, width) > limits.IMAGE_SIDE:
        raise _too_large(
            name, f"It has {width}x{height} pixels, the limit per side is {limits.IMAGE_SIDE}."
        )
    if height * width > limits.IMAGE_PIXELS:
        raise _too_large(
            name,
            f"It has {width}x{height} = {height * width:,} pixels, the limit is {limits.IMAGE_PIXELS:,}.",
        )


def pixels_of(image: Image) -> NDArray[Any]:
    """Pixels of a Pillow image, ``[H, W, C]`` as `read_image` returns them."""
    image.load()
    mode = image.mode
    if mode.startswith("I"):
        pixels = _grey16(image)
    elif mode in ("P", "1", "L", "RGB") and "transparency" in image.info:
        pixels = np.asarray(image.convert("RGBA"))
    elif mode == "P":
        with_alpha = image.palette is not None and image.palette.mode == "RGBA"
        pixels = np.asarray(image.convert("RGBA" if with_alpha else "RGB"))
    elif mode in ("L", "LA", "RGB", "RGBA"):
        pixels = np.asarray(image)
    elif mode in ("1", "La", "PA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"):
        target = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"}.get(mode, "RGB")
        pixels = np.asarray(image.convert(target))
    else:
        raise UsageError(
            f"Pillow images of mode '{mode}' are not supported.",
            "",
            "Convert it: `image.convert('L')` or `image.convert('RGB')`.",
        )
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return _turn(pixels, _orientation(image))


def _grey16(image: Image) -> NDArray[np.uint16]:
    """16-bit grey, which Pillow holds in the modes ``I;16`` and ``I``; a transparent value turns black."""
    values = np.asarray(image)
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > 0xFFFF:
        raise UsageError(
            "The image has grey levels outside 0..65535.",
            f"Found {values.min()} to {values.max()}.",
            "Scale it to 16 or 8 bits.",
        )
    grey = values.astype(np.uint16)
    if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:  # Pillow inverts 8 bits, but not 16
        grey = 0xFFFF - grey
    if "transparency" not in image.info:
        return grey
    alpha = np.where(grey == image.info["transparency"], 0, 0xFFFF).astype(np.uint16)
    return np.stack([grey, alpha], axis=-1)


def _orientation(image: Image) -> int:
    if len(image.info.get("exif", b"")) > _EXIF_BYTES:
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        # A damaged EXIF block gives no orientation; viewers also show such an image unrotated.
        return 1
    return value if isinstance(value, int) else 1


def _turn(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Apply an EXIF orientation (CIPA DC-008, tag 0x0112)."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def is_pillow(image: object) -> TypeGuard[Image]:
    """Whether it is an image of Pillow."""
    module = sys.modules.get("PIL.Image")  # without it, no such image can exist
    return module is not None and isinstance(image, module.Image)


def read_pixels(image: object, name: str) -> NDArray[Any] | None:
    """The pixels of an image that is not an array, as `read_image` returns them; None for anything else.

    Args:
        image: a path, the bytes of a file, an open binary file, or an image of Pillow.
    """
    if isinstance(image, (str, os.PathLike)):
        return read_image(os.fspath(image))
    if is_encoded(image):
        return decode(image, name)
    if is_pillow(image):
        check_size(name, image.height, image.width)
        with _explained(name):  # Pillow reads a file when its pixels are needed
            return pixels_of(image)
    if is_stream(image):
        return read_stream(image, name)
    return None


def is_encoded(image: object) -> TypeGuard[bytes | bytearray | memoryview]:
    """Whether these are the bytes of a file; a memory view of several dimensions is an array."""
    return isinstance(image, (bytes, bytearray)) or (
        isinstance(image, memoryview) and image.ndim == 1 and image.format in ("B", "b", "c")
    )


def is_stream(image: object) -> TypeGuard[SupportsRead]:
    """Whether it is an open file."""
    return callable(getattr(image, "read", None)) and not isinstance(image, type)
