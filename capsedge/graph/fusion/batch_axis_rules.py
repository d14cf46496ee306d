"""Define what each operator does with the axis that counts images.

``batch_axes`` walks the graph and applies these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from capsedge.graph.fusion.batch_axes import END, BatchAxis, BatchFreeing

Rule = Callable[[BatchFreeing], None]


def _attribute(f: BatchFreeing, name: str, default: object) -> object:
    return f.graph.attribute(f.node, name, default)


def _axis(f: BatchFreeing, default: int, rank: int, name: str = "axis") -> int:
    return int(f.graph.attribute(f.node, name, default)) % max(rank, 1)


def _stays_separate(f: BatchFreeing, batch_axis: BatchAxis, *axes: int) -> None:
    """Refuse an operation along the image axis."""
    if batch_axis.axis not in axes:
        return
    if batch_axis.row is not None and not batch_axis.pure:
        raise f.wrong(
            "in a loop that takes single images as x[k], it works along the axis after theirs; "
            "x[k : k + 1] keeps their axis"
        )
    raise f.wrong("it works across the images of a batch")


def elementwise(f: BatchFreeing) -> None:
    """Operators that broadcast."""
    rank = len(f.shape(f.node.output[0]))
    aligned = {f.batch_axes[i].moved(rank - len(f.shape(i))) for i in f.varying()}
    if len(aligned) != 1:
        raise f.wrong("it joins tensors that count images on different axes")
    (batch_axis,) = aligned
    sizes = {f.shape(i)[batch_axis.axis - rank] for i in f.varying()}
    inputs = [
        i if not i or i in f.batch_axes else f.single(i, batch_axis.axis - rank, max(sizes))
        for i in f.node.input
    ]
    f.keep(batch_axis, inputs=inputs)


def first_axis(f: BatchFreeing) -> None:
    """Convolutions and similar operators: the first axis counts images."""
    batch_axis = f.only()
    if batch_axis.axis != 0:
        raise f.wrong("it works across the images of a batch")
    f.keep(batch_axis)


def resize(f: BatchFreeing) -> None:
    """The batch rule of Resize, which must not resize the batch."""
    batch_axis = f.only()
    sizes = f.value(3)
    if sizes is not None and sizes.size and len(sizes) == len(f.shape(f.node.input[0])):
        raise f.wrong("it names its size, the batch with it")
    scales = f.value(2)
    if scales is not None and scales.size and scales[batch_axis.axis] != 1:
        raise f.wrong("it works across the images of a batch")
    f.keep(batch_axis)


def along(default: int) -> Rule:
    """Operators that work along one axis and keep the shape."""

    def rule(f: BatchFreeing) -> None:
        batch_axis = f.only()
        _stays_separate(f, batch_axis, _axis(f, default, len(f.shape(f.node.input[0]))))
        f.keep(batch_axis)

    return rule


def from_axis(f: BatchFreeing) -> None:
    """The batch rule of LayerNormalization: the axes from its own on must not include the batch."""
    batch_axis = f.only()
    rank = len(f.shape(f.node.input[0]))
    _stays_separate(f, batch_axis, *range(_axis(f, -1, rank), rank))
    f.keep(batch_axis)


def cumulative(f: BatchFreeing) -> None:
    batch_axis, axis = f.only(), f.value(1)
    assert axis is not None
    _stays_separate(f, batch_axis, int(axis.reshape(-1)[0]) % len(f.shape(f.node.input[0])))
    f.keep(batch_axis)


def quantize(f: BatchFreeing) -> None:
    """The batch rule of QuantizeLinear and DequantizeLinear; scales may vary along one axis."""
    batch_axis, scale = f.only(), f.value(1)
    if scale is not None and scale.size > 1:
        _stays_separate(f, batch_axis, _axis(f, 1, len(f.shape(f.node.input[0]))))
    f.keep(batch_axis)


def reduce(f: BatchFreeing) -> None:
    """The batch rule of reductions, which must not reduce along the batch."""
    batch_axis = f.only()
    rank = len(f.shape(f.node.input[0]))
    given = f.value(1)
    named = _attribute(f, "axes", None) if given is None else given.reshape(-1)
    if named is None or not len(list(named)):  # type: ignore[call-overload]
        if _attribute(f, "noop_with_empty_axes", 0):
            return f.keep(batch_axis)
        named = range(rank)
    _without(f, batch_axis, {int(a) % rank for a in named})  # type: ignore[attr-defined]


def extreme(f: BatchFreeing) -> None:
    """ArgMax and ArgMin."""
    _without(f, f.only(), {_axis(f, 0, len(f.shape(f.node.input[0])))})


def _without(f: BatchFreeing, batch_axis: BatchAxis, axes: set[int]) -> None:
    _stays_separate(f, batch_axis, *axes)
    kept = int(f.graph.attribute(f.node, "keepdims", 1))
    f.keep(batch_axis if kept else batch_axis.moved(-sum(a < batch_axis.axis for a in axes)))


def view(f: BatchFreeing) -> None:
    """The batch rule of Reshape and Flatten."""
    f.only()
    f.viewed(f.node.input[0])


def squeeze(f: BatchFreeing) -> None:
    """The batch rule of Squeeze: the image axis moves by the axes removed before it."""
    batch_axis, axes = f.only(), f.value(1)
    shape = f.shape(f.node.input[0])
    if axes is None or batch_axis.axis in (gone := {int(a) % len(shape) for a in axes.reshape(-1)}):
        return f.viewed(f.node.input[0])
    f.keep(batch_axis.moved(-sum(a < batch_axis.axis for a in gone)))


def unsqueeze(f: BatchFreeing) -> None:
    """The batch rule of Unsqueeze: the image axis moves by the axes added before it."""
    batch_axis, axes = f.only(), f.value(1)
    assert axes is not None
    if not batch_axis.pure:
        return f.viewed(f.node.input[0])  # an image axis may reappear
    new = {int(a) % len(f.shape(f.node.output[0])) for a in axes.reshape(-1)}
    old = [k for k in range(len(f.shape(f.node.output[0]))) if k not in new]
    f.keep(replace(batch_axis, axis=old[batch_axis.axis]))


def transpose(f: BatchFreeing) -> None:
    """The batch rule of Transpose: the image axis moves with the permutation."""
    batch_axis = f.only()
    rank = len(f.shape(f.node.input[0]))
    perm = list(f.graph.attribute(f.node, "perm", range(rank - 1, -1, -1)))
    f.keep(replace(batch_axis, axis=perm.index(batch_axis.axis)))


def expand(f: BatchFreeing) -> None:
    """The batch rule of Expand: the target's size of the image axis becomes 1."""
    x, y = f.node.input[0], f.node.output[0]
    batch_axis = f.only().moved(len(f.shape(y)) - len(f.shape(x)))
    target = list(f.shape(y))
    if target[batch_axis.axis] != f.shape(x)[batch_axis.axis - len(target)]:
        raise f.wrong("it repeats the images of a batch")
    target[batch_axis.axis] = 1
    f.keep(batch_axis, inputs=[x, f.store(np.array(target, np.int64))])


def tile(f: BatchFreeing) -> None:
    """The batch rule of Tile, which must not repeat the images."""
    batch_axis, repeats = f.only(), f.value(1)
    assert repeats is not None
    if repeats[batch_axis.axis] != 1:
        raise f.wrong("it repeats the images of a batch")
    f.keep(batch_axis)


def pad(f: BatchFreeing) -> None:
    """The batch rule of Pad, which must not pad the image axis."""
    batch_axis, pads, axes = f.only(), f.value(1), f.value(3)
    assert pads is not None
    rank = len(f.shape(f.node.input[0]))
    at = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    if batch_axis.axis in at:
        k = at.index(batch_axis.axis)
        if pads[k] or pads[k + len(at)]:
            raise f.wrong("it works across the images of a batch")
    f.keep(batch_axis)


def concat(f: BatchFreeing) -> None:
    """The batch rule of Concat, of values of all images or of single ones."""
    varying = f.varying()
    rank = len(f.shape(f.node.output[0]))
    axis = _axis(f, 0, rank)
    places = [f.batch_axes[i] for i in varying]
    rows = [p.row for p in places]
    if (
        axis == places[0].axis
        and len(varying) == len(f.node.input)
        and len(set(places)) == len(places)
    ):
        same = len({replace(p, row=None) for p in places}) == 1 and places[0].pure
        if same and rows == list(range(f.batch)):
            return f.put("Identity", [varying[0]], replace(places[0], row=None))
    if len(varying) == 1 and len(f.node.input) == 1:
        return f.put("Identity", varying, places[0])
    if len(set(places)) != 1:
        raise f.wrong("it joins tensors that count images on different axes")
    _stays_separate(f, places[0], axis)
    like = varying[0]
    inputs = [i if i in f.batch_axes else f.repeated(i, places[0], like) for i in f.node.input]
    f.keep(places[0], inputs=inputs)


def scatter(f: BatchFreeing) -> None:
    """The batch rule of GatherElements and ScatterElements."""
    varying = f.varying()
    places = {f.batch_axes[i] for i in varying}
    if len(places) != 1:
        raise f.wrong("it joins tensors that count images on different axes")
    (batch_axis,) = places
    _stays_separate(f, batch_axis, _axis(f, 0, len(f.shape(f.node.output[0]))))
    f.keep(
        batch_axis,
        inputs=[
            i if i in f.batch_axes else f.repeated(i, batch_axis, varying[0]) for i in f.node.input
        ],
    )


def split(f: BatchFreeing) -> None:
    """The batch rule of Split, which must not split the batch."""
    along(0)(f)


def slices(f: BatchFreeing) -> None:
    batch_axis = f.only()
    x = f.node.input[0]
    shape = f.shape(x)
    starts, ends, axes, steps = (f.value(k) for k in (1, 2, 3, 4))
    assert starts is not None
    assert ends is not None
    at = list(range(len(starts))) if axes is None else [int(a) % len(shape) for a in axes]
    if batch_axis.axis not in at:
        return f.keep(batch_axis)
    k, size = at.index(batch_axis.axis), shape[batch_axis.axis]
    step = 1 if steps is None else int(steps[k])
    first, last, _ = slice(int(starts[k]), int(ends[k]), step).indices(size)
    inputs = list(f.node.input)
    new = ends.astype(np.int64).copy()
    if step == 1 and (first, last) == (0, size):
        new[k] = END
        inputs[2] = f.store(new)
        inputs[1] = f.store(starts.astype(np.int64))
        return f.keep(batch_axis, inputs=_alike(f, inputs))
    if batch_axis.pure and batch_axis.row is None and step == 1 and last == first + 1:
        begin = starts.astype(np.int64).copy()
        begin[k], new[k] = 0, END
        inputs[1], inputs[2] = f.store(begin), f.store(new)
        return f.keep(replace(batch_axis, row=first), inputs=_alike(f, inputs))
    raise f.wrong("it cuts the images apart")


def _alike(f: BatchFreeing, inputs: list[str]) -> list[str]:
    """Give all bounds of a slice the same type, as ONNX requires."""
    for k in (3, 4):
        value = f.value(k)
        if value is not None:
            inputs[k] = f.store(value.astype(np.int64))
    return inputs


def gather(f: BatchFreeing) -> None:
    """The batch rule of Gather, whose table or whose indices count images."""
    data, index = f.node.input
    axis = _axis(f, 0, len(f.shape(data)))
    if data not in f.batch_axes:
        return f.keep(f.batch_axes[index].moved(axis))
    batch_axis, chosen = f.only(), f.value(1)
    assert chosen is not None
    if axis != batch_axis.axis:
        return f.keep(batch_axis.moved(chosen.ndim - 1 if axis < batch_axis.axis else 0))
    images = f.images(batch_axis)
    row = int(chosen.reshape(-1)[0]) % images if chosen.size == 1 else -1
    if row < 0 or not batch_axis.pure or chosen.ndim > 1:
        raise f.wrong("it splits the images of a batch")
    f.batch_axes[data] = replace(batch_axis, row=row) if images > 1 else batch_axis
    try:
        _one_image(f, data, batch_axis)
    finally:
        f.batch_axes[data] = batch_axis


def _one_image(f: BatchFreeing, data: str, batch_axis: BatchAxis) -> None:
    """Select one image: keep them all, and merge their axis with the next if the axis is removed."""
    old = list(f.shape(data))
    old[batch_axis.axis] = 1
    new = f.shape(f.node.output[0])
    at = f.follow_reshape(f.batch_axes[data], old, new)
    target = list(new)
    target[at.axis] = -1
    f.put("Reshape", [data, f.store(np.array(target, np.int64))], at)


def one_hot(f: BatchFreeing) -> None:
    """The batch rule of OneHot, which inserts an axis."""
    batch_axis = f.only()
    rank = len(f.shape(f.node.output[0]))
    f.keep(batch_axis.moved(int(_axis(f, -1, rank) <= batch_axis.axis)))


def matmul(f: BatchFreeing) -> None:
    """The batch rule of MatMul, which must not sum along the batch."""
    left, right = f.node.input[:2]
    ranks = [len(f.shape(i)) for i in (left, right)]
    rank = max(ranks)
    if min(ranks) < 2:
        if ranks == [rank, 1] and right not in f.batch_axes and f.batch_axes[left].axis < rank - 1:
            return f.keep(f.batch_axes[left])
        raise f.wrong("it multiplies by a vector")
    found = set()
    for k, name in enumerate((left, right)):
        if name not in f.batch_axes:
            continue
        batch_axis = f.batch_axes[name].moved(rank - ranks[k])
        if batch_axis.axis == (rank - 1 if k == 0 else rank - 2):
            raise f.wrong("it works across the images of a batch")
        found.add(batch_axis)
    if len(found) != 1:
        raise f.wrong("it joins tensors that count images on different axes")
    (batch_axis,) = found
    if batch_axis.axis >= rank - 2 and len(f.varying()) > 1:
        raise f.wrong("it joins every image with every other")
    size = f.shape(f.varying()[0])[batch_axis.axis - rank]
    inputs = [
        i
        if i in f.batch_axes or batch_axis.axis >= rank - 2
        else f.single(i, batch_axis.axis - rank, size)
        for i in f.node.input
    ]
    f.keep(batch_axis, inputs=inputs)


def gemm(f: BatchFreeing) -> None:
    """The batch rule of Gemm, of which one factor may depend on the image."""
    a, b = f.node.input[:2]
    if a in f.batch_axes and b in f.batch_axes:
        raise f.wrong("it joins every image with every other")
    if len(f.node.input) > 2 and f.node.input[2] in f.batch_axes:
        raise f.wrong("more than one factor depends on the image")
    first = a in f.batch_axes
    batch_axis = f.batch_axes[a if first else b]
    flipped = bool(f.graph.attribute(f.node, "transA" if first else "transB", 0))
    if batch_axis.axis != (int(flipped) if first else int(not flipped)):
        raise f.wrong("it works across the images of a batch")
    batch_axis = replace(batch_axis, axis=0 if first else 1)
    inputs = list(f.node.input)
    if len(inputs) > 2 and inputs[2]:
        size = f.shape(f.node.output[0])[batch_axis.axis]
        inputs[2] = f.single(inputs[2], batch_axis.axis - 2, size)
    f.keep(batch_axis, inputs=inputs)


def einsum(f: BatchFreeing) -> None:
    """The batch rule of Einsum: the images have one letter, which the result has too."""
    terms, right = _terms(f)
    letters = {
        t[f.batch_axes[i].axis]
        for t, i in zip(terms, f.node.input, strict=True)
        if i in f.batch_axes
    }
    kinds = {replace(f.batch_axes[i], axis=0) for i in f.varying()}
    if len(letters) != 1 or len(kinds) != 1:
        raise f.wrong("it joins every image with every other")
    (letter,), (kind,) = letters, kinds
    if letter not in right:
        raise f.wrong("it works across the images of a batch")
    inputs = []
    for term, name in zip(terms, f.node.input, strict=True):
        if name in f.batch_axes or letter not in term:
            inputs.append(name)
            continue
        size = f.shape(f.node.output[0])[right.index(letter)]
        inputs.append(f.single(name, term.index(letter) - len(term), size))
    f.keep(replace(kind, axis=right.index(letter)), inputs=inputs)


def _terms(f: BatchFreeing) -> tuple[list[str], str]:
    """The letters of each factor and of the result, with ellipses and an implicit result spelled out."""
    equation = f.graph.attribute(f.node, "equation", b"").decode().replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    counts = [
        len(f.shape(i)) - len(t.replace("...", ""))
        for t, i in zip(terms, f.node.input, strict=True)
    ]
    most = "".join(chr(ord("À") + k) for k in range(max(counts)))  # letters that no equation uses
    full = [t.replace("...", most[len(most) - c :]) for t, c in zip(terms, counts, strict=True)]
    if arrow:
        return full, right.replace("...", most)
    once = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
    return full, most + "".join(once)


_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "Cast",
    "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf",
    "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul",
    "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid",
    "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tan", "Tanh",
    "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip
_FIRST = (
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool",
    "SpaceToDepth",
)  # fmt: skip
_REDUCE = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_FIRST, first_axis),
    **dict.fromkeys(_REDUCE, reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "TopK"), along(-1)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), quantize),
    **dict.fromkeys(("ArgMax", "ArgMin"), extreme),
    **dict.fromkeys(("Reshape", "Flatten"), view),
    **dict.fromkeys(("GatherElements", "ScatterElements"), scatter),
    "Concat": concat,
    "CumSum": cumulative,
    "Einsum": einsum,
    "Expand": expand,
    "Gather": gather,
    "Gemm": gemm,
    "LayerNormalization": from_axis,
    "MatMul": matmul,
    "OneHot": one_hot,
    "Pad": pad,
    "Resize": resize,
    "Slice": slices,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
