"""Translate operators that only move elements; most become views and cost nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from capsedge.exporters.c.node import Node, Translator
from capsedge.exporters.c.program import (
    Program,
    Untranslatable,
    Value,
    constant,
)


def _reshape(program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    target = node.integers(1, "shape") or []
    if not node.attributes.get("allowzero"):
        target = [x.shape[k] if size == 0 else size for k, size in enumerate(target)]
    if -1 in target:
        target[target.index(-1)] = x.size // -math.prod(target)
    return [program.reshaped(x, target)]


def _flatten(program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    axis = int(node.attributes.get("axis", 1))
    front = math.prod(x.shape[: axis if axis >= 0 else axis + len(x.shape)])
    return [program.reshaped(x, (front, x.size // front))]


def _squeeze(_program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    axes = node.integers(1, "axes")
    gone = (
        {k for k, size in enumerate(x.shape) if size == 1}
        if axes is None
        else {a % len(x.shape) for a in axes}
    )
    return [_with_axes(x, [k for k in range(len(x.shape)) if k not in gone])]


def _unsqueeze(_program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    axes = node.integers(1, "axes") or []
    rank = len(x.shape) + len(axes)
    new = {a % rank for a in axes}
    own = iter(range(len(x.shape)))
    return [_with_axes(x, [None if k in new else next(own) for k in range(rank)])]


def _with_axes(x: Value, axes: list[int | None]) -> Value:
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


def _transpose(_program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    axes = node.attributes.get("perm") or tuple(reversed(range(len(x.shape))))
    return [x.transposed([int(a) for a in axes])]


def _expand(_program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    shape = np.broadcast_shapes(x.shape, tuple(node.integers(1, "shape") or ()))
    return [x.expanded(shape)]


def _slice(_program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    rank = len(x.shape)
    starts, ends = node.integers(1, "starts") or [], node.integers(2, "ends") or []
    axes = node.integers(3, "axes") or list(range(len(starts)))
    steps = node.integers(4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= rank
        start, end, step = slice(start, end, step).indices(x.shape[axis])
        if step < 0 and x.array is None:
            raise Untranslatable("a slice that counts backwards")
        x = x.sliced(axis, start, end, step)
    return [x]


def _split(_program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    axis = node.axis(0, len(x.shape))
    sizes = node.integers(1, "split")
    if sizes is None:
        each = -(-x.shape[axis] // node.outputs)
        sizes = [min(each, x.shape[axis] - k * each) for k in range(node.outputs)]
    results, start = [], 0
    for size in sizes:
        results.append(x.sliced(axis, start, start + size))
        start += size
    return results


def _concat(program: Program, node: Node) -> list[Value]:
    parts = [node.value(k) for k in range(len(node.inputs))]
    axis = node.axis(0, len(parts[0].shape))
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    first = next((p for p in parts if p.array is None), parts[0])
    result = program.new(shape, first.dtype, first.order)
    start = 0
    for part in parts:
        program.loops(result.sliced(axis, start, start + part.shape[axis]), [part], "{0}")
        start += part.shape[axis]
    return [result]


def _pad(program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    if node.attributes.get("mode", "constant") != "constant":
        raise Untranslatable(f"padding by {node.attributes['mode']}")
    pads = node.integers(1, "pads") or []
    axes = node.integers(3, "axes") or list(range(len(x.shape)))
    fill = 0.0
    if node.optional(2) is not None and node.value(2).size:
        fill = node.array(2, "the padding").reshape(-1)[0]
    shape, inner = list(x.shape), []
    for k, axis in enumerate(axes):
        before, after = pads[k], pads[k + len(axes)]
        if before < 0 or after < 0:
            raise Untranslatable("negative padding")
        inner.append((axis % len(shape), before))
        shape[axis] += before + after
    result = program.new(shape, x.dtype, x.order)
    program.loops(result, [constant(np.asarray(fill, x.dtype))], "{0}")
    view = result
    for axis, before in inner:
        view = view.sliced(axis, before, before + x.shape[axis])
    program.loops(view, [x], "{0}")
    return [result]


def _gather(program: Program, node: Node) -> list[Value]:
    x, index = node.value(0), node.array(1, "an index").astype(np.int64)
    axis = node.axis(0, len(x.shape))
    index = np.where(index < 0, index + x.shape[axis], index)
    flat = index.reshape(-1)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if flat.size and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        part = x.sliced(axis, int(flat[0]), int(flat[0]) + flat.size)
        if index.ndim == 0:
            return [_with_axes(part, [k for k in range(len(x.shape)) if k != axis])]
        return [part if index.ndim == 1 else program.reshaped(part, shape)]
    return [program.reshaped(_gathered(program, x, axis, flat), shape)]


def _gathered(program: Program, x: Value, axis: int, index: np.ndarray) -> Value:
    """Elements at positions of an axis that a table gives."""
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


def _tile(program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    for axis, times in enumerate(node.integers(1, "repeats") or []):
        if times != 1:
            index = np.tile(np.arange(x.shape[axis]), times)
            x = (
                x.expanded((*x.shape[:axis], times, *x.shape[axis + 1 :]))
                if x.shape[axis] == 1
                else _gathered(program, x, axis, index)
            )
    return [x]


def _depth_to_space(program: Program, node: Node) -> list[Value]:
    x, b = node.value(0), int(node.attributes["blocksize"])
    n, c, h, w = x.shape
    if node.attributes.get("mode", "DCR") == "DCR":
        parts = program.reshaped(x, (n, b, b, c // b // b, h, w)).transposed([0, 3, 4, 1, 5, 2])
    else:
        parts = program.reshaped(x, (n, c // b // b, b, b, h, w)).transposed([0, 1, 4, 2, 5, 3])
    return [program.reshaped(parts, (n, c // b // b, h * b, w * b))]


def _resize(program: Program, node: Node) -> list[Value]:
    """Resize axis by axis; each element is copied from the source or interpolated between two."""
    x, given = node.value(0), node.attributes
    mode, rule = (
        given.get("mode", "nearest"),
        given.get("coordinate_transformation_mode", "half_pixel"),
    )
    known = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    if mode not in ("nearest", "linear") or rule not in known or given.get("antialias"):
        raise Untranslatable(f"resizing by {mode} with {rule}")
    axes = given.get("axes") or range(len(x.shape))
    sizes = node.integers(3, "sizes") if node.optional(3) is not None else None
    scales = [float(v) for v in node.array(2, "a scale").reshape(-1)] if sizes is None else []
    for k, axis in enumerate(axes):
        source = x.shape[axis]
        scale = scales[k] if sizes is None else sizes[k] / source
        target = int(source * scale) if sizes is None else sizes[k]
        if target == source and scale == 1:
            continue
        at = _positions(source, target, scale, rule)
        if mode == "nearest":
            rounding = given.get("nearest_mode", "round_prefer_floor")
            index = {
                "round_prefer_floor": np.ceil(at - 0.5),
                "round_prefer_ceil": np.floor(at + 0.5),
                "floor": np.floor(at),
                "ceil": np.ceil(at),
            }[rounding]
            x = _gathered(program, x, axis, np.clip(index, 0, source - 1).astype(np.int64))
            continue
        at = np.clip(at, 0, source - 1)
        low = np.minimum(np.floor(at), max(source - 2, 0)).astype(np.int64)
        high = np.minimum(low + 1, source - 1)
        columns = (-1, *(1,) * (len(x.shape) - 1 - axis))
        part = constant((at - low).astype(np.float32).reshape(columns))
        rest = constant((1 - (at - low)).astype(np.float32).reshape(columns))
        pair = [_gathered(program, x, axis, low), _gathered(program, x, axis, high)]
        x = program.new(pair[0].shape)
        program.loops(x, [pair[0], rest, pair[1], part], "{0} * {1} + {2} * {3}")
    return [x]


def _positions(source: int, target: int, scale: float, rule: str) -> np.ndarray:
    """The source positions of the result's elements."""
    i = np.arange(target, dtype=np.float64)
    if rule == "asymmetric":
        return i / scale
    if rule == "align_corners":
        return i * (source - 1) / (target - 1) if target > 1 else np.zeros(1)
    if rule == "pytorch_half_pixel" and target == 1:
        return np.zeros(1)
    return (i + 0.5) / scale - 0.5


def _upsample(program: Program, node: Node) -> list[Value]:
    inputs = [node.value(0), None, node.value(1)]
    attributes = {
        **node.attributes,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return _resize(program, Node(node.name, "Resize", inputs, attributes))


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
