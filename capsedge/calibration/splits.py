"""Requirements on calibration and evaluation images."""

from __future__ import annotations

import numpy as np

from capsedge.datasets import ImageSet
from capsedge.errors import UsageError


def check_calibration(data: ImageSet, of: int | None = None) -> list[str]:
    """Refuse images that give no useful range; returns warnings.

    Args:
        of: the number of images that they were drawn from, where the others are kept to compare on.

    Raises:
        UsageError: there is only one image, or all values of all images are the same.
    """
    if len(data) < 2:
        told = "One image is" if of in (None, 1) else f"{of} images are"
        kept = (
            ""
            if of in (None, 1)
            else f"Of the {of}, 1 is left to calibrate on and the others compare. "
        )
        raise UsageError(
            f"{told} not enough to calibrate on.",
            f"{kept}Every activation would get the range of one image, and other images would be clipped.",
            "Give 100 or more images like those that the model will see.",
        )
    if all(float(np.ptp(batch)) == 0.0 for batch in data.batches(256)):
        raise UsageError(
            "The calibration images are constant.",
            f"Every value of the {len(data)} images of {data.source} is the same within its batch.",
            "Give images like those that the model will see.",
        )
    if len(data) < 32:
        return [f"only {len(data)} calibration images: ranges may be too small; use 100 or more"]
    return []


def check_disjoint(calibration: ImageSet, evaluation: ImageSet) -> None:
    """Refuse to report accuracy on calibration images.

    Raises:
        UsageError: an evaluation image was calibrated on.
    """
    common = int(evaluation.occurs_in(calibration).sum())
    if common:
        raise UsageError(
            "Accuracy would be reported on images that were calibrated on.",
            f"{common} of {len(evaluation)} evaluation images are among the {len(calibration)} "
            "calibration images.",
            "Give other images as `data=`.",
            command="Give other images with --data.",
        )
