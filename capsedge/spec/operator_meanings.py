"""Say what inputs, outputs and attributes of the operators mean, for the pages in docs/reference/operators.

In Markdown. Shapes, types and defaults are in `capsedge.spec.operators`.
"""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.spec.operators import OPERATORS

_AGREEMENT = {
    "iterations": "`T >= 1`: T sums, T - 1 agreements",
    "leaky": "1: the sum over the parents has one more term, `exp 0`; not with `over_children`",
    "over_children": "1: the couplings of a parent sum to one over its children",
    "replace": "1: agreements replace the logits (and the priors) instead of adding to them",
    "normalize": "1: agreements are with the sum divided by its norm",
    "elementwise": "1: squash of each element by itself (epsilon as in [Squash](squash.md) with `P = 1`)",
    "agreement_scale": "factor of the agreements",
    "epsilon": "of the squash and of the norm",
}
_PRIORS = {
    "log_prior": "start logits",
    "bias": "added to the sums of a parent",
    "image_prior": "start logits of each image",
    "mask": "factors of the couplings of each image",
}
_WINDOWS = (
    "matrix poses: `K = L = √P`, `Pin = P`, the pose a square matrix; vector poses: `K = Pin`, `L = P`, "
    "the pose a row"
)
_NORMALIZED = {
    "scale": "of the layer normalization",
    "bias": "of the layer normalization",
    "matrix_pose": "1 matrix, 0 vector",
    "epsilon": "of the layer normalization; the variance is that of the population",
}
_STRIDES = {"strides": "rows, columns"}

# By operator, then by name.
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "Squash": {
        "x": "poses",
        "y": "as x",
        "axis": "axis of the pose",
        "epsilon": "makes the zero vector give zero; for `n >> sqrt(epsilon)` the length is `n²/(1+n²)`",
    },
    "DynamicRouting": {
        "u": "the children",
        "weight": "`W`",
        "vote_bias": "added to the votes",
        "v": "the parents",
        "couplings": "those of the last sum",
        **_PRIORS,
        **_AGREEMENT,
    },
    "VoteRouting": {
        "votes": "`û`",
        "v": "the parents",
        "couplings": "those of the last sum",
        **_PRIORS,
        **_AGREEMENT,
    },
    "EMRouting": {
        "pose": "`P` a square number",
        "a": "activations, in [0, 1]",
        "weight": "`K = L = √P`",
        "beta_u": "of the cost",
        "beta_a": "of the activation",
        "coordinates": "added to every vote of the children at that position, whatever their type and "
        "parent; not with `coordinate_addition`",
        "pose_out": "`μ` of the last M-step",
        "a_out": "`a` of the last M-step",
        "couplings": "`R` of the last M-step",
        "iterations": "number of M-steps, equal to the number of inverse temperatures",
        **_STRIDES,
        "inverse_temperatures": "λ, one per iteration",
        "coordinate_addition": "1: every vote gets `(y + ½)/H` added to element `(0, √P-1)` and "
        "`(x + ½)/W` to element `(1, √P-1)`, where `(y, x)` is the child's position in the input grid; "
        "`P >= 4`",
        "shared": "1: class capsules. One window over the whole grid, `H' = W' = 1`, `I = H*W*C`; "
        "`Kh = Kw = 1` and `weight` serves every position; strides are not used",
        "normalize_activations": "1: for implementations that divide `R_ij a_i` by `Σ_j R_ij a_i + ε`, which "
        "is equivalent because `Σ_j R_ij = 1`",
        "ones_first": "1: for implementations that start with responsibilities of one",
        "epsilon": "ε",
        "variance_epsilon": "`>= 0`; `ε_v`. 0: `ε`",
        "activation_epsilon": "`>= 0`; `ε_a`, added to an activation under the logarithm",
        "cost_epsilon": "`>= 0`; `ε_c`, added to `S_j` in the cost",
    },
    "AttentionRouting": {
        "pose": "the children",
        "parent": "the parents of the pass before",
        "weight": _WINDOWS,
        "pose_out": "the parents",
        "couplings": "`c`",
        "agreement_scale": "`1/sqrt(P)` in the authors' release",
        **_STRIDES,
        **_NORMALIZED,
    },
    "SelfAttentionRouting": {
        "u": "the children",
        "weight": "`W`",
        "bias": "added to the couplings",
        "v": "the parents",
        "couplings": "`c`, with the bias",
        "epsilon": "of the squash; `capsedge.ops.exponential_squash` is it alone, as standard operators",
    },
    "UniformRouting": {
        "pose": "the children",
        "weight": _WINDOWS,
        "pose_out": "the parents",
        **_STRIDES,
        **_NORMALIZED,
    },
    "PoseNormalization": {
        "x": "poses",
        "scale": "factor of each element",
        "bias": "added to each element",
        "y": "as x",
        "epsilon": "added to the variance, which is that of the population",
    },
    "FastConv": {
        "x": "images",
        "weight": "filters, as those of ONNX's `Conv` without groups",
        "bias": "added to each output channel",
        "y": "`H' = (H + pads[0] + pads[2] - Kh) / strides[0] + 1` (floor), likewise `W'`",
        "strides": "rows, columns; at most 2",
        "pads": "top, left, bottom, right; each less than the window",
    },
    "QuantizedConv": {
        "x": "images",
        "x_scale": "one number",
        "x_zero_point": "one number",
        "weight": "-127..127; `C·Kh·Kw <= 65000`, so that a sum fits 32 bits",
        "weight_scale": "one number per output channel",
        "weight_zero_point": "all zero",
        "y_scale": "one number",
        "y_zero_point": "one number",
        "bias": "in units of `x_scale · weight_scale_m`",
        "y": "`H' = (H + pads[0] + pads[2] - dilations[0]·(Kh - 1) - 1) / strides[0] + 1` (floor), likewise "
        "`W'`",
        **_STRIDES,
        "pads": "top, left, bottom, right",
        "dilations": "rows, columns",
    },
}


def meaning(operator: str, name: str) -> str:
    """What an input, output or attribute means."""
    text = MEANINGS.get(OPERATORS[operator].procedure, {}).get(name)
    if not text:
        raise ValueError(
            f"capsedge/spec/operator_meanings.py does not say what '{name}' of {operator} is"
        )
    return text
