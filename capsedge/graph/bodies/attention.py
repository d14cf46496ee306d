"""Body of ``capsedge::AttentionRouting``."""

from __future__ import annotations

from capsedge.graph.bodies._builder import Body
from capsedge.graph.bodies._votes import (
    agreement,
    grid,
    row,
    votes,
    weighted_sum,
    window_index,
    windows,
)
from capsedge.graph.bodies.normalization import normalize


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
    children = windows(b, b.input("pose"), height, width, types * size_in, index)
    v = votes(b, children, b.reshape(matrix, i, k, m * out), s, (i, rows, k, m, out))
    scale = b.attributes["agreement_scale"]
    logits = agreement(b, v, b.input("parent"), (s, m, i, size), scale)
    couplings = b.op("Softmax", logits, axis=1)
    couplings = b.mark(couplings, "couplings")
    y = b.mark(normalize(b, weighted_sum(b, row(b, couplings), v)), "pose")
    if b.traced:
        b.keep("couplings", couplings, m, i)
        b.keep("poses", y, m, size)
        b.keep("agreement", agreement(b, v, y, (s, m, i, size)), m, i)
    h, w = grid(height, width, (kh, kw), strides)
    b.result("pose_out", b.reshape(y, b.batched(), h, w, m, size))
    if b.couplings:
        b.result("couplings", b.reshape(b.transpose(couplings, 0, 2, 1), b.batched(), h, w, i, m))
