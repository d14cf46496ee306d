"""Matrix products, sums along axes and normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from capsedge.exporters.c.convolutions import convolve
from capsedge.exporters.c.per_element import broadcast, elementwise
from capsedge.exporters.c.program import (
    Array,
    CNode,
    Program,
    ProgramValue,
    Translator,
    Untranslatable,
    c_literal,
    constant,
    nonnegative_axis,
)

# --- Matrix products ---


def _gemm(program: Program, node: CNode) -> list[ProgramValue]:
    given = node.attributes
    a, b = node.floats(0), node.floats(1)
    if (len(a.shape), len(b.shape)) != (2, 2):
        raise Untranslatable(f"matrices of shapes {list(a.shape)} and {list(b.shape)}")
    a = a.transposed([1, 0]) if given.get("transA") else a
    b = b.transposed([1, 0]) if given.get("transB") else b
    alpha, beta = float(given.get("alpha", 1.0)), float(given.get("beta", 1.0))
    c = None if node.optional(2) is None else node.floats(2)
    if c is not None and broadcast([c.shape, (a.shape[0], b.shape[1])]) != (a.shape[0], b.shape[1]):
        raise Untranslatable(f"{list(c.shape)} added to {[a.shape[0], b.shape[1]]}")
    if b.array is not None and (c is None or (c.array is not None and c.shape[:-1] in ((), (1,)))):
        bias = np.zeros(b.shape[1], np.float32)
        with np.errstate(all="ignore"):  # weights may be anything
            if c is not None and c.array is not None:
                bias = np.broadcast_to(c.array.reshape(-1) * np.float32(beta), (b.shape[1],))
            return [_dense(program, node, a, b.array * np.float32(alpha), bias)]
    y = _product(program, a, b)
    if alpha != 1.0:
        y = elementwise(program, [y], f"{{0}} * {c_literal(np.float32(alpha))}")
    if c is not None:
        y = elementwise(program, [y, c], f"{{0}} + {{1}} * {c_literal(np.float32(beta))}")
    if node.relu:
        y = elementwise(program, [y], "{0} < 0.0f ? 0.0f : {0}")
    return [y]


def _dense(program: Program, node: CNode, a: ProgramValue, b: Array, bias: Array) -> ProgramValue:
    """``a[M, K] · b[K, N] + bias[N]``: a convolution by windows of one pixel."""
    rows, k = a.shape
    image = program.reshaped(a, (1, rows, 1, k)).transposed([0, 3, 1, 2])
    weight = np.ascontiguousarray(b.T.astype(np.float32))[:, :, None, None]
    plain = CNode(node.name, "Conv", [], {}, 1, node.relu)
    y = convolve(program, plain, image, weight, bias)
    return program.reshaped(y.transposed([0, 2, 3, 1]), (rows, b.shape[1]))


def _matmul(program: Program, node: CNode) -> list[ProgramValue]:
    a, b = node.floats(0), node.floats(1)
    if b.array is not None and b.array.ndim == 2 and len(a.shape) >= 2:
        flat = program.reshaped(a, (a.size // a.shape[-1], a.shape[-1]))
        y = _dense(program, node, flat, b.array, np.zeros(b.shape[1], np.float32))
        return [program.reshaped(y, (*a.shape[:-1], b.shape[1]))]
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Untranslatable("a product with a vector")
    return [_product(program, a, b)]


def _product(program: Program, a: ProgramValue, b: ProgramValue) -> ProgramValue:
    """A matrix product of any strides; the axes in front are broadcast, in loops around the call."""
    if a.shape[-1] != b.shape[-2]:
        raise Untranslatable(f"a product of {list(a.shape)} and {list(b.shape)}")
    front = broadcast([a.shape[:-2], b.shape[:-2]])
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    a, b = (program.ordered(v) if v.array is not None else v for v in (a, b))
    wide = [v.strides for v in (a, b)]
    result = program.new((*front, m, n))
    steps = []
    for v, strides in zip((a, b), wide, strict=True):
        missing = len(front) - len(v.shape[:-2])
        own = [0 if d == 1 else s for d, s in zip(v.shape[:-2], strides[:-2], strict=True)]
        steps.append([0] * missing + own)
    loops, indices = [], [[program.pointer(a)], [program.pointer(b)], [program.pointer(result)]]
    for axis, size in enumerate(front):
        if size == 1:
            continue
        loops.append(f"for (i{axis} = 0; i{axis} < {size}; i{axis}++) ")
        for index, step in zip(
            indices, (steps[0][axis], steps[1][axis], result.strides[axis]), strict=True
        ):
            if step:
                index.append(f"i{axis} * {step}")
    names = [loop.split()[1][1:] for loop in loops]
    declared = f"int {', '.join(names)}; " if names else ""
    pa, pb, py = (" + ".join(index) for index in indices)
    code = (
        f"{{ {declared}{''.join(loops)}caps_matmul({pa}, {wide[0][-2]}, {wide[0][-1]}, {pb}, {wide[1][-2]}, "
        f"{wide[1][-1]}, {py}, {n}, 1, {m}, {k}, {n}); }}"
    )
    names = [program.pointer(v) for v in (a, b) if v.array is not None]
    program.step(
        code,
        [a, b],
        [result],
        kernels=["matmul"],
        products=math.prod(front) * m * k * n,
        constants=names,
    )
    return result


# --- Along axes ---

_REDUCTIONS = {  # initial value, update per element, final step; NaN stays
    "ReduceSum": ("0.0f", "s + v", "s"),
    "ReduceMean": ("0.0f", "s + v", "s * {scale}"),
    "ReduceSumSquare": ("0.0f", "s + v * v", "s"),
    "ReduceL2": ("0.0f", "s + v * v", "caps_sqrt(s)"),
    "ReduceL1": ("0.0f", "s + (v < 0.0f ? -v : v)", "s"),
    "ReduceProd": ("1.0f", "s * v", "s"),
    "ReduceMax": ("-INFINITY", "v > s || v != v ? v : s", "s"),
    "ReduceMin": ("INFINITY", "v < s || v != v ? v : s", "s"),
}


def _reduce(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.floats(0)
    rank = len(x.shape)
    axes = node.integers(1, "axes")
    if not axes:
        axes = [] if node.attributes.get("noop_with_empty_axes") else list(range(rank))
    gone = {nonnegative_axis(a, rank) for a in axes}
    kept = [1 if k in gone else size for k, size in enumerate(x.shape)]
    result = program.new(kept)
    start, join, end = _REDUCTIONS[node.operator]
    end = end.format(scale=c_literal(np.float32(mean_factor(x.shape, gone))))
    outer = [(k, size) for k, size in enumerate(x.shape) if k not in gone and size > 1]
    inner = [(k, x.shape[k]) for k in sorted(gone) if x.shape[k] > 1]
    names = [f"i{k}" for k, _ in (*outer, *inner)]
    declared = f"int {', '.join(names)}; " if names else ""
    heads = [
        "".join(f"for (i{k} = 0; i{k} < {size}; i{k}++) " for k, size in part)
        for part in (outer, inner)
    ]
    at = " + ".join(f"i{k} * {x.strides[k]}" for k, _ in (*outer, *inner)) or "0"
    to = " + ".join(f"i{k} * {result.strides[k]}" for k, _ in outer) or "0"
    code = (
        f"{{ {declared}{heads[0]}{{ float s = {start}; {heads[1]}{{ "
        f"const float v = {program.pointer(x)}[{at}]; s = {join}; }} "
        f"{program.pointer(result)}[{to}] = {end}; }} }}"
    )
    program.step(code, [x], [result])
    if node.attributes.get("keepdims", 1):
        return [result]
    return [program.reshaped(result, [s for k, s in enumerate(kept) if k not in gone])]


def mean_factor(shape: Sequence[int], gone: set[int]) -> float:
    """One over the number of elements that are added."""
    return 1.0 / math.prod(shape[k] for k in gone)


def _softmax(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.floats(0)
    rank = len(x.shape)
    axis = node.axis(-1 if node.opset >= 13 else 1, rank)
    if node.opset < 13:  # all axes from this one on, as one
        flat = program.reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return [program.reshaped(_softmax_along(program, node, flat, 1), x.shape)]
    return [_softmax_along(program, node, x, axis)]


def _softmax_along(program: Program, node: CNode, x: ProgramValue, axis: int) -> ProgramValue:
    result = elementwise(program, [x], "{0}")
    others = [(k, size) for k, size in enumerate(x.shape) if k != axis and size > 1]
    loops = "".join(f"for (i{k} = 0; i{k} < {size}; i{k}++) " for k, size in others)
    declared = f"int {', '.join(f'i{k}' for k, _ in others)}; " if others else ""
    at = "".join(f" + i{k} * {result.strides[k]}" for k, _ in others)
    call = f"({program.pointer(result)}{at}, {x.shape[axis]}, {result.strides[axis]}"
    if node.operator == "LogSoftmax":
        kernel, call = "log_softmax", f"caps_log_softmax{call});"
    else:
        kernel, call = "softmax", f"caps_softmax{call}, 0);"
    program.step(f"{{ {declared}{loops}{call} }}", [result], [result], kernels=[kernel])
    return result


def _layer_normalization(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.floats(0)
    rank = len(x.shape)
    axis = rank - 1 if node.operator == "PoseNormalization" else node.axis(-1, rank)
    size = math.prod(x.shape[axis:])
    scale = node.filled(1, "a scale", x.shape[axis:]).astype(np.float32)
    bias = np.zeros(x.shape[axis:], np.float32)
    if node.optional(2) is not None:
        bias = node.filled(2, "a bias", x.shape[axis:]).astype(np.float32)
    if node.outputs > 1:
        raise Untranslatable("normalization that returns its statistics")
    x = program.ordered(x)
    result = program.new(x.shape)
    names = [program.constants.add(scale), program.constants.add(bias)]
    epsilon = c_literal(np.float32(node.attributes.get("epsilon", 1e-5)))
    code = (
        f"caps_normalize_rows({program.pointer(x)}, {program.pointer(result)}, {x.size // size}, {size}, "
        f"{names[0]}, {names[1]}, {epsilon});"
    )
    program.step(code, [x], [result], kernels=["normalize"], overwrites=[x], constants=names)
    return [result]


def _instance_normalization(program: Program, node: CNode) -> list[ProgramValue]:
    """Normalize each channel of an image separately, then apply its scale and bias."""
    x = node.floats(0)
    if len(x.shape) < 3:
        raise Untranslatable(f"an input of {len(x.shape)} dimensions")
    n, c, *_ = x.shape
    size = x.size // (n * c)
    flat = program.reshaped(x, (n, c, size))
    one, none = constant(np.ones(size, np.float32)), constant(np.zeros(size, np.float32))
    rows = CNode(
        node.name,
        "LayerNormalization",
        [flat, one, none],
        {"epsilon": node.attributes.get("epsilon", 1e-5)},
    )
    (y,) = _layer_normalization(program, rows)
    pair = [
        constant(node.filled(k, "a scale", (c,)).astype(np.float32).reshape(1, c, 1))
        for k in (1, 2)
    ]
    return [program.reshaped(elementwise(program, [y, *pair], "{0} * {1} + {2}"), x.shape)]


TRANSLATORS: dict[str, Translator] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "LayerNormalization": _layer_normalization,
    "PoseNormalization": _layer_normalization,
    "InstanceNormalization": _instance_normalization,
}
