"""Declare the options of ``quantize``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsedge.options import LARGEST_COUNT, LARGEST_SEED, LARGEST_TOLERANCE, Options, option
from capsedge.spec.vocabularies import QUANTIZE_OPS, QUANTIZE_PRECISIONS, QUANTIZE_TARGETS

# Written out, because the module that implements them needs numpy; a test compares.
METHODS = ("minmax", "percentile", "entropy", "mse")
PREFERENCES = ("size", "speed")
OVERLAPS = ("dice", "iou")


@dataclass(frozen=True)
class QuantizeOptions(Options):
    """How `capsedge.quantize` makes a file, and what the file may lose."""

    precision: str = option("int8", "int8, fp16 or mixed.", choices=QUANTIZE_PRECISIONS)
    calib_images: int = option(
        512,
        "Number of images drawn from --calib-data.",
        min=1,
        max=LARGEST_COUNT,
        panel="Calibration",
    )
    limit: int | None = option(
        None,
        "Use only N evaluation images, chosen at random.",
        min=1,
        max=LARGEST_COUNT,
        panel="Images to evaluate on",
    )
    method: str = option(
        "mse",
        "How ranges are chosen: minmax, percentile, entropy or mse.",
        choices=METHODS,
        panel="Calibration",
    )
    target: str = option(
        "ort-cpu", "ort-cpu, tensorrt, openvino or litert.", choices=QUANTIZE_TARGETS
    )
    ops: str = option(
        "auto",
        "auto, or fused: smaller, but runs only with the operator library.",
        choices=QUANTIZE_OPS,
    )
    max_drop: float | None = option(
        None,
        "Allowed loss in percentage points: of accuracy (default 0.1); without labels, changed "
        "decisions (1); for numbers, the mean error in % of an output's range (1).",
        min=0,
        max=100,
        panel="Limits",
    )
    max_error: float = option(
        10.0,
        "For numbers: the largest error allowed, in % of an output's range.",
        min=0,
        max=LARGEST_TOLERANCE,
        panel="Limits",
    )
    min_cosine: float = option(
        0.99,
        "For outputs of vectors, such as poses or interests: the least mean cosine with FP32.",
        min=-1,
        max=1,
        panel="Limits",
    )
    overlap: str = option(
        "dice",
        "For masks: the mean that --max-drop limits, of Dice (dice) or of intersection over union (iou).",
        choices=OVERLAPS,
        panel="Limits",
    )
    scores: str | None = option(
        None,
        "The output that decides the class, if the file does not state it.",
        panel="Images to evaluate on",
    )
    table: Path | None = option(
        None,
        "Calibration table: read if it exists, otherwise written.",
        path="updates",
        panel="Calibration",
    )
    prefer: str = option(
        "size",
        "Write the smallest (size) or the fastest (speed) file.",
        choices=PREFERENCES,
        panel="Mixed precision",
    )
    seed: int = option(
        0,
        "Seed for choosing images at random.",
        min=0,
        max=LARGEST_SEED,
        panel="Calibration",
    )
