"""Body of ``capsedge::UniformRouting``."""

from __future__ import annotations

from capsedge.exporters.bodies._builder import Body
from capsedge.exporters.bodies._votes import grid


def build(b: Body) -> None:
    """Write the body: with the pose's row folded into the batch, a convolution from ``C·K`` to ``M·L``
    channels, or one matrix product where the window is the whole grid; then layer normalization."""
    _, height, width, types, _ = (int(d or 0) for d in b.shapes["pose"])
    kh, kw, _, m, k, out = (int(d or 0) for d in b.shapes["weight"])
    rows = k if b.attributes["matrix_pose"] else 1
    strides = (b.attributes["strides"][0], b.attributes["strides"][1])
    h, w = grid(height, width, (kh, kw), strides)

    share = b.op("Mul", b.input("weight"), b.constant(1 / m))
    x = b.reshape(b.input("pose"), -1, height, width, types, rows, k)
    if (kh, kw) == (height, width):
        matrix = b.reshape(b.transpose(share, 0, 1, 2, 4, 3, 5), kh * kw * types * k, m * out)
        x = b.reshape(b.transpose(x, 0, 4, 1, 2, 3, 5), -1, kh * kw * types * k)
        s = b.transpose(b.reshape(b.op("MatMul", x, matrix), -1, rows, m, out), 0, 2, 1, 3)
    else:
        kernel = b.reshape(b.transpose(share, 3, 5, 2, 4, 0, 1), m * out, types * k, kh, kw)
        x = b.reshape(b.transpose(x, 0, 4, 3, 5, 1, 2), -1, types * k, height, width)
        s = b.op("Conv", x, kernel, strides=list(strides), kernel_shape=[kh, kw])
        s = b.transpose(b.reshape(s, -1, rows, m, out, h, w), 0, 4, 5, 2, 1, 3)
    y = b.op(
        "LayerNormalization",
        b.reshape(s, -1, h, w, m, rows * out),
        b.input("scale"),
        b.input("bias"),
        axis=-1,
        epsilon=b.attributes["epsilon"],
    )
    b.result("pose_out", b.mark(y, "iter1_pose"))
