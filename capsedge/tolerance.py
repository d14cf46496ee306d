"""Define the tolerance rule and its defaults by output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.session.routing_trace import PREFIX


@dataclass(frozen=True)
class Tolerance:
    """An absolute part, and one relative to the size of the pose; see `excess`.

    Attributes:
        atol, rtol: the parts.
        unit: whether ``atol`` is meant for magnitudes up to 1, and grows with larger ones.
    """

    atol: float
    rtol: float
    unit: bool = False


# On hard inputs FP32 itself differs from FP64, since routing feeds rounding back through exponentials. An
# artefact in FP32 may differ by this many times as much.
NOISE_FACTOR = 4.0
# And never by more than this share of the largest magnitude of an image: 2^14 roundings of FP32 (2^-24).
# Those of a sum of n terms grow as the root of n, 2^7 for the 16,384 votes of a large layer; an exponential
# turns a relative error of its argument into one of its result that is as many times larger as the argument,
# and beyond 88 < 2^7 FP32 has no exponential. A result with fewer than 10 of 24 bits left proves nothing.
MAX_GROWTH = 2.0**-10


def excess(
    difference: NDArray[Any],
    reference: NDArray[Any],
    tolerance: Tolerance,
    noise: NDArray[Any] | float = 0.0,
    most: float = MAX_GROWTH,
) -> NDArray[np.float64]:
    """Each element's difference as a multiple of the allowed one; an element passes up to 1.

    The allowed difference is ``atol + rtol * size + min(NOISE * noise, most * image)``, where the size is the
    largest magnitude along the reference's last axis: rounding depends on the size of a pose, not of its
    smallest element. ``image`` is the largest magnitude of the image. With ``unit``, ``atol`` is multiplied
    by the size where it is larger than 1.

    Args:
        difference: found - reference ``[n, ...]``, finite.
        reference: finite values of the same shape.
        noise: the error of FP32 as it was measured, broadcast over the elements; 0 if it was not.
        most: what it may add at most, whatever was measured.
    """
    size = np.abs(reference).max(axis=-1, keepdims=True, initial=0.0)
    absolute = tolerance.atol * (np.maximum(size, 1.0) if tolerance.unit else 1.0)
    added = np.fmin(NOISE_FACTOR * np.asarray(noise), _bound(reference, size, most))
    allowed = np.broadcast_to(absolute + tolerance.rtol * size + added, difference.shape)
    magnitude = np.abs(difference)
    unlimited = np.where(magnitude > 0, np.inf, 0.0)
    return np.asarray(np.divide(magnitude, allowed, out=unlimited, where=allowed > 0), np.float64)


def nearest_ratio(
    ratio: NDArray[Any],
    artefact: NDArray[Any],
    exact: NDArray[Any],
    tolerance: Tolerance,
    conditioning: NDArray[Any] | float,
) -> NDArray[np.float64]:
    """With FP64 as the referee, an element also passes if it is near enough to the exact value.

    Args:
        ratio: the `excess` over the reference in FP32.
        artefact, exact: ``[n, ...]``, finite.
        conditioning: how far rounding moves the exact values; widens the tolerance around them.
    """
    return np.asarray(
        np.minimum(ratio, excess(artefact - exact, exact, tolerance, conditioning)), np.float64
    )


def undefined(reference: NDArray[Any], noise: NDArray[Any] | float) -> NDArray[np.bool_]:
    """Where rounding changes the reference ``[n, ...]`` by more than `excess` may allow."""
    size = np.abs(reference).max(axis=-1, keepdims=True, initial=0.0)
    beyond = NOISE_FACTOR * np.asarray(noise) > _bound(reference, size, MAX_GROWTH)
    return np.asarray(np.broadcast_to(beyond, reference.shape))


def _bound(reference: NDArray[Any], size: NDArray[Any], most: float) -> NDArray[Any]:
    """The share of each image's largest magnitude; broadcasts over the elements."""
    rest = tuple(range(1, reference.ndim))
    return np.asarray(most * size.max(axis=rest, keepdims=True, initial=0.0))


# Lengths lie in [0, 1] and decide; 1e-5 is a hundredth of a per mille of their range. Where the squash runs
# over another axis than the pose's they exceed 1, and the largest of an image is its range. Logits have no
# range, so they also get a relative part. No decision depends on poses, pictures or couplings.
DEFAULTS = {
    "lengths": Tolerance(1e-5, 0.0, unit=True),
    "logits": Tolerance(1e-5, 1e-4),
    "poses": Tolerance(1e-4, 1e-4),
    "reconstruction": Tolerance(1e-4, 0.0),
    "couplings": Tolerance(1e-4, 0.0),
}
TRACE = Tolerance(1e-4, 1e-4)  # as for poses and couplings
OTHER_OUTPUTS = Tolerance(1e-5, 1e-4)

# Most of the package's samples are random strokes that show no digit, so their decisions flip easily.
AGREEMENT = {"fp32": 1.0, "fp16": 0.98, "int8": 0.9, "mixed": 0.9}
APPROXIMATE_AGREEMENT = 0.9  # frozen couplings


def least_agreement(metadata: ModelMetadata | None) -> float:
    """The default of ``min_agreement`` for a file."""
    if metadata is None:
        return 1.0
    if metadata.cascade is not None:
        return min(metadata.cascade.min_agreement, AGREEMENT.get(metadata.precision, 1.0))
    if "frozen_couplings" in metadata.calibration:
        return APPROXIMATE_AGREEMENT
    return AGREEMENT.get(metadata.precision, 1.0)


def tolerances(
    names: Sequence[str], stated: Sequence[tuple[str, float, float]] = ()
) -> dict[str, Tolerance]:
    """Tolerance of each output: the stated one, otherwise the default for its name.

    Args:
        names: names of the outputs.
        stated: name (``""`` for all others), absolute and relative part.

    Raises:
        UsageError: a value is negative or not finite, or names no output.
    """
    table = {}
    for name, atol, rtol in stated:
        if name and name not in names:
            raise UsageError(
                f"The tolerance names '{name}', which is not an output of the model.",
                f"Its outputs: {', '.join(names)}.",
                f"Use {names[0]}:1e-5,1e-4, or 1e-5,1e-4 for all of them.",
            )
        if not (0 <= atol < math.inf and 0 <= rtol < math.inf):
            raise UsageError(
                f"Invalid tolerance {atol:g},{rtol:g}.",
                "Both parts must be finite and not negative.",
                "For example: 1e-5,1e-4.",
            )
        table[name] = Tolerance(atol, rtol)
    return {name: table.get(name) or table.get("") or _default(name) for name in names}


def _default(name: str) -> Tolerance:
    """The tolerance of an output that none is stated for."""
    return DEFAULTS.get(name, TRACE if name.startswith(PREFIX) else OTHER_OUTPUTS)
