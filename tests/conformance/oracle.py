"""The operators in float64 numpy, as the papers' procedures read: one loop an index.

Written from docs/reference/operators.md and the papers, apart from the PyTorch definitions; imports neither
torch nor onnx. Every function takes arrays of any floating-point type and returns float64. Slow on
purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _double(x: ArrayLike) -> Array:
    return np.asarray(x, dtype=np.float64)


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max())
    result: Array = shifted / shifted.sum()
    return result


def _squash_vector(s: Array, epsilon: float) -> Array:
    n2 = float(s @ s)
    y: Array = s * (n2 / (1.0 + n2)) / np.sqrt(n2 + epsilon)
    return y


def _positions(
    height: int, width: int, kernel: tuple[int, int], strides: Sequence[int]
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Output row, output column, and the input cells of that window by row, then column."""
    for out_y in range((height - kernel[0]) // strides[0] + 1):
        for out_x in range((width - kernel[1]) // strides[1] + 1):
            top, left = out_y * strides[0], out_x * strides[1]
            cells = [(top + dy, left + dx) for dy in range(kernel[0]) for dx in range(kernel[1])]
            yield out_y, out_x, cells


def squash(x: ArrayLike, axis: int = -1, epsilon: float = 1e-8) -> Array:
    """Sabour et al. 2017, equation 1; ``x [..., P, ...]`` with the pose along ``axis``."""
    vectors = np.moveaxis(_double(x), axis, -1)
    y = np.zeros_like(vectors)
    for index in np.ndindex(vectors.shape[:-1]):
        y[index] = _squash_vector(vectors[index], epsilon)
    return np.moveaxis(y, -1, axis)


def vote_routing(
    votes: ArrayLike,
    log_prior: ArrayLike,
    bias: ArrayLike,
    image_prior: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    iterations: int,
    leaky: bool,
    over_children: bool,
    replace: bool,
    normalize: bool,
    elementwise: bool,
    agreement_scale: float,
    epsilon: float,
) -> tuple[Array, Array]:
    """Procedure 1 over votes ``[N, I, J, P]`` with what published networks do otherwise."""
    votes, log_prior, bias = map(_double, (votes, log_prior, bias))
    images, children, _, size = votes.shape
    parents = log_prior.shape[1]
    votes = np.broadcast_to(votes, (images, children, parents, size))
    prior = np.zeros((1, 1, 1)) if image_prior is None else _double(image_prior)
    prior = np.broadcast_to(prior, (images, children, parents))
    factors = np.ones((1, 1)) if mask is None else _double(mask)
    factors = np.broadcast_to(factors, (images, children))
    v = np.zeros((images, parents, size))
    couplings = np.zeros((images, children, parents))
    for n in range(images):
        b = log_prior + prior[n]
        for iteration in range(iterations):
            if over_children:
                for j in range(parents):
                    couplings[n, :, j] = factors[n] * _softmax(b[:, j])
            else:
                for i in range(children):
                    logits = np.append(b[i], 0.0) if leaky else b[i]
                    couplings[n, i] = 0.0
                    if factors[n, i]:  # else the child is not looked at
                        couplings[n, i] = factors[n, i] * _softmax(logits)[:parents]
            for j in range(parents):
                s = bias[j].copy()
                for i in range(children):
                    if factors[n, i] or over_children:
                        s += couplings[n, i, j] * votes[n, i, j]
                if elementwise:
                    v[n, j] = [_squash_vector(s[k : k + 1], epsilon)[0] for k in range(size)]
                else:
                    v[n, j] = _squash_vector(s, epsilon)
                if iteration == iterations - 1:
                    continue
                parent = s / np.sqrt(s @ s + epsilon) if normalize else v[n, j]
                for i in range(children):
                    agreed = agreement_scale * (votes[n, i, j] @ parent)
                    b[i, j] = agreed if replace else b[i, j] + agreed
    return v, couplings


def dynamic_routing(
    u: ArrayLike,
    weight: ArrayLike,
    log_prior: ArrayLike,
    bias: ArrayLike,
    vote_bias: ArrayLike | None = None,
    image_prior: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    **attributes: Any,
) -> tuple[Array, Array]:
    """``vote_routing`` over the votes ``W_ij u_i + c_ij``."""
    u, weight = map(_double, (u, weight))
    constants = np.zeros((1, *weight.shape[1:3])) if vote_bias is None else _double(vote_bias)
    images, children = u.shape[:2]
    votes = np.zeros((images, children, *weight.shape[1:3]))
    for n, i in np.ndindex(images, children):
        own = weight[i if len(weight) > 1 else 0]
        constant = constants[i if len(constants) > 1 else 0]
        for j in range(weight.shape[1]):
            votes[n, i, j] = own[j] @ u[n, i] + constant[j]
    return vote_routing(votes, log_prior, bias, image_prior, mask, **attributes)


def _em_position(
    votes: Array,
    a: Array,
    beta_u: Array,
    beta_a: Array,
    inverse_temperatures: Sequence[float],
    epsilon: float,
    variance_epsilon: float,
    activation_epsilon: float,
    cost_epsilon: float,
    first: float,
) -> tuple[Array, Array, Array]:
    """Procedure 1 for one position; ``votes [I, M, P]``, ``a [I]``, ``first`` responsibilities."""
    children, parents, size = votes.shape
    responsibility = np.full((children, parents), first)
    mean = np.zeros((parents, size))
    variance = np.zeros((parents, size))
    argument = np.zeros(parents)
    for iteration, inverse_temperature in enumerate(inverse_temperatures):
        for j in range(parents):
            r = responsibility[:, j] * a
            mass = r.sum()
            mean[j] = r @ votes[:, j] / (mass + epsilon)
            variance[j] = r @ (votes[:, j] - mean[j]) ** 2 / (mass + epsilon)
            variance[j] += variance_epsilon if variance_epsilon > 0 else epsilon
            cost = size * beta_u[j] + 0.5 * np.log(variance[j]).sum()
            cost *= mass + cost_epsilon
            argument[j] = inverse_temperature * (beta_a[j] - cost)
        if iteration < len(inverse_temperatures) - 1:
            log_a = -np.logaddexp(0.0, -argument)
            if activation_epsilon:
                log_a = np.logaddexp(log_a, np.log(activation_epsilon))
            for i in range(children):
                square = (votes[i] - mean) ** 2 / variance
                responsibility[i] = _softmax(log_a - 0.5 * (square + np.log(variance)).sum(axis=1))
    # exp of the log-sigmoid: no overflow for large negative arguments.
    return mean, np.exp(-np.logaddexp(0.0, -argument)), responsibility


def em_routing(
    pose: ArrayLike,
    a: ArrayLike,
    weight: ArrayLike,
    beta_u: ArrayLike,
    beta_a: ArrayLike,
    coordinates: ArrayLike | None = None,
    *,
    iterations: int,
    strides: Sequence[int],
    inverse_temperatures: Sequence[float],
    coordinate_addition: bool,
    shared: bool,
    normalize_activations: bool,
    ones_first: bool,
    epsilon: float,
    variance_epsilon: float = 0.0,
    activation_epsilon: float = 0.0,
    cost_epsilon: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Hinton et al. 2018, procedure 1, with the liberties of public implementations.

    Returns:
        Poses ``[N, H', W', M, P]``, activations ``[N, H', W', M]``, responsibilities of the last
        M-step ``[N, H', W', I, M]``.
    """
    pose, a, weight, beta_u, beta_a = map(_double, (pose, a, weight, beta_u, beta_a))
    assert iterations == len(inverse_temperatures)
    images, height, width, types, size = pose.shape
    side = round(size**0.5)
    added = np.zeros((height, width, size)) if coordinates is None else _double(coordinates)
    if coordinate_addition:
        for y, x in np.ndindex(height, width):
            added[y, x, side - 1] = (y + 0.5) / height  # element (0, √P-1) of the vote
            added[y, x, 2 * side - 1] = (x + 0.5) / width
    parents = weight.shape[3]
    kernel = (height, width) if shared else (weight.shape[0], weight.shape[1])
    positions = list(_positions(height, width, kernel, (1, 1) if shared else strides))
    rows, columns = positions[-1][0] + 1, positions[-1][1] + 1
    children = kernel[0] * kernel[1] * types

    out_pose = np.zeros((images, rows, columns, parents, size))
    out_a = np.zeros((images, rows, columns, parents))
    couplings = np.zeros((images, rows, columns, children, parents))
    for n in range(images):
        for out_y, out_x, cells in positions:
            votes = np.zeros((children, parents, size))
            child_a = np.zeros(children)
            i = 0
            for cell, (y, x) in enumerate(cells):
                for c in range(types):
                    child_a[i] = a[n, y, x, c]
                    if normalize_activations:
                        child_a[i] /= child_a[i] + epsilon
                    matrix = pose[n, y, x, c].reshape(side, side)
                    for j in range(parents):
                        w = weight[0, 0, c, j] if shared else weight[divmod(cell, kernel[1])][c, j]
                        votes[i, j] = (matrix @ w).reshape(size) + added[y, x]
                    i += 1
            place = (n, out_y, out_x)
            out_pose[place], out_a[place], couplings[place] = _em_position(
                votes, child_a, beta_u, beta_a, inverse_temperatures, epsilon,
                variance_epsilon, activation_epsilon, cost_epsilon,
                1.0 if ones_first else 1.0 / parents,
            )  # fmt: skip
    return out_pose, out_a, couplings


def attention_routing(
    pose: ArrayLike,
    parent: ArrayLike,
    weight: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    strides: Sequence[int],
    matrix_pose: bool,
    agreement_scale: float,
    epsilon: float,
) -> tuple[Array, Array]:
    """One pass of Tsai et al. 2020, procedure 1.

    Returns:
        Poses ``[N, H', W', M, P]`` and couplings ``[N, H', W', I, M]``.
    """
    pose, parent, weight, scale, bias = map(_double, (pose, parent, weight, scale, bias))
    images, height, width, types, size_in = pose.shape
    kernel = (weight.shape[0], weight.shape[1])
    parents, size = parent.shape[3:]
    rows_of_pose = round(size_in**0.5) if matrix_pose else 1
    children = kernel[0] * kernel[1] * types

    out = np.zeros(parent.shape)
    couplings = np.zeros((*parent.shape[:3], children, parents))
    for n in range(images):
        for out_y, out_x, cells in _positions(height, width, kernel, strides):
            s = np.zeros((parents, size))
            i = 0
            for cell, (y, x) in enumerate(cells):
                for c in range(types):
                    matrix = pose[n, y, x, c].reshape(rows_of_pose, -1)
                    vote = np.zeros((parents, size))
                    agreement = np.zeros(parents)
                    for j in range(parents):
                        w = weight[divmod(cell, kernel[1])][c, j]
                        vote[j] = (matrix @ w).reshape(size)
                        agreement[j] = agreement_scale * (parent[n, out_y, out_x, j] @ vote[j])
                    coupling = _softmax(agreement)
                    couplings[n, out_y, out_x, i] = coupling
                    s += coupling[:, None] * vote
                    i += 1
            for j in range(parents):
                mean = s[j].sum() / size
                variance = ((s[j] - mean) ** 2).sum() / size
                normal = (s[j] - mean) / np.sqrt(variance + epsilon)
                out[n, out_y, out_x, j] = normal * scale + bias
    return out, couplings


def self_attention_routing(
    u: ArrayLike, weight: ArrayLike, bias: ArrayLike, epsilon: float
) -> tuple[Array, Array]:
    """Mazzia et al. 2021, with the ``I x I`` agreements written out.

    Returns:
        ``v [N, J, Pout]`` and couplings ``[N, I, J]``, the bias included.
    """
    u, weight, bias = map(_double, (u, weight, bias))
    children, parents, size = weight.shape[:3]
    v = np.zeros((len(u), parents, size))
    couplings = np.zeros((len(u), children, parents))
    for n in range(len(u)):
        u_hat = np.einsum("ijpq,iq->ijp", weight, u[n])
        logits = np.zeros((children, parents))
        for j in range(parents):
            agreements = u_hat[:, j] @ u_hat[:, j].T / np.sqrt(size)
            logits[:, j] = agreements.sum(axis=1)
        for i in range(children):
            couplings[n, i] = _softmax(logits[i]) + bias[i]
        for j in range(parents):
            s = couplings[n, :, j] @ u_hat[:, j]
            length = float(np.sqrt(s @ s))
            v[n, j] = -np.expm1(-length) * s / (length + epsilon)
    return v, couplings


def uniform_routing(
    pose: ArrayLike,
    weight: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    strides: Sequence[int],
    matrix_pose: bool,
    epsilon: float,
) -> Array:
    """Tsai et al. 2020, procedure 1, the first pass: every parent is zero. ``[N, H', W', M, P]``."""
    pose, weight = _double(pose), _double(weight)
    kernel, parents = weight.shape[:2], weight.shape[3]
    size = pose.shape[-1] if matrix_pose else weight.shape[-1]
    grid = [(pose.shape[1 + k] - kernel[k]) // strides[k] + 1 for k in (0, 1)]
    parent = np.zeros((len(pose), *grid, parents, size))
    out, _ = attention_routing(
        pose, parent, weight, scale, bias, strides, matrix_pose, 1.0, epsilon
    )
    return out


def pose_normalization(x: ArrayLike, scale: ArrayLike, bias: ArrayLike, epsilon: float) -> Array:
    """Layer normalization over the last axis (Ba, Kiros, Hinton 2016, equation 3)."""
    x, scale, bias = map(_double, (x, scale, bias))
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + epsilon) * scale + bias)


def dequantized(weight: ArrayLike, scale: ArrayLike) -> Array:
    """INT8 weights ``[I, J, Pout, Pin]`` or ``[Kh, Kw, C, M, K, L]`` times their scale ``[J, Pout]`` or
    ``[M, L]``."""
    weight, scale = _double(weight), _double(scale)
    return weight * (scale[:, :, None] if weight.ndim == 4 else scale[:, None, :])


def fast_conv(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
) -> Array:
    """ONNX Conv: the sums over its window, tap by tap. ``[N, M, H', W']``."""
    x, weight = _double(x), _double(weight)
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    kernel = weight.shape[2:]
    grid = [(x.shape[2 + k] - kernel[k]) // strides[k] + 1 for k in (0, 1)]
    y = np.zeros((len(x), len(weight), *grid))
    for row, column in np.ndindex(*kernel):
        rows = slice(row, row + strides[0] * (grid[0] - 1) + 1, strides[0])
        columns = slice(column, column + strides[1] * (grid[1] - 1) + 1, strides[1])
        y += np.einsum("nchw,mc->nmhw", x[:, :, rows, columns], weight[:, :, row, column])
    return y if bias is None else y + _double(bias)[:, None, None]


def quantized_conv(
    x: NDArray[np.uint8],
    x_scale: NDArray[np.float32],
    x_zero_point: NDArray[np.uint8],
    weight: NDArray[np.int8],
    weight_scale: NDArray[np.float32],
    weight_zero_point: NDArray[np.int8],
    y_scale: NDArray[np.float32],
    y_zero_point: NDArray[np.uint8],
    bias: NDArray[np.int32],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Array:
    """ONNX QLinearConv: exact sums, then three FP32 operations. ``[N, M, H', W']``, whole numbers."""
    assert not weight_zero_point.any()
    images = x.astype(np.int64) - int(x_zero_point)
    images = np.pad(images, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    kernel = weight.shape[2:]
    reach = [dilations[k] * (kernel[k] - 1) + 1 for k in (0, 1)]
    grid = [(images.shape[2 + k] - reach[k]) // strides[k] + 1 for k in (0, 1)]
    factor = (x_scale * weight_scale).astype(np.float32) / y_scale
    y = np.zeros((len(x), len(weight), *grid))
    for row in range(grid[0]):
        for column in range(grid[1]):
            top, left = row * strides[0], column * strides[1]
            window = images[
                :, :, top : top + reach[0] : dilations[0], left : left + reach[1] : dilations[1]
            ]
            total = np.einsum("ncij,mcij->nm", window, weight.astype(np.int64)) + bias
            scaled = total.astype(np.float32) * factor
            y[:, :, row, column] = np.clip(np.rint(scaled) + int(y_zero_point), 0, 255)
    return y
