"""The masks of a segmentation as outputs of the protocol, which a request names: a tensor, or PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.session.masks import mask_png
from capsedge.serving.request_tensors import BYTES
from capsedge.spec import limits

if TYPE_CHECKING:
    from capsedge.runtime.session.predictions import Prediction
    from capsedge.runtime.session.session import Session

MASK, MASK_PNG = "predicted_mask", "predicted_mask_png"


def mask_outputs(session: Session) -> tuple[str, ...]:
    """The names of a model's masks; none if it does not segment, or if it has outputs of these names."""
    own = {port.name for port in session.outputs}
    return (MASK, MASK_PNG) if session.roles.segmentation and not own & {MASK, MASK_PNG} else ()


def described(session: Session) -> list[dict[str, Any]]:
    """The model's masks as outputs in its metadata."""
    kinds = {MASK: ("UINT8", [-1, -1, -1]), MASK_PNG: (BYTES, [-1])}
    return [
        {"name": name, "datatype": kinds[name][0], "shape": kinds[name][1]}
        for name in mask_outputs(session)
    ]


def masks_as(names: Sequence[str], predictions: Sequence[Prediction]) -> dict[str, NDArray[Any]]:
    """Masks by output name: `MASK` is ``[N, H, W]`` in uint8, `MASK_PNG` is ``[N]`` with a file's bytes each.

    Raises:
        UsageError: the masks are too large together, or a tensor is to hold masks of different sizes.
    """
    masks = [each.mask for each in predictions if each.mask is not None]
    if sum(mask.size for mask in masks) * len(names) > limits.REQUEST_VALUES:
        raise UsageError(
            "The response would be too large.",
            f"Its masks have over {limits.REQUEST_VALUES:,} values.",
            "Send fewer images at a time.",
        )
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        if name == MASK_PNG:
            files = np.empty(len(masks), object)
            files[:] = [
                mask_png(mask, each.mask_classes)
                for mask, each in zip(masks, predictions, strict=True)
            ]
            found[name] = files
            continue
        sizes = sorted({mask.shape for mask in masks})
        if len(sizes) > 1:
            first, second = (f"{height}x{width}" for height, width in sizes[:2])
            raise UsageError(
                f"The images have different sizes, such as {first} and {second}.",
                f"A tensor holds masks of one size, and '{MASK}' is a tensor.",
                f"Ask for '{MASK_PNG}', or send the images one at a time.",
            )
        found[name] = np.stack(masks)
    return found
