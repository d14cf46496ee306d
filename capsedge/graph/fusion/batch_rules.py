"""What each operator does with the axis that counts images; see ``batch_walk``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from capsedge.graph.fusion.batch_axes import END, Freeing, Place

Rule = Callable[[Freeing], None]


def _attribute(f: Freeing, name: str, default: object) -> object:
    return f.graph.attribute(f.node, name, default)


def _axis(f: Freeing, default: int, rank: int, name: str = "axis") -> int:
    return int(f.graph.attribute(f.node, name, default)) % max(rank, 1)


def _apart(f: Freeing, place: Place, *axes: int) -> None:
    """Refuse to work along the axis of the images."""
    if place.axis in axes:
        raise f.wrong("it works across the images of a batch")


def elementwise(f: Freeing) -> None:
    """Operators that broadcast."""
    rank = len(f.shape(f.node.output[0]))
    aligned = {f.places[i].moved(rank - len(f.shape(i))) for i in f.varying()}
    if len(aligned) != 1:
        raise f.wrong("it joins tensors that count images on different axes")
    (place,) = aligned
    sizes = {f.shape(i)[place.axis - rank] for i in f.varying()}
    inputs = [
        i if not i or i in f.places else f.single(i, place.axis - rank, max(sizes))
        for i in f.node.input
    ]
    f.keep(place, inputs=inputs)


def first_axis(f: Freeing) -> None:
    """Convolutions and their like: the first axis counts images."""
    place = f.only()
    if place.axis != 0:
        raise f.wrong("it works across the images of a batch")
    f.keep(place)


def resize(f: Freeing) -> None:
    place = f.only()
    sizes = f.value(3)
    if sizes is not None and sizes.size and len(sizes) == len(f.shape(f.node.input[0])):
        raise f.wrong("it names its size, the batch with it")
    scales = f.value(2)
    if scales is not None and scales.size and scales[place.axis] != 1:
        raise f.wrong("it works across the images of a batch")
    f.keep(place)


def along(default: int) -> Rule:
    """Operators along one axis that keep the shape."""

    def rule(f: Freeing) -> None:
        place = f.only()
        _apart(f, place, _axis(f, default, len(f.shape(f.node.input[0]))))
        f.keep(place)

    return rule


def from_axis(f: Freeing) -> None:
    """Layer normalization."""
    place = f.only()
    rank = len(f.shape(f.node.input[0]))
    _apart(f, place, *range(_axis(f, -1, rank), rank))
    f.keep(place)


def cumulative(f: Freeing) -> None:
    place, axis = f.only(), f.value(1)
    assert axis is not None
    _apart(f, place, int(axis.reshape(-1)[0]) % len(f.shape(f.node.input[0])))
    f.keep(place)


def quantize(f: Freeing) -> None:
    """QuantizeLinear and DequantizeLinear: their scale lies along one axis."""
    place, scale = f.only(), f.value(1)
    if scale is not None and scale.size > 1:
        _apart(f, place, _axis(f, 1, len(f.shape(f.node.input[0]))))
    f.keep(place)


def reduce(f: Freeing) -> None:
    place = f.only()
    rank = len(f.shape(f.node.input[0]))
    given = f.value(1)
    named = _attribute(f, "axes", None) if given is None else given.reshape(-1)
    if named is None or not len(list(named)):  # type: ignore[call-overload]
        if _attribute(f, "noop_with_empty_axes", 0):
            return f.keep(place)
        named = range(rank)
    _without(f, place, {int(a) % rank for a in named})  # type: ignore[attr-defined]


def extreme(f: Freeing) -> None:
    """ArgMax and ArgMin."""
    _without(f, f.only(), {_axis(f, 0, len(f.shape(f.node.input[0])))})


def _without(f: Freeing, place: Place, axes: set[int]) -> None:
    _apart(f, place, *axes)
    kept = int(f.graph.attribute(f.node, "keepdims", 1))
    f.keep(place if kept else place.moved(-sum(a < place.axis for a in axes)))


def view(f: Freeing) -> None:
    f.only()
    f.viewed(f.node.input[0])


def squeeze(f: Freeing) -> None:
    place, axes = f.only(), f.value(1)
    shape = f.shape(f.node.input[0])
    if axes is None or place.axis in (gone := {int(a) % len(shape) for a in axes.reshape(-1)}):
        return f.viewed(f.node.input[0])
    f.keep(place.moved(-sum(a < place.axis for a in gone)))


def unsqueeze(f: Freeing) -> None:
    place, axes = f.only(), f.value(1)
    assert axes is not None
    if not place.pure:
        return f.viewed(f.node.input[0])  # an axis for the images may come back
    new = {int(a) % len(f.shape(f.node.output[0])) for a in axes.reshape(-1)}
    old = [k for k in range(len(f.shape(f.node.output[0]))) if k not in new]
    f.keep(replace(place, axis=old[place.axis]))


def transpose(f: Freeing) -> None:
    place = f.only()
    rank = len(f.shape(f.node.input[0]))
    perm = list(f.graph.attribute(f.node, "perm", range(rank - 1, -1, -1)))
    f.keep(replace(place, axis=perm.index(place.axis)))


def expand(f: Freeing) -> None:
    x, y = f.node.input[0], f.node.output[0]
    place = f.only().moved(len(f.shape(y)) - len(f.shape(x)))
    target = list(f.shape(y))
    if target[place.axis] != f.shape(x)[place.axis - len(target)]:
        raise f.wrong("it repeats the images")
    target[place.axis] = 1
    f.keep(place, inputs=[x, f.store(np.array(target, np.int64))])


def tile(f: Freeing) -> None:
    place, repeats = f.only(), f.value(1)
    assert repeats is not None
    if repeats[place.axis] != 1:
        raise f.wrong("it repeats the images")
    f.keep(place)


def pad(f: Freeing) -> None:
    place, pads, axes = f.only(), f.value(1), f.value(3)
    assert pads is not None
    rank = len(f.shape(f.node.input[0]))
    at = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    if place.axis in at:
        k = at.index(place.axis)
        if pads[k] or pads[k + len(at)]:
            raise f.wrong("it works across the images of a batch")
    f.keep(place)


def concat(f: Freeing) -> None:
    varying = f.varying()
    rank = len(f.shape(f.node.output[0]))
    axis = _axis(f, 0, rank)
    places = [f.places[i] for i in varying]
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
    _apart(f, places[0], axis)
    like = varying[0]
    inputs = [i if i in f.places else f.repeated(i, places[0], like) for i in f.node.input]
    f.keep(places[0], inputs=inputs)


def scatter(f: Freeing) -> None:
    """GatherElements and ScatterElements."""
    varying = f.varying()
    places = {f.places[i] for i in varying}
    if len(places) != 1:
        raise f.wrong("it joins tensors that count images on different axes")
    (place,) = places
    _apart(f, place, _axis(f, 0, len(f.shape(f.node.output[0]))))
    f.keep(
        place,
        inputs=[i if i in f.places else f.repeated(i, place, varying[0]) for i in f.node.input],
    )


def split(f: Freeing) -> None:
    along(0)(f)


def slices(f: Freeing) -> None:
    place = f.only()
    x = f.node.input[0]
    shape = f.shape(x)
    starts, ends, axes, steps = (f.value(k) for k in (1, 2, 3, 4))
    assert starts is not None
    assert ends is not None
    at = list(range(len(starts))) if axes is None else [int(a) % len(shape) for a in axes]
    if place.axis not in at:
        return f.keep(place)
    k, size = at.index(place.axis), shape[place.axis]
    step = 1 if steps is None else int(steps[k])
    first, last, _ = slice(int(starts[k]), int(ends[k]), step).indices(size)
    inputs = list(f.node.input)
    new = ends.astype(np.int64).copy()
    if step == 1 and (first, last) == (0, size):
        new[k] = END
        inputs[2] = f.store(new)
        inputs[1] = f.store(starts.astype(np.int64))
        return f.keep(place, inputs=_alike(f, inputs))
    if place.pure and place.row is None and step == 1 and last == first + 1:
        begin = starts.astype(np.int64).copy()
        begin[k], new[k] = 0, END
        inputs[1], inputs[2] = f.store(begin), f.store(new)
        return f.keep(replace(place, row=first), inputs=_alike(f, inputs))
    raise f.wrong("it cuts the images apart")


def _alike(f: Freeing, inputs: list[str]) -> list[str]:
    """Bounds of a slice are all of one type."""
    for k in (3, 4):
        value = f.value(k)
        if value is not None:
            inputs[k] = f.store(value.astype(np.int64))
    return inputs


def gather(f: Freeing) -> None:
    data, index = f.node.input
    axis = _axis(f, 0, len(f.shape(data)))
    if data not in f.places:
        return f.keep(f.places[index].moved(axis))
    place, chosen = f.only(), f.value(1)
    assert chosen is not None
    if axis != place.axis:
        return f.keep(place.moved(chosen.ndim - 1 if axis < place.axis else 0))
    images = f.images(place)
    row = int(chosen.reshape(-1)[0]) % images if chosen.size == 1 else -1
    if row < 0 or not place.pure or chosen.ndim > 1:
        raise f.wrong("it takes the images apart")
    f.places[data] = replace(place, row=row) if images > 1 else place
    try:
        _one_image(f, data, place)
    finally:
        f.places[data] = place


def _one_image(f: Freeing, data: str, place: Place) -> None:
    """An image taken out: all of them, their axis merged with the next where it is gone."""
    old = list(f.shape(data))
    old[place.axis] = 1
    new = f.shape(f.node.output[0])
    at = f.found_again(f.places[data], old, new)
    target = list(new)
    target[at.axis] = -1
    f.put("Reshape", [data, f.store(np.array(target, np.int64))], at)


def one_hot(f: Freeing) -> None:
    place = f.only()
    rank = len(f.shape(f.node.output[0]))
    f.keep(place.moved(int(_axis(f, -1, rank) <= place.axis)))


def matmul(f: Freeing) -> None:
    left, right = f.node.input[:2]
    ranks = [len(f.shape(i)) for i in (left, right)]
    rank = max(ranks)
    if min(ranks) < 2:
        if ranks == [rank, 1] and right not in f.places and f.places[left].axis < rank - 1:
            return f.keep(f.places[left])
        raise f.wrong("it multiplies by a vector")
    found = set()
    for k, name in enumerate((left, right)):
        if name not in f.places:
            continue
        place = f.places[name].moved(rank - ranks[k])
        if place.axis == (rank - 1 if k == 0 else rank - 2):
            raise f.wrong("it works across the images of a batch")
        found.add(place)
    if len(found) != 1:
        raise f.wrong("it joins tensors that count images on different axes")
    (place,) = found
    if place.axis >= rank - 2 and len(f.varying()) > 1:
        raise f.wrong("it joins every image with every other")
    size = f.shape(f.varying()[0])[place.axis - rank]
    inputs = [
        i if i in f.places or place.axis >= rank - 2 else f.single(i, place.axis - rank, size)
        for i in f.node.input
    ]
    f.keep(place, inputs=inputs)


def gemm(f: Freeing) -> None:
    a, b = f.node.input[:2]
    if a in f.places and b in f.places:
        raise f.wrong("it joins every image with every other")
    if len(f.node.input) > 2 and f.node.input[2] in f.places:
        raise f.wrong("more than one factor depends on the image")
    first = a in f.places
    place = f.places[a if first else b]
    flipped = bool(f.graph.attribute(f.node, "transA" if first else "transB", 0))
    if place.axis != (int(flipped) if first else int(not flipped)):
        raise f.wrong("it works across the images of a batch")
    place = replace(place, axis=0 if first else 1)
    inputs = list(f.node.input)
    if len(inputs) > 2 and inputs[2]:
        size = f.shape(f.node.output[0])[place.axis]
        inputs[2] = f.single(inputs[2], place.axis - 2, size)
    f.keep(place, inputs=inputs)


def einsum(f: Freeing) -> None:
    terms, right = _terms(f)
    letters = {
        t[f.places[i].axis] for t, i in zip(terms, f.node.input, strict=True) if i in f.places
    }
    kinds = {replace(f.places[i], axis=0) for i in f.varying()}
    if len(letters) != 1 or len(kinds) != 1:
        raise f.wrong("it joins every image with every other")
    (letter,), (kind,) = letters, kinds
    if letter not in right:
        raise f.wrong("it works across the images of a batch")
    inputs = []
    for term, name in zip(terms, f.node.input, strict=True):
        if name in f.places or letter not in term:
            inputs.append(name)
            continue
        size = f.shape(f.node.output[0])[right.index(letter)]
        inputs.append(f.single(name, term.index(letter) - len(term), size))
    f.keep(replace(kind, axis=right.index(letter)), inputs=inputs)


def _terms(f: Freeing) -> tuple[list[str], str]:
    """The letters of each factor and of the result, ellipses and an implicit result written out."""
    equation = f.graph.attribute(f.node, "equation", b"").decode().replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    counts = [
        len(f.shape(i)) - len(t.replace("...", ""))
        for t, i in zip(terms, f.node.input, strict=True)
    ]
    most = "".join(chr(ord("À") + k) for k in range(max(counts)))  # letters that no equation has
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
