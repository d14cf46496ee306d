"""From an image to the input tensor of a model.

The steps and their arithmetic are specified in docs/reference/runtime.md ("Images"), so that C++ computes
the same bits. Pillow only decodes.
"""

from __future__ import annotations

import io
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.files import formats, limits, opening
from capsedge.runtime.metadata import Preprocessing
from capsedge.runtime.vision.resize import resize

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG")
SUFFIXES = (".png", ".jpg", ".jpeg")

# Luma of ITU-R BT.601 in 1/65536: the weights sum to one exactly, so a grey RGB pixel keeps its value.
_LUMA = (19595.0, 38470.0, 7471.0)
_LUMA_UNIT = 65536.0
_ORIENTATION = 0x0112  # EXIF tag
_SUPPORTED = "PNG and JPEG files, Pillow images and arrays"


def read_image(path: Path | str) -> NDArray[Any]:
    """Decode a PNG or JPEG file.

    Returns:
        ``[H, W, C]``, uint8 (uint16 for 16-bit grey), rotated according to the EXIF orientation. C is 1 for
        grey, 2 for grey and alpha, 3 for RGB and 4 for RGB and alpha.

    Raises:
        UsageError: the file is missing, damaged, of another format or too large.
    """
    path = Path(path)
    data = _read_file(path)
    import PIL
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the limits here are lower.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(str(path), image.height, image.width)
                return pixels_of(image)
    except UsageError:
        raise
    except (Image.DecompressionBombError, MemoryError) as error:
        raise _too_large(str(path), str(error)) from error
    except PIL.UnidentifiedImageError as error:
        raise _no_image(path, data) from error
    except Exception as error:  # decoders of damaged files raise many kinds, none of them ours
        raise UsageError(
            f"{path} is damaged.", f"The decoder reports: {error}.", "Get the image again."
        ) from error


def _read_file(path: Path) -> bytes:
    if opening.kind(path) is None:
        raise UsageError(f"There is no file {path}.", "", "Check the name of the image.")
    with opening.opened(path, "Name a PNG or JPEG file that may be read.") as file:
        found = opening.size(file)
        if found > limits.IMAGE_FILE_BYTES:
            raise _too_large(
                str(path),
                f"The file has {found:,} bytes, the limit is {limits.IMAGE_FILE_BYTES:,}.",
            )
        data = file.read(limits.IMAGE_FILE_BYTES)
    if not data:
        raise UsageError(f"{path} is empty.", "It has 0 bytes.", "Get the image again.")
    return data


def _no_image(path: Path, data: bytes) -> UsageError:
    told = formats.tell_content(data)
    if told is None or told.key == "image":
        return UsageError(
            f"{path} is not a readable image.",
            "It is neither a PNG nor a JPEG file, or its header is damaged.",
            "Convert it to PNG or JPEG.",
        )
    fix, command = told.advice(path)
    return UsageError(
        f"{path} is not a readable image: it is {told.name}.",
        "PNG and JPEG files are read.",
        fix,
        command=command,
    )


def _too_large(name: str, why: str) -> UsageError:
    return UsageError(f"{name} is too large.", why, "Make the image smaller.")


def _check_size(name: str, height: int, width: int) -> None:
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
            f"A Pillow image of mode '{image.mode}' has values outside 0..65535.",
            f"Found {values.min()} to {values.max()}.",
            "Scale it to 16 or 8 bit.",
        )
    grey = values.astype(np.uint16)
    if "transparency" not in image.info:
        return grey
    alpha = np.where(grey == image.info["transparency"], 0, 0xFFFF).astype(np.uint16)
    return np.stack([grey, alpha], axis=-1)


def _orientation(image: Image) -> int:
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


def prepare(
    image: Path | str | Image | NDArray[Any],
    preprocessing: Preprocessing,
    invert: bool = False,
    name: str = "the image",
) -> NDArray[np.float32]:
    """Turn one image into the input of a model.

    Args:
        image: a PNG or JPEG file, a Pillow image, or an array of pixels ``[H, W]`` or ``[H, W,
            C]``: uint8, uint16, bool, or floats in 0..1. C is 1, 2 (grey and alpha), 3, 4 (RGB and
            alpha), or the number of channels that the model takes.
        preprocessing: from the model's metadata.
        invert: for dark ink on a light background.
        name: the name in errors of an image that has no file name.

    Returns:
        ``[C, H, W]`` float32, or ``[H, W, C]`` if the preprocessing has that layout.

    Raises:
        UsageError: the image cannot be read or does not fit the model.
    """
    wanted = preprocessing.channels
    if isinstance(image, np.ndarray):
        pixels = _pixels_of_array(image, wanted, name)
    elif isinstance(image, (str, Path)) or _is_pillow(image):
        if wanted not in (1, 3):
            raise UsageError(
                f"This model takes {wanted} channels, which no PNG or JPEG file has.",
                "",
                f"Pass an array [height, width, {wanted}] from Python.",
            )
        if isinstance(image, (str, Path)):
            pixels = read_image(image)
        else:
            _check_size(name, image.height, image.width)
            pixels = pixels_of(image)
    else:
        raise UsageError(
            f"{name} has the type {type(image).__name__}.",
            f"Images are {_SUPPORTED}.",
            "Convert it first.",
        )
    top, left, height, width = 0, 0, pixels.shape[0], pixels.shape[1]
    inner_height, inner_width = preprocessing.height, preprocessing.width
    if preprocessing.resize == "crop":
        top, left, height, width = _centre(height, width, inner_height, inner_width)
    elif preprocessing.resize == "pad":
        inner_height, inner_width = _fit(height, width, inner_height, inner_width)
    elif preprocessing.resize == "center":
        inner_height, inner_width = min(height, inner_height), min(width, inner_width)
        top, left = (height - inner_height) // 2, (width - inner_width) // 2
        height, width = inner_height, inner_width

    def rows(first: int, last: int) -> NDArray[np.float32]:
        block = pixels[top + first : top + last, left : left + width]
        return _to_channels(block, wanted, invert)

    result = resize(height, width, inner_height, inner_width, rows)
    if preprocessing.resize in ("pad", "center"):
        result = _pad(result, preprocessing.height, preprocessing.width)
    planes = result.transpose(2, 0, 1)
    planes = planes[::-1] if preprocessing.order == "BGR" else planes
    values = normalized(np.ascontiguousarray(planes), preprocessing)
    if preprocessing.layout == "NHWC":
        return np.ascontiguousarray(values.transpose(1, 2, 0))
    return values


def normalized(image: NDArray[np.float32], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Levels 0..255 ``[C, H, W]`` of an image in the model's size as the model's input."""
    if preprocessing.per_image == "min-max":
        low, high = image.min(), image.max()
        span = high - low if high > low else np.float32(1)
        image = (image - low) / span * np.float32(255)
    mean, std = (
        np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std)
    )
    image = (image * np.float32(preprocessing.scale) - mean) / std
    if preprocessing.per_image == "standardize":
        values = image.astype(np.float64)
        centred = values - _sum(values) / values.size
        deviation = math.sqrt(_sum(centred * centred) / values.size)
        image = (centred / max(deviation, 1 / math.sqrt(values.size))).astype(np.float32)
    return image


def _sum(values: NDArray[np.float64]) -> float:
    """From the first value to the last, as C++ adds; numpy's ``sum`` adds in another order."""
    return float(np.add.accumulate(values.ravel())[-1])


def _is_pillow(image: object) -> bool:
    module = sys.modules.get("PIL.Image")  # without it, no such image can exist
    return module is not None and isinstance(image, module.Image)


def _pixels_of_array(array: NDArray[Any], wanted: int, name: str) -> NDArray[Any]:
    """Check an array of pixels; returns ``[H, W, C]`` of uint8, uint16 or float32 (0..255)."""
    if array.ndim not in (2, 3):
        raise UsageError(
            f"{name} has the shape {list(array.shape)}.",
            "Wanted: [height, width] or [height, width, channels].",
            "Reshape the array.",
        )
    pixels = array[:, :, None] if array.ndim == 2 else array
    height, width, channels = pixels.shape
    allowed = (wanted,) if wanted not in (1, 3) else (1, 2, 3, 4)
    if channels not in allowed:
        raise UsageError(
            f"{name} has {channels} channels (shape {list(array.shape)}).",
            f"Wanted: [height, width, channels] with {_either(allowed)} channels.",
            "Put the channels last, and drop those that the model does not use.",
        )
    _check_size(name, height, width)
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype in (np.uint8, np.uint16):
        return pixels
    if pixels.dtype.kind != "f":
        raise UsageError(
            f"{name} has the type {pixels.dtype}.",
            "Pixels are uint8, uint16, bool, or floats from 0 to 1.",
            "Convert it: `array.astype(np.uint8)` if its values are 0 to 255.",
        )
    if not np.isfinite(pixels).all():
        raise UsageError(
            f"{name} has values that are NaN or infinite.",
            f"{int((~np.isfinite(pixels)).sum())} of {pixels.size} values.",
            "Clean the array before inference.",
        )
    if pixels.min() < 0 or pixels.max() > 1:
        raise UsageError(
            f"{name} has values from {pixels.min():g} to {pixels.max():g}.",
            "Floating-point pixels go from 0 to 1.",
            "Divide by the largest value, or pass uint8.",
        )
    return pixels.astype(np.float32) * np.float32(255)


def _either(numbers: tuple[int, ...]) -> str:
    texts = [str(n) for n in numbers]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + f" or {texts[-1]}"


def _to_channels(pixels: NDArray[Any], wanted: int, invert: bool) -> NDArray[np.float32]:
    """Pixels ``[h, w, C]`` as float32 0..255 in the model's channels: inverted, composited on
    black, grey or RGB."""
    values = pixels.astype(np.float32)
    if pixels.dtype == np.uint16:
        values = values / np.float32(257)
    channels = values.shape[-1]
    alpha = None
    if channels != wanted and channels in (2, 4):
        values, alpha = values[..., :-1], values[..., -1:] / np.float32(255)
    if invert:
        values = np.float32(255) - values
    if alpha is not None:
        values = values * alpha
    if values.shape[-1] == wanted:
        return values
    if wanted == 3:
        return np.repeat(values, 3, axis=-1)
    red, green, blue = (np.float32(_LUMA[c]) * values[..., c : c + 1] for c in range(3))
    grey: NDArray[np.float32] = ((red + green) + blue) / np.float32(_LUMA_UNIT)
    return grey


def _fit(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """Largest size with the image's aspect ratio within the target; halves round up."""
    if height * target_width >= width * target_height:
        return target_height, max(1, (2 * width * target_height + height) // (2 * height))
    return max(1, (2 * height * target_width + width) // (2 * width)), target_width


def _centre(
    height: int, width: int, target_height: int, target_width: int
) -> tuple[int, int, int, int]:
    """Top, left, height and width of the largest centred part with the target's aspect ratio."""
    part_height, part_width = _fit(target_height, target_width, height, width)
    return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width


def _pad(image: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Centre on black; an odd extra row or column goes to the bottom or the right."""
    result = np.zeros((height, width, image.shape[2]), np.float32)
    top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    result[top : top + image.shape[0], left : left + image.shape[1]] = image
    return result
