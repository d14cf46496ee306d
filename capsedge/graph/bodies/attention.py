"""Write the bodies of ``capsedge::AttentionRouting`` and ``capsedge::UniformRouting``."""

from __future__ import annotations

from capsedge.graph.bodies.body import (
    Body,
    agreement,
    gather_windows,
    grid,
    row,
    votes,
    weighted_sum,
    window_index,
)
from capsedge.graph.bodies.elementwise import normalize

# --- AttentionRouting ---


def build(b: Body) -> None:
    """Write the body: Tsai et al. 2020, procedure 1, one pass. Votes are ``[N·S, M, I, P]``."""
    _, height, width, types, size_in = (int(d or 0) for d in b.shapes["pose"])
    kh, kw, _, m, k, out = (int(d or 0) for d in b.shapes["weight"])
    rows = k if b.attributes["matrix_pose"] else 1
    size = rows * out
    strides = (b.attributes["strides"][0], b.attributes["strides"][1])
    index = window_index(height, width, (kh, kw), strides)
    s, cells = index.shape
    i = cells * types

    matrix = b.transpose(b.reshape(b.input("weight"), i, m, k, out), 0, 2, 1, 3)
    children = gather_windows(b, b.input("pose"), height, width, types * size_in, index)
    v = votes(b, children, b.reshape(matrix, i, k, m * out), s, (i, rows, k, m, out))
    scale = b.attributes["agreement_scale"]
    logits = agreement(b, v, b.input("parent"), (s, m, i, size), scale)
    couplings = b.op("Softmax", logits, axis=1)
    couplings = b.keep_iteration_value(couplings, "couplings")
    y = b.keep_iteration_value(normalize(b, weighted_sum(b, row(b, couplings), v)), "pose")
    if b.traced:
        b.keep("couplings", couplings, m, i)
        b.keep("poses", y, m, size)
        b.keep("agreement", agreement(b, v, y, (s, m, i, size)), m, i)
    h, w = grid(height, width, (kh, kw), strides)
    b.result("pose_out", b.reshape(y, b.batched(), h, w, m, size))
    if b.couplings:
        b.result("couplings", b.reshape(b.transpose(couplings, 0, 2, 1), b.batched(), h, w, i, m))


# --- UniformRouting ---


def build_uniform(b: Body) -> None:
    """Write the body: with the pose's row folded into the batch, a convolution from ``C·K`` to ``M·L``
    channels, or one matrix product if the window is the whole grid; then layer normalization.
    """
    _, height, width, types, _ = (int(d or 0) for d in b.shapes["pose"])
    kh, kw, _, m, k, out = (int(d or 0) for d in b.shapes["weight"])
    rows = k if b.attributes["matrix_pose"] else 1
    strides = (b.attributes["strides"][0], b.attributes["strides"][1])
    h, w = grid(height, width, (kh, kw), strides)
    n, poses = b.batched(), b.batched(rows)
    cells, parents = height * width, h * w * m

    share = b.op("Mul", b.input("weight"), b.constant(1 / m))
    x = b.input("pose")
    if rows > 1:  # [N, cells·C, R, K] -> [N, R, cells·C, K]
        x = b.transpose(b.reshape(x, n, cells * types, rows, k), 0, 2, 1, 3)
    share = b.reshape(share, kh * kw * types, m, k, out)
    if (kh, kw) == (height, width):
        matrix = b.reshape(b.transpose(share, 0, 2, 1, 3), kh * kw * types * k, m * out)
        s = b.op("MatMul", b.reshape(x, poses, cells * types * k), matrix)
    else:
        kernel = b.reshape(b.transpose(share, 1, 3, 0, 2), m * out, kh * kw, types * k)
        kernel = b.reshape(b.transpose(kernel, 0, 2, 1), m * out, types * k, kh, kw)
        x = b.transpose(b.reshape(x, poses, cells, types * k), 0, 2, 1)
        x = b.reshape(x, poses, types * k, height, width)
        s = b.op("Conv", x, kernel, strides=list(strides), kernel_shape=[kh, kw])
        s = b.transpose(b.reshape(s, poses, m * out, h * w), 0, 2, 1)
    if rows > 1:  # [N, R, parents, L] -> [N, parents, R, L]
        s = b.transpose(b.reshape(s, n, rows, parents, out), 0, 2, 1, 3)
    y = b.keep_iteration_value(normalize(b, b.reshape(s, n, parents, rows * out)), "pose")
    b.result("pose_out", b.reshape(y, n, h, w, m, rows * out))
