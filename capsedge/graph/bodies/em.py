"""Body of ``capsedge::EMRouting``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsedge.graph.bodies.body import (
    Body,
    gather_windows,
    grid,
    row,
    votes,
    weighted_sum,
    window_index,
)

# Most children that one matrix product sums. Runtimes add its terms one by one, so the rounding error grows
# with their number; the mean's error is divided by the deviations, which may be a thousandth of the mean.
# Over the 1,296 children of a class layer, couplings were 6 times as far from FP64 as eager PyTorch's, which
# sums in blocks too; in blocks of 144 (a window of 3x3 with 16 types) they are as near.
BLOCK = 144


def _coordinates(height: int, width: int, side: int) -> np.ndarray:
    """Scaled position of every cell as an addition to its votes ``[H*W, P]`` (section 4 of the paper)."""
    add = np.zeros((height, width, side * side))
    add[:, :, side - 1] = ((np.arange(height) + 0.5) / height)[:, None]
    add[:, :, 2 * side - 1] = ((np.arange(width) + 0.5) / width)[None, :]
    return add.reshape(height * width, side * side)


def _softplus(b: Body, x: str) -> str:
    """ln(1 + eˣ) without overflow; TensorRT's own Softplus overflows in FP32 above 88."""
    power = b.op("Exp", b.op("Neg", b.op("Abs", x)))
    return b.op("Add", b.op("Relu", x), b.op("Log", b.op("Add", power, b.constant(1.0))))


def _sigmoid(b: Body, x: str) -> str:
    """The logistic function, accurate where it is small, as explained in ``graph.rewrites``."""
    power = b.op("Exp", b.op("Neg", b.op("Abs", x)))
    top = b.op("Exp", b.op("Neg", b.op("Relu", b.op("Neg", x))))
    return b.op("Div", top, b.op("Add", power, b.constant(1.0)))


def _log_activation(b: Body, logit: str) -> str:
    """The logarithm of the activations plus their epsilon; ln sigmoid(x) = -softplus(-x)."""
    epsilon = b.attributes["activation_epsilon"]
    if epsilon:
        return b.op("Log", b.op("Add", _sigmoid(b, logit), b.constant(epsilon)))
    return b.op("Neg", _softplus(b, b.op("Neg", logit)))


@dataclass(frozen=True)
class _Layer:
    """Sizes of a node: places of windows ``s`` per image, children ``i`` per window, parents ``m``."""

    height: int
    width: int
    types: int
    size: int
    m: int
    side: int
    shared: bool
    kernel: tuple[int, int]
    strides: tuple[int, int]
    index: np.ndarray  # [S, cells]

    @property
    def s(self) -> int:
        return int(self.index.shape[0])

    @property
    def cells(self) -> int:
        return int(self.index.shape[1])

    @property
    def i(self) -> int:
        return self.cells * self.types

    @property
    def blocks(self) -> int:
        """The fewest equal blocks of at most ``BLOCK`` children; 1 if such blocks would have under 8."""
        wanted = (k for k in range(1, self.i // 8 + 1) if self.i % k == 0 and self.i // k <= BLOCK)
        return next(wanted, 1)


def build(b: Body) -> None:
    """Write the body: Hinton et al. 2018, procedure 1, unrolled.

    Votes and deviations are ``[N·S, M, I, P]``; responsibilities ``[N·S, M, I]``.
    """
    layer = _layer(b)
    v = _votes(b, layer)
    a = b.input("a")
    if b.attributes["normalize_activations"]:
        a = b.op("Div", a, b.op("Add", a, b.constant(b.attributes["epsilon"])))
    a_child = gather_windows(b, a, layer.height, layer.width, layer.types, layer.index)
    a_child = b.reshape(a_child, b.batched(layer.s), 1, layer.i)
    mean, logit, responsibility = _iterate(b, layer, v, a_child)
    h, w = (1, 1)
    if not layer.shared:
        h, w = grid(layer.height, layer.width, layer.kernel, layer.strides)
    b.result("pose_out", b.reshape(mean, b.batched(), h, w, layer.m, layer.size))
    b.result("a_out", b.reshape(_sigmoid(b, logit), b.batched(), h, w, layer.m))
    if b.couplings:
        c = responsibility or _equal(b, layer, a_child)
        c = b.transpose(c, 0, 2, 1)
        b.result("couplings", b.reshape(c, b.batched(), h, w, layer.i, layer.m))


def _first(b: Body, layer: _Layer) -> float:
    """The responsibilities of the first iteration."""
    return 1.0 if b.attributes["ones_first"] else 1.0 / layer.m


def _equal(b: Body, layer: _Layer, a_child: str) -> str:
    """The responsibilities of the first iteration for every window ``[N·S, M, I]``."""
    zero = b.op("Mul", a_child, b.constant(0.0))
    return b.op("Add", zero, b.constant(np.full((1, layer.m, 1), _first(b, layer))))


def _layer(b: Body) -> _Layer:
    _, height, width, types, size = (int(d or 0) for d in b.shapes["pose"])
    kh, kw, _, m, side, _ = (int(d or 0) for d in b.shapes["weight"])
    shared = bool(b.attributes["shared"])
    kernel = (height, width) if shared else (kh, kw)
    strides = (1, 1) if shared else (b.attributes["strides"][0], b.attributes["strides"][1])
    index = window_index(height, width, kernel, strides)
    return _Layer(height, width, types, size, m, side, shared, kernel, strides, index)


def _votes(b: Body, layer: _Layer) -> str:
    """Votes ``[N·S, M, I, P]``, with coordinates added if the node requires them."""
    types, m, side, size, s, i = layer.types, layer.m, layer.side, layer.size, layer.s, layer.i
    matrices = types if layer.shared else i
    matrix = b.transpose(b.reshape(b.input("weight"), matrices, m, side, side), 0, 2, 1, 3)
    if layer.shared:
        one = b.reshape(matrix, 1, types * side, m * side)
        matrix = b.op("Expand", one, b.ints([layer.cells, types * side, m * side]))
    children = gather_windows(
        b, b.input("pose"), layer.height, layer.width, types * size, layer.index
    )
    v = votes(b, children, b.reshape(matrix, i, side, m * side), s, (i, side, side, m, side))
    # The same for all types; it is stored once and expanded when the file is loaded.
    if "coordinates" in b.shapes:
        flat = b.reshape(b.input("coordinates"), layer.height * layer.width, size)
        cell = b.op("Gather", flat, b.ints(layer.index.reshape(-1).tolist()), axis=0)
        cell = b.reshape(cell, s, layer.cells, 1, size)
    elif b.attributes["coordinate_addition"]:
        positions = _coordinates(layer.height, layer.width, side)
        cell = b.constant(positions[layer.index][:, :, None])  # [S, cells, 1, P]
    else:
        return v
    add = b.op("Expand", cell, b.ints([s, layer.cells, types, size]))
    if s == 1:
        return b.op("Add", v, b.reshape(add, 1, 1, i, size))
    v = b.reshape(v, b.batched(), s, m, i * size)
    v = b.op("Add", v, b.reshape(add, s, 1, i * size))
    return b.reshape(v, b.batched(s), m, i, size)


def _rows(b: Body, layer: _Layer, r: str) -> str:
    """``[N·S, M, I]`` as ``[N·S, M·K, 1, I/K]`` for K blocks of children."""
    k = layer.blocks
    if k == 1:
        return row(b, r)
    return b.reshape(r, b.batched(layer.s), layer.m * k, 1, layer.i // k)


def _total(b: Body, layer: _Layer, rows: str, x: str = "") -> str:
    """``Σ_i r_i x_i``: ``_rows`` and ``[N·S, M, I, P]`` give ``[N·S, M, 1, P]``; ``Σ_i r_i`` without x."""
    k, block, size = layer.blocks, layer.i // layer.blocks, layer.size if x else 1
    places = b.batched(layer.s)
    if x and k > 1:
        x = b.reshape(x, places, layer.m * k, block, size)
    parts = weighted_sum(b, rows, x) if x else b.sum_last(rows, block)
    if k == 1:
        return parts
    # ONNX Runtime's fused transposition, that of the last two axes, fails on an empty batch.
    parts = b.transpose(b.reshape(parts, places, layer.m, k, size), 0, 3, 1, 2)
    return b.transpose(b.sum_last(parts, k), 0, 2, 3, 1)


def _iterate(b: Body, layer: _Layer, v: str, a_child: str) -> tuple[str, str, str]:
    """Poses and activation logits of the parents, and the responsibilities behind them."""
    m, size, i = layer.m, layer.size, layer.i
    places = b.batched(layer.s)
    iterations, temperatures = b.attributes["iterations"], b.attributes["inverse_temperatures"]
    beta_u = b.reshape(b.op("Mul", b.input("beta_u"), b.constant(size)), 1, m)
    beta_a = b.reshape(b.input("beta_a"), 1, m)
    eps = b.constant(b.attributes["epsilon"])
    own = b.attributes["variance_epsilon"]
    variance_eps = b.constant(own) if own else eps
    mean = logit = responsibility = ""
    for iteration in range(iterations):
        # M-step. In the first pass, it is the same for all parents.
        if iteration == 0:
            share = b.op("Mul", a_child, b.constant(_first(b, layer)))
            r = b.op("Add", share, b.constant(np.zeros((1, m, 1))))
        else:
            r = b.op("Mul", responsibility, a_child)
        r = _rows(b, layer, r)
        mass = _total(b, layer, r)  # [N·S, M, 1, 1]
        divisor = b.op("Add", mass, eps)
        mean = b.op("Div", _total(b, layer, r, v), divisor)  # [N·S, M, 1, P]
        mean = b.keep_iteration_value(mean, "pose", iteration + 1)
        difference = b.op("Sub", v, mean)
        deviation = b.op("Mul", difference, difference)
        variance = b.op("Add", b.op("Div", _total(b, layer, r, deviation), divisor), variance_eps)
        logarithm = b.op("Log", variance)
        half = b.sum_last(logarithm, size, 0.5)
        log_variance = b.reshape(half, places, m)
        costly = b.reshape(mass, places, m)
        if b.attributes["cost_epsilon"]:
            costly = b.op("Add", costly, b.constant(b.attributes["cost_epsilon"]))
        cost = b.op("Mul", b.op("Add", beta_u, log_variance), costly)
        logit = b.op("Mul", b.op("Sub", beta_a, cost), b.constant(temperatures[iteration]))
        logit = b.keep_iteration_value(logit, "logit", iteration + 1)
        if b.traced:
            b.keep("couplings", responsibility or _equal(b, layer, a_child), m, i)
            b.keep("poses", mean, m, size)
            b.keep("distances", b.op("Sqrt", b.sum_last(deviation, size)), m, i)
            b.keep("activations", _sigmoid(b, logit), m)
            b.keep("children", a_child, i)
        if iteration + 1 == iterations and b.rewrites.dead_update:
            break
        # E-step in the log domain.
        precision = b.op("Div", b.constant(0.5), b.reshape(variance, places, m, size, 1))
        distance = b.reshape(b.op("MatMul", deviation, precision), places, m, i)
        log_a = _log_activation(b, logit)
        # Terms shared by all parents cancel in the softmax. They are removed before the sum over the pose,
        # which could otherwise reach hundreds and leave few digits for the distances.
        common = b.sum_last(b.transpose(logarithm, 0, 3, 2, 1), m, 1.0 / m)
        common = b.reshape(common, places, 1, 1, size)
        own = b.sum_last(b.op("Sub", logarithm, common), size, 0.5)
        prior = b.reshape(b.op("Sub", log_a, b.reshape(own, places, m)), places, m, 1)
        updated = b.op("Softmax", b.op("Sub", prior, distance), axis=1)
        b.keep("agreement", updated, m, i)
        if iteration + 1 == iterations:
            break  # no M-step follows
        responsibility = b.keep_iteration_value(updated, "couplings", iteration + 2)
    return mean, logit, responsibility
