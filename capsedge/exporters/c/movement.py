"""Translate operators that only move elements; most become views and cost nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from capsedge.exporters.c.per_element import broadcast
from capsedge.exporters.c.program import (
    MOST_BYTES,
    Array,
    CNode,
    Program,
    ProgramValue,
    Translator,
    Untranslatable,
    checked_tensor_bytes,
    constant,
    nonnegative_axis,
)


def _reshape(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    target = node.integers(1, "shape") or []
    if not node.attributes.get("allowzero"):
        own = (*x.shape, *[0] * len(target))
        target = [own[k] if size == 0 else size for k, size in enumerate(target)]
    if target.count(-1) == 1 and (known := -math.prod(target)) > 0:
        target[target.index(-1)] = x.size // known
    return [program.reshaped(x, target)]


def _flatten(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    axis, rank = int(node.attributes.get("axis", 1)), len(x.shape)
    front = math.prod(x.shape[: rank if axis == rank else nonnegative_axis(axis, rank)])
    return [program.reshaped(x, (front, x.size // max(front, 1)))]


def _squeeze(_program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    axes = node.integers(1, "axes")
    gone = (
        {k for k, size in enumerate(x.shape) if size == 1}
        if axes is None
        else {nonnegative_axis(a, len(x.shape)) for a in axes}
    )
    if any(x.shape[k] != 1 for k in gone):
        raise Untranslatable(f"{list(x.shape)} without the axes {sorted(gone)}")
    return [_with_axes(x, [k for k in range(len(x.shape)) if k not in gone])]


def _unsqueeze(_program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    axes = node.integers(1, "axes") or []
    rank = len(x.shape) + len(axes)
    new = {nonnegative_axis(a, rank) for a in axes}
    if len(new) < len(axes):
        raise Untranslatable(f"the new axes {axes}")
    own = iter(range(len(x.shape)))
    return [_with_axes(x, [None if k in new else next(own) for k in range(rank)])]


def _with_axes(x: ProgramValue, axes: list[int | None]) -> ProgramValue:
    """A view with these axes, some of them new with size 1."""
    shape = tuple(1 if a is None else x.shape[a] for a in axes)
    if x.array is not None:
        return constant(x.array.reshape(shape))
    # A new axis is placed next to its neighbour, which keeps the order of the others.
    strides: list[int] = []
    for k, a in enumerate(axes):
        behind = [x.strides[b] * x.shape[b] for b in axes[k + 1 :] if b is not None]
        strides.append(x.strides[a] if a is not None else behind[0] if behind else 1)
    return replace(x, shape=shape, strides=tuple(strides))


def _transpose(_program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    axes = [int(a) for a in node.attributes.get("perm") or reversed(range(len(x.shape)))]
    if sorted(axes) != list(range(len(x.shape))):
        raise Untranslatable(f"the axes {axes} of {len(x.shape)}")
    return [x.transposed(axes)]


def _expand(_program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    shape = broadcast([x.shape, tuple(node.integers(1, "shape") or ())])
    checked_tensor_bytes(math.prod(shape))  # as long as it is only a view, too
    return [x.expanded(shape)]


def _slice(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    rank = len(x.shape)
    starts, ends = node.integers(1, "starts") or [], node.integers(2, "ends") or []
    axes = node.integers(3, "axes") or list(range(len(starts)))
    steps = node.integers(4, "steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Untranslatable(f"a slice from {starts} to {ends} by {steps} along {axes}")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = nonnegative_axis(axis, rank)
        start, end, step = slice(start, end, step).indices(x.shape[axis])
        if step > 0:
            x = x.sliced(axis, start, max(start, end), step)
        else:
            x = gathered(program, x, axis, np.arange(start, end, step))
    return [x]


def _split(_program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    axis = node.axis(0, len(x.shape))
    sizes = node.integers(1, "split")
    if sizes is None:
        each = -(-x.shape[axis] // node.outputs)
        sizes = [min(each, x.shape[axis] - k * each) for k in range(node.outputs)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0 or len(sizes) != node.outputs:
        raise Untranslatable(f"parts of {sizes} elements of an axis of {x.shape[axis]}")
    results, start = [], 0
    for size in sizes:
        results.append(x.sliced(axis, start, start + size))
        start += size
    return results


def _concat(program: Program, node: CNode) -> list[ProgramValue]:
    parts = [node.value(k) for k in range(len(node.inputs))]
    axis = node.axis(0, len(parts[0].shape))
    shape = list(parts[0].shape)
    others = {(p.dtype, *p.shape[:axis], "", *p.shape[axis + 1 :]) for p in parts}
    if len(others) > 1:
        raise Untranslatable(f"parts of shapes {', '.join(str(list(p.shape)) for p in parts)}")
    parts = [p for p in parts if p.size] or parts[:1]
    shape[axis] = sum(part.shape[axis] for part in parts)
    first = next((p for p in parts if p.array is None), parts[0])
    result = program.new(shape, first.dtype, first.order)
    start = 0
    for part in parts:
        program.loops(result.sliced(axis, start, start + part.shape[axis]), [part], "{0}")
        start += part.shape[axis]
    return [result]


def _pad(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    rank = len(x.shape)
    pads = node.integers(1, "pads") or []
    axes = [nonnegative_axis(a, rank) for a in node.integers(3, "axes") or range(rank)]
    if len(pads) != 2 * len(axes) or len(set(axes)) < len(axes):
        raise Untranslatable(f"{len(pads)} numbers to pad the axes {axes}")
    around = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    for axis, (before, after) in around.items():  # what is cut off
        end = x.shape[axis] - max(-after, 0)
        x = x.sliced(axis, max(-before, 0), end)
    around = {a: (max(before, 0), max(after, 0)) for a, (before, after) in around.items()}
    mode = node.attributes.get("mode", "constant")
    if mode != "constant":
        return [_mirrored(program, x, around, mode)]
    fill = node.attributes.get("value", 0.0)
    if node.optional(2) is not None:
        fill = node.filled(2, "the padding", ()).item()
    shape = list(x.shape)
    for axis, (before, after) in around.items():
        shape[axis] += before + after
    result = program.new(shape, x.dtype, x.order)
    program.loops(result, [constant(np.asarray(fill, x.dtype))], "{0}")
    view = result
    for axis, (before, _) in around.items():
        view = view.sliced(axis, before, before + x.shape[axis])
    program.loops(view, [x], "{0}")
    return [result]


def _mirrored(
    program: Program, x: ProgramValue, around: dict[int, tuple[int, int]], mode: str
) -> ProgramValue:
    """Padding with elements of the tensor itself."""
    for axis, (before, after) in around.items():
        size = x.shape[axis]
        if not before and not after:
            continue
        checked_tensor_bytes(before + size + after)
        at = np.arange(-before, size + after)
        if mode == "edge":
            index = np.clip(at, 0, size - 1)
        elif mode == "wrap":
            index = at % size
        elif mode == "reflect" and max(before, after) < size:
            index = np.abs((at + size - 1) % max(2 * size - 2, 1) - (size - 1))
        else:
            raise Untranslatable(f"padding by {mode}")
        x = gathered(program, x, axis, index)
    return x


def _gather(program: Program, node: CNode) -> list[ProgramValue]:
    x, index = node.value(0), node.array(1, "an index").astype(np.int64)
    axis = node.axis(0, len(x.shape))
    wrong = index[(index < -x.shape[axis]) | (index >= x.shape[axis])]
    if wrong.size:
        raise Untranslatable(f"element {wrong[0]} of an axis of {x.shape[axis]}")
    index = np.where(index < 0, index + x.shape[axis], index)
    flat = index.reshape(-1)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if flat.size and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        part = x.sliced(axis, int(flat[0]), int(flat[0]) + flat.size)
        if index.ndim == 0:
            return [_with_axes(part, [k for k in range(len(x.shape)) if k != axis])]
        return [part if index.ndim == 1 else program.reshaped(part, shape)]
    return [program.reshaped(gathered(program, x, axis, flat), shape)]


def gathered(program: Program, x: ProgramValue, axis: int, index: np.ndarray) -> ProgramValue:
    """Elements at positions of an axis that a table gives."""
    if x.array is not None:
        return constant(x.array.take(index, axis))
    x = program.ordered(x)
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], index.size, *x.shape[axis + 1 :])
    result = program.new(shape, x.dtype)
    table = program.constants.add(index.astype(np.int32))
    code = (
        f"{{ int a, i, k; for (a = 0; a < {before}; a++) for (i = 0; i < {index.size}; i++) "
        f"for (k = 0; k < {after}; k++) {program.pointer(result)}[(a * {index.size} + i) * {after} + k] = "
        f"{program.pointer(x)}[(a * {x.shape[axis]} + {table}[i]) * {after} + k]; }}"
    )
    program.step(code, [x], [result], constants=[table])
    return result


def _tile(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    repeats = node.integers(1, "repeats") or []
    if len(repeats) != len(x.shape) or min(repeats, default=1) < 1:
        raise Untranslatable(f"{repeats} repeats of {list(x.shape)}")
    for axis, times in enumerate(repeats):
        if times != 1:
            checked_tensor_bytes(times * x.size)
            index = np.tile(np.arange(x.shape[axis]), times)
            x = (
                x.expanded((*x.shape[:axis], times, *x.shape[axis + 1 :]))
                if x.shape[axis] == 1
                else gathered(program, x, axis, index)
            )
    return [x]


def _depth_to_space(program: Program, node: CNode) -> list[ProgramValue]:
    x, b = node.value(0), int(node.attributes.get("blocksize", 0))
    if len(x.shape) != 4 or b < 1 or x.shape[1] % (b * b):
        raise Untranslatable(f"blocks of {b} from {list(x.shape)}")
    n, c, h, w = x.shape
    if node.attributes.get("mode", "DCR") == "DCR":
        parts = program.reshaped(x, (n, b, b, c // b // b, h, w)).transposed([0, 3, 4, 1, 5, 2])
    else:
        parts = program.reshaped(x, (n, c // b // b, b, b, h, w)).transposed([0, 1, 4, 2, 5, 3])
    return [program.reshaped(parts, (n, c // b // b, h * b, w * b))]


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_RULES = ("half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners", "pytorch_half_pixel")


def _resize(program: Program, node: CNode) -> list[ProgramValue]:
    """Resize axis by axis; each element is copied from the source or interpolated between two."""
    x, given = node.value(0), node.attributes
    mode = given.get("mode", "nearest")
    rule = given.get("coordinate_transformation_mode", "half_pixel")
    nearest = _NEAREST.get(given.get("nearest_mode", "round_prefer_floor"))
    if (
        mode not in ("nearest", "linear")
        or rule not in _RULES
        or nearest is None
        or given.get("antialias")
    ):
        raise Untranslatable(f"resizing by {mode} with {rule}")
    if mode == "linear":
        node.floats(0)
    targets = _targets(node, x)
    if all(target == x.shape[axis] for axis, (target, _) in targets.items()):
        return [x]  # whatever the scales, as in ONNX Runtime
    for axis, (target, scale) in targets.items():
        source = x.shape[axis]
        if target == source and scale == 1:
            continue
        checked_tensor_bytes(x.size // source * target)
        at = _positions(source, target, scale, rule)
        if mode == "nearest":
            index = np.clip(nearest(at.astype(np.float64)), 0, source - 1).astype(np.int64)
            x = gathered(program, x, axis, index)
        else:
            x = _interpolated(program, x, axis, np.clip(at, 0, source - 1))
    return [x]


def _targets(node: CNode, x: ProgramValue) -> dict[int, tuple[int, float]]:
    """The size and the scale of every axis that is resized."""
    rank = len(x.shape)
    if node.opset < 11:
        raise Untranslatable("a version before 11")
    axes = [nonnegative_axis(int(a), rank) for a in node.attributes.get("axes") or range(rank)]
    sizes = node.integers(3, "sizes") if node.optional(3) is not None else None
    if sizes is None:
        scales = [float(v) for v in node.array(2, "a scale").reshape(-1)]
        if len(scales) != len(axes) or not all(0 < s < MOST_BYTES for s in scales):
            raise Untranslatable(f"the scales {scales} of the axes {axes}")
        # In FP32, as ONNX Runtime computes it: 10 * 0.7 is 7 there, as in PyTorch, and 6.9999999 in FP64.
        each = [
            (int(np.float32(x.shape[a]) * np.float32(s)), s)
            for a, s in zip(axes, scales, strict=True)
        ]
    else:
        if len(sizes) != len(axes) or min(sizes, default=1) < 1:
            raise Untranslatable(f"the sizes {sizes} of the axes {axes}")
        each = [(size, size / x.shape[a]) for a, size in zip(axes, sizes, strict=True)]
        policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            join = {"not_larger": min, "not_smaller": max}.get(policy)
            if join is None:
                raise Untranslatable(f"the policy {policy}")
            scale = join(s for _, s in each)
            each = [(math.floor(x.shape[a] * scale + 0.5), scale) for a in axes]
    if any(size < 1 for size, _ in each):
        raise Untranslatable("a tensor without elements")
    return dict(zip(axes, each, strict=True))


def _interpolated(program: Program, x: ProgramValue, axis: int, at: Array) -> ProgramValue:
    """Elements between two neighbours of an axis."""
    source = x.shape[axis]
    low = np.minimum(np.floor(at), max(source - 2, 0)).astype(np.int64)
    high = np.minimum(low + 1, source - 1)
    columns = (-1, *(1,) * (len(x.shape) - 1 - axis))
    part = constant((at - low).astype(np.float32).reshape(columns))
    rest = constant((1 - (at - low)).astype(np.float32).reshape(columns))
    pair = [gathered(program, x, axis, low), gathered(program, x, axis, high)]
    result = program.new(pair[0].shape)
    program.loops(result, [pair[0], rest, pair[1], part], "{0} * {1} + {2} * {3}")
    return result


def _positions(source: int, target: int, scale: float, rule: str) -> Array:
    """The source positions of the result's elements.

    Raises:
        Untranslatable: ONNX and ONNX Runtime round the size differently.
    """
    # In FP32 and in ONNX Runtime's order: nearest neighbours depend on the last bit.
    i, half, by = np.arange(target, dtype=np.float32), np.float32(0.5), np.float32(scale)
    if rule == "asymmetric":
        return i / by
    middle = (i + half) / by - half
    if rule == "half_pixel_symmetric":
        adjustment = np.float32(target) / (by * np.float32(source))
        return np.float32(source / 2) * (np.float32(1) - adjustment) + middle
    ends = rule == "align_corners" or (rule == "pytorch_half_pixel" and target == 1)
    if ends and abs(source * scale - target) > 1e-4:
        raise Untranslatable(f"{rule} with the scale {scale:g} of {source} elements")
    if ends:
        return i * np.float32(source - 1) / np.float32(max(target - 1, 1))
    return middle


def _upsample(program: Program, node: CNode) -> list[ProgramValue]:
    scales = node.optional(1)
    if scales is None:
        scales = constant(np.asarray(node.attributes.get("scales", ()), np.float32))
    attributes = {
        **node.attributes,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return _resize(program, CNode(node.name, "Resize", [node.value(0), None, scales], attributes))


TRANSLATORS: dict[str, Translator] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Pad": _pad,
    "Gather": _gather,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "Resize": _resize,
    "Upsample": _upsample,
}
