"""Judge whether an image resembles the training images, by the spans of five measurements.

Outside the spans there is nothing to see. docs/reference/metadata.md ("Nothing to see") specifies the rule,
so that C++ decides alike on equal bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.files.safetensors import field_of
from capsedge.spec import limits
from capsedge.spec.fields import LEAST_SIDE

TYPICAL_INPUT_KEY = "capsedge.typical_input"  # key in the metadata of a checkpoint or an ONNX file
LEAST_IMAGES = 100
_SLACK = 0.05  # how far a span is widened at each end, relative to its length
_TAIL = 0.1  # share of the images, those nearest to an end, from which the end's tail is estimated
# Share of new images beyond an end: 0.5 % at ten ends, halved for the error of the estimate.
_BEYOND = 0.005 / 10 / 2
_BLANK_REASON = (
    2.0**-20
)  # contrast of an image of one value, after rounding, relative to that value
_DIGITS = 6
_GROUP_VALUES = 2**18  # measured at once; bounds memory

Span = tuple[float, float]
Floats = NDArray[np.float32]
# In the order in which they are compared: the measurement, and what an image below and above its span has.
REASONS = {
    "contrast": ("less contrast", "more contrast"),
    "roughness": ("smoother content", "rougher content"),
    "frame_level": ("a darker frame", "a lighter frame"),
    "frame_contrast": ("a plainer frame", "a busier frame"),
    "level": ("a lower mean", "a higher mean"),
}


@dataclass(frozen=True)
class Measurements:
    """Five numbers of one prepared image (docs/reference/metadata.md, "Nothing to see").

    Attributes:
        contrast: standard deviation of the values.
        level: their mean.
        roughness: mean squared difference of neighbours, over twice the variance: 1 for white noise, 0 for
            what changes slowly (von Neumann 1941, for two dimensions).
        frame_level: mean of the outermost pixels, less the mean of all, in standard deviations.
        frame_contrast: standard deviation of the outermost pixels, relative to that of all pixels.
    """

    contrast: float
    level: float
    roughness: float
    frame_level: float
    frame_contrast: float


@dataclass(frozen=True)
class TypicalInput:
    """The properties of images like those of training; an image outside one of the spans is atypical.

    Attributes:
        contrast, level, roughness, frame_level, frame_contrast: smallest and largest value.
        images: number of images that the spans come from.
        data_sha256: checksum of these images; empty if not known.
    """

    contrast: Span
    level: Span
    roughness: Span
    frame_level: Span
    frame_contrast: Span
    images: int = 0
    data_sha256: str = ""

    def __post_init__(self) -> None:
        for name in REASONS:
            low, high = getattr(self, name)
            object.__setattr__(self, name, (float(low), float(high)))
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ValueError(f"the span of {name} is {low:g} to {high:g}")
        if self.contrast[0] <= 0:
            raise ValueError("the span of contrast begins at 0, where every image is blank")
        if self.images < 0 or len(self.data_sha256) > 64:
            raise ValueError("the images of the spans are not stated as a number and a checksum")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def contains(self, name: str, value: Measurements) -> bool:
        """Whether a measurement is within its span."""
        low, high = getattr(self, name)
        return bool(low <= getattr(value, name) <= high)

    def atypical_reason(self, measured: Measurements) -> str:
        """The first measurement outside of its span, in words; empty if there is something to see."""
        for name, (below, above) in REASONS.items():
            if not self.contains(name, measured):
                less = getattr(measured, name) < getattr(self, name)[0]
                return f"{below if less else above} than in any training image"
        return ""

    def facts(self) -> list[tuple[str, str]]:
        """Lines of text for the user."""
        spans = ", ".join(
            f"{name.replace('_', ' ')} {low:.4g} to {high:.4g}"
            for name, (low, high) in ((n, getattr(self, n)) for n in REASONS)
        )
        return [("typical input", f"{spans} ({self.summary})")]

    @property
    def summary(self) -> str:
        """The origin of the spans, in words."""
        return f"spans of {self.images:,} images"


def measure(image: Floats, layout: str = "NCHW") -> Measurements:
    """The measurements of one prepared image ``[C, H, W]``, or ``[H, W, C]`` for the layout ``NHWC``."""
    return next(measure_all(image[None], layout))


def measure_all(images: Floats, layout: str = "NCHW") -> Iterator[Measurements]:
    """The measurements of prepared images ``[N, C, H, W]``, or ``[N, H, W, C]`` for the layout ``NHWC``.

    Sums are float64, from the first value of an image in memory to the last, so that C++ gets the same bits.
    Of a blank image, all but contrast and level are 0.
    """
    group = max(1, _GROUP_VALUES // max(1, math.prod(images.shape[1:])))
    for start in range(0, len(images), group):
        rows = _measured(images[start : start + group].astype(np.float64), layout)
        yield from (Measurements(*row) for row in rows.tolist())


def _measured(images: NDArray[np.float64], layout: str) -> NDArray[np.float64]:
    """`Measurements` of each image ``[N, 5]``."""
    values = images.reshape(len(images), -1)
    mean = _sums(values) / values.shape[1]
    off = values - mean[:, None]
    variance = _sums(off * off) / values.shape[1]
    contrast = np.sqrt(variance)
    if layout == "NCHW":
        across, down = images[..., 1:] - images[..., :-1], images[:, :, 1:] - images[:, :, :-1]
    else:
        across, down = images[:, :, 1:] - images[:, :, :-1], images[:, 1:] - images[:, :-1]
    steps = np.concatenate([d.reshape(len(images), -1) for d in (across, down)], axis=1)
    frame = values[:, _frame(images.shape[1:], layout)]
    frame_mean = _sums(frame) / frame.shape[1]
    off = frame - frame_mean[:, None]
    spread = np.sqrt(_sums(off * off) / frame.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        roughness = _sums(steps * steps) / steps.shape[1] / (2 * variance)
        rows = np.stack(
            [contrast, mean, roughness, (frame_mean - mean) / contrast, spread / contrast], axis=1
        )
    rows[contrast == 0, 2:] = 0
    return rows


def _sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each row of ``[N, K]``, from the first value to the last; numpy's own sum adds in pairs."""
    return np.add.accumulate(values, axis=1)[:, -1]


@functools.lru_cache(maxsize=16)
def _frame(shape: tuple[int, ...], layout: str) -> NDArray[np.intp]:
    """Places of the first and the last row and column in an image's memory."""
    around = np.ones(shape, bool)
    cut = slice(1, -1)
    around[(slice(None), cut, cut) if layout == "NCHW" else (cut, cut)] = False
    return np.flatnonzero(around)


def spans_of(images: Iterable[Floats], layout: str = "NCHW", data_sha256: str = "") -> TypicalInput:
    """The criterion from prepared images ``[C, H, W]`` like those of training: their spans, widened.

    Blank images among them are left out. Every bound is moved outwards by 5 % of its span, the lower bound of
    the contrast by 5 % of its value; or to where `_end` expects only very few new images to be beyond, if
    that is further.
    """
    rows: list[list[float]] = []
    for image in images:
        height, width = image.shape[1:] if layout == "NCHW" else image.shape[:2]
        if min(height, width) < LEAST_SIDE:
            raise ValueError(f"the input has fewer than {LEAST_SIDE} pixels a side")
        measurements = measure(image, layout)
        if measurements.contrast > _BLANK_REASON * max(
            float(np.abs(image).max()), abs(measurements.level)
        ):
            rows.append([getattr(measurements, name) for name in REASONS])
    if len(rows) < LEAST_IMAGES:
        raise ValueError(f"{len(rows)} images are not blank; {LEAST_IMAGES} are needed")
    spans = {
        name: _span(name, column) for name, column in zip(REASONS, np.array(rows).T, strict=True)
    }
    return TypicalInput(**spans, images=len(rows), data_sha256=data_sha256)


def _span(name: str, values: NDArray[np.float64]) -> Span:
    """The span of a measurement from its values ``[N]``."""
    low, high = float(values.min()), float(values.max())
    slack = _SLACK * (high - low)
    last = max(high + slack, _end(values))
    if name == "contrast":  # above 0, so its tail towards 0 is one of ratios
        first = min((1 - _SLACK) * low, math.exp(-_end(-np.log(values))))
    else:
        first = min(low - slack, -_end(-values))
    if name in ("roughness", "frame_contrast"):  # neither is negative
        first = max(first, 0.0)
    return _rounded(first), _rounded(last)


def _end(values: NDArray[np.float64]) -> float:
    """The value that new images exceed with probability ``_BEYOND``, by an exponential tail.

    The tail begins at an order statistic and has the mean excess of the values above it (Weissman 1978, of
    the Gumbel domain). With few images it ends well beyond the largest value; with many, it is that value.
    """
    ordered = np.sort(values)
    if 1 / (len(values) + 1) <= _BEYOND:
        # New images exceed the largest value as rarely. The estimate is far beyond it where a tail is not
        # exponential, such as that of frames that are mostly empty.
        return float(ordered[-1])
    begin = float(ordered[-1 - max(1, round(_TAIL * len(values)))])
    above = ordered[
        ordered > begin
    ]  # fewer where many values are equal, such as those of empty frames
    if len(above) == 0:
        return begin
    excess = float(above.mean()) - begin
    return begin + excess * max(0.0, math.log(len(above) / (len(values) * _BEYOND)))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def typical_input_of(path: Path | str) -> TypicalInput | None:
    """The typical input of a checkpoint; None if it states none, or is not a safetensors file."""
    return field_of(
        TypicalInput,
        path,
        TYPICAL_INPUT_KEY,
        "which images are like its training data",
        "Copy it again, or train again.",
        limits.TYPICAL_INPUT_BYTES,
    )
