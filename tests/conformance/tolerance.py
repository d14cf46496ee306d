"""How far from the float64 oracle a backend may be, by storage type, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tolerance:
    """``|found - wanted| <= atol + rtol |wanted|``, element by element."""

    atol: float
    rtol: float
    reason: str

    def excess(self, found: NDArray[np.generic], wanted: NDArray[np.float64]) -> float:
        """Largest error as a multiple of what is allowed; infinite for a NaN."""
        if wanted.size == 0:
            return 0.0
        error = np.abs(found.astype(np.float64) - wanted)
        worst = float(np.max(error / (self.atol + self.rtol * np.abs(wanted))))
        return worst if np.isfinite(worst) else float("inf")


# By operator and storage. float16 outputs add their own rounding below.
_BASE = {
    ("Squash", "float64"): Tolerance(1e-30, 1e-13, "a sum of squares and four roundings"),
    ("Squash", "float32"): Tolerance(1e-30, 4e-6, "a sum of squares and four roundings"),
    ("DynamicRouting", "float64"): Tolerance(1e-12, 1e-10, "the same sums in another order"),
    ("DynamicRouting", "float32"): Tolerance(
        2e-6, 2e-5, "sums of up to a thousand terms, agreements fed back through an exponential"
    ),
    ("VoteRouting", "float64"): Tolerance(1e-12, 1e-10, "the same sums in another order"),
    ("VoteRouting", "float32"): Tolerance(
        2e-6, 2e-5, "sums of up to a thousand terms, agreements fed back through an exponential"
    ),
    ("AttentionRouting", "float64"): Tolerance(1e-12, 1e-10, "the same sums in another order"),
    ("AttentionRouting", "float32"): Tolerance(
        1e-5, 2e-5, "one softmax, sums of hundreds of terms; layer normalization of unit variance"
    ),
    ("UniformRouting", "float64"): Tolerance(1e-12, 1e-10, "the same sums in another order"),
    ("UniformRouting", "float32"): Tolerance(
        1e-5, 2e-5, "sums of hundreds of terms; layer normalization of unit variance"
    ),
    ("PoseNormalization", "float64"): Tolerance(1e-12, 1e-10, "the same sums in another order"),
    ("PoseNormalization", "float32"): Tolerance(
        2e-6, 4e-6, "two sums over the row; differences from the mean, brought to unit variance"
    ),
    ("FastConv", "float64"): Tolerance(1e-12, 1e-10, "the same sums in another order"),
    ("FastConv", "float32"): Tolerance(
        5e-5,
        2e-5,
        "outputs of unit variance; transforms of tiles of 3x3 magnify the rounding of sums",
    ),
    ("SelfAttentionRouting", "float64"): Tolerance(1e-12, 1e-10, "the same sums in another order"),
    ("SelfAttentionRouting", "float32"): Tolerance(
        5e-6, 2e-5, "the sum of all votes fed through one softmax, sums of hundreds of terms"
    ),
    ("EMRouting", "float64"): Tolerance(1e-11, 1e-9, "squared deviations over small variances"),
    ("EMRouting", "float32"): Tolerance(
        2e-5, 1e-4, "sums over the pose in the exponent, of squared deviations over variances"
    ),
}

# Kinds of inputs that amplify rounding errors, with the factor on both figures and its reason.
AMPLIFYING = {
    ("DynamicRouting", "saturated"): (
        10.0, "logits in the hundreds, whose rounding (3e-5) is the couplings' relative error"
    ),
    ("VoteRouting", "saturated"): (
        10.0, "logits in the hundreds, whose rounding (3e-5) is the couplings' relative error"
    ),
    ("EMRouting", "agreeing"): (
        20.0, "votes of size 1 whose deviations, 0.01, carry a hundred times their relative error"
    ),
    ("EMRouting", "huge"): (
        20.0, "ln of variances near 1e30 in the exponent: rounding of numbers near 70, P of them"
    ),
}  # fmt: skip


def tolerance(
    operator: str, output: str, kind: str, dtype: str, size: float, *, paper: bool = False
) -> Tolerance:
    """Tolerance of one output.

    Args:
        size: typical size of a vote's element.
        paper: dynamic routing as in the paper, whose kinds of inputs amplify nothing.
    """
    if operator == "QuantizedConv":
        return Tolerance(0.5, 0.0, "whole numbers, specified to the last rounding: the same number")
    quantized = operator.startswith("Quantized")
    operator = operator.removeprefix("Quantized")
    figures = "float32" if dtype == "float16" else dtype
    base = _BASE[operator, figures]
    atol, rtol, reason = base.atol, base.rtol, base.reason
    if quantized:
        reason += "; INT8 weights are exact, their scale is one rounding more"
    amplified = AMPLIFYING.get((operator, kind))
    if amplified is not None and not paper:
        factor, why = amplified
        atol, rtol, reason = factor * atol, factor * rtol, f"{reason}; {why}"
    if operator == "EMRouting" and output == "pose":
        # A mean of votes of either sign: its rounding error is the votes', not their mean's.
        atol *= size
    if operator == "FastConv":
        atol *= size
    if dtype == "float16":
        # FP32 from the rounded inputs, then one rounding: 2^-11 relative, 2^-25 absolute.
        atol, rtol = atol + 6e-8, rtol + 6e-4
        reason += "; output rounded to 11 bits"
    return Tolerance(atol, rtol, reason)
