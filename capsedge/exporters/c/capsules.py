"""Write the capsule operators that have kernels; all other cases are written as their function bodies."""

from __future__ import annotations

import math

import numpy as np

from capsedge.exporters.c.node import Node, Translator
from capsedge.exporters.c.program import Program, Untranslatable, Value, literal
from capsedge.spec.operators import OPERATORS, Operator


def inputs_of(spec: Operator, node: Node) -> dict[str, Value]:
    """The inputs that a node has, by their names."""
    names = (value.name for value in spec.inputs)
    return {n: v for n, v in zip(names, node.inputs, strict=False) if v is not None}


def has_kernel(operator: str, attributes: dict[str, object], inputs: int, outputs: int) -> bool:
    """Whether a node is computed by a kernel; otherwise its body is written.

    Args:
        inputs, outputs: how many it has.
    """
    spec = OPERATORS[operator]
    if outputs > len(spec.outputs) or spec.name not in TRANSLATORS:
        return False
    required = sum(not value.optional for value in spec.inputs)
    if spec.procedure == "DynamicRouting":
        special = [
            a
            for a in spec.attributes
            if a.name not in ("iterations", "leaky", "agreement_scale", "epsilon")
        ]
        complete = spec.complete(attributes)
        return inputs <= required and all(complete[a.name] == a.default for a in special)
    return True


def _numbers(*values: float) -> str:
    return ", ".join(str(v) if isinstance(v, int) else literal(np.float32(v)) for v in values)


def _array(values: dict[str, Value], name: str) -> np.ndarray:
    found = values[name].array
    if found is None:
        raise Untranslatable(f"an input {name} that is computed")
    return found


def _scale(program: Program, values: dict[str, Value], names: list[str]) -> str:
    """The scale of INT8 weights, or 0."""
    if "weight_scale" not in values:
        return "0"
    names.append(program.constants.add(_array(values, "weight_scale").astype(np.float32)))
    return names[-1]


def _suffix(values: dict[str, Value]) -> str:
    return "q8" if "weight_scale" in values else "f32"


def _squash(program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    rank = len(x.shape)
    given = OPERATORS["Squash"].complete(node.attributes)
    axis = given["axis"] % rank
    order = [k for k in range(rank) if k != axis] + [axis]
    x = program.ordered(x, order)
    result = program.new(x.shape, order=order)
    size = x.shape[axis]
    epsilon = _numbers(float(given["epsilon"]))
    numbers = f"{x.size // size}, {size}, {epsilon}"
    code = f"caps_squash({program.pointer(x)}, {program.pointer(result)}, {numbers});"
    program.step(code, [x], [result], kernels=["squash"], overwrites=True)
    return [result]


def _dynamic(program: Program, node: Node) -> list[Value]:
    spec = OPERATORS[node.operator]
    values, given = inputs_of(spec, node), spec.complete(node.attributes)
    u, weight = program.ordered(values["u"]), _array(values, "weight")
    n, children, depth = u.shape
    own, parents, size, _ = weight.shape
    everything = parents * size
    padded = -(-everything // 4) * 4
    flat = np.zeros((own, padded, depth), weight.dtype)
    flat[:, :everything] = weight.reshape(own, everything, depth)
    wide = padded // 16 * 16  # columns of 16 results, then of 4
    columns = [
        part.reshape(own, -1, width, depth).transpose(0, 1, 3, 2).reshape(own, -1)
        for part, width in ((flat[:, :wide], 16), (flat[:, wide:], 4))
        if part.size
    ]
    packed = np.concatenate(columns, axis=1)
    prior = np.broadcast_to(_array(values, "log_prior"), (children, parents)).astype(np.float32)
    names = [program.constants.add(packed)]
    scale = _scale(program, values, names)
    bias = np.broadcast_to(_array(values, "bias"), (parents, size)).astype(np.float32)
    names.append(program.constants.add(bias))
    # A term shared by all parents of a child cancels in the softmax, unless leaky routing adds a parent.
    even = not given["leaky"] and np.all(prior == prior[:, :1])
    priors = "0"
    if np.any(prior) and not even:
        priors = program.constants.add(prior)
        names.append(priors)
    result = program.new((n, parents, size))
    suffix = _suffix(values)
    for k in range(n):
        x, y = (program.pointer(v.sliced(0, k, k + 1)) for v in (u, result))
        numbers = _numbers(
            children, parents, size, depth, given["iterations"], given["leaky"], int(own == 1)
        )
        ends = _numbers(float(given["agreement_scale"]), float(given["epsilon"]))
        code = (
            f"caps_dynamic_{suffix}({x}, {names[0]}, {scale}, {priors}, {program.constants.add(bias)}, {y}, "
            f"(float *)SCRATCH, {numbers}, {ends});"
        )
        program.step(
            code, [u], [result], kernels=[f"dynamic_{suffix}"], scratch=4 * (3 * padded + parents),
            products=given["iterations"] * children * everything * (depth + 2), constants=names,
        )  # fmt: skip
    return [result]


def _windows(
    values: dict[str, Value], given: dict[str, object], rows: int, shared: bool
) -> tuple[list[int], int]:
    """The numbers of ``caps_windows``, and the children of a window."""
    _, height, width, types, size = values["pose"].shape
    kh, kw, _, parents, k, out = _array(values, "weight").shape
    strides = given["strides"]
    assert isinstance(strides, tuple | list)
    if size != rows * k:
        raise Untranslatable(f"poses of {size} elements with matrices of {k} rows")
    grid = (1, 1) if shared else ((height - kh) // strides[0] + 1, (width - kw) // strides[1] + 1)
    numbers = [height, width, types, parents, rows, k, out, kh, kw, *strides, *grid, int(shared)]
    return [int(v) for v in numbers], (height * width if shared else kh * kw) * types


def _em(program: Program, node: Node) -> list[Value]:
    spec = OPERATORS[node.operator]
    values, given = inputs_of(spec, node), spec.complete(node.attributes)
    weight = _array(values, "weight")
    shared = bool(given["shared"])
    numbers, children = _windows(values, given, weight.shape[4], shared)
    parents, k, out = weight.shape[3:]
    size = k * out
    pose, a = program.ordered(values["pose"]), program.ordered(values["a"])
    suffix = _suffix(values)
    names = [program.constants.add(weight)]
    scale = _scale(program, values, names)
    vectors = [_array(values, name).astype(np.float32) for name in ("beta_u", "beta_a")]
    vectors.append(np.asarray(given["inverse_temperatures"], np.float32))
    given_names = [program.constants.add(v) for v in vectors]
    coordinates = "0"
    if "coordinates" in values:
        coordinates = program.constants.add(_array(values, "coordinates").astype(np.float32))
        given_names.append(coordinates)
    first = 1.0 if given["ones_first"] else 1.0 / parents
    head = f"static const caps_em_{suffix}_t c = {{{{{_numbers(*numbers)}}}, " + _numbers(
        given["iterations"], given["coordinate_addition"], given["normalize_activations"], first,
        float(given["epsilon"]),
    ) + "};"  # fmt: skip
    n = pose.shape[0]
    grid = numbers[11:13]
    poses = program.new((n, *grid, parents, size))
    activations = program.new((n, *grid, parents))
    for image in range(n):
        parts = (v.sliced(0, image, image + 1) for v in (pose, a, poses, activations))
        x, xa, y, ya = (program.pointer(part) for part in parts)
        arguments = [
            x,
            xa,
            names[0],
            scale,
            *given_names[:3],
            coordinates,
            y,
            ya,
            "(float *)SCRATCH",
        ]
        program.step(
            f"{{ {head} caps_em_{suffix}(&c, {', '.join(arguments)}); }}", [pose, a], [poses, activations],
            kernels=[f"em_{suffix}"], scratch=4 * (4 * parents * size + 2 * parents + children * parents),
            products=math.prod(grid) * given["iterations"] * 2 * children * parents * size * (k + 2),
            constants=[*names, *given_names],
        )  # fmt: skip
    return [poses, activations]


def _attention(program: Program, node: Node) -> list[Value]:
    spec = OPERATORS[node.operator]
    values, given = inputs_of(spec, node), spec.complete(node.attributes)
    weight = _array(values, "weight")
    parents, k, out = weight.shape[3:]
    rows = k if given["matrix_pose"] else 1
    numbers, children = _windows(values, given, rows, False)
    size = rows * out
    pose = program.ordered(values["pose"])
    n = pose.shape[0]
    shape = (n, *numbers[11:13], parents, size)
    agreed = None
    if "parent" in values:
        agreed = program.ordered(values["parent"].expanded(shape))
    suffix = _suffix(values)
    names = [program.constants.add(weight)]
    scale = _scale(program, values, names)
    gains = [
        program.constants.add(_array(values, name).astype(np.float32)) for name in ("scale", "bias")
    ]
    result = program.new(shape)
    reads = [pose] if agreed is None else [pose, agreed]
    struct = f"static const caps_windows c = {{{_numbers(*numbers)}}};"
    ends = _numbers(float(given.get("agreement_scale", 1.0)), float(given["epsilon"]))
    for image in range(n):
        x, y = (program.pointer(v.sliced(0, image, image + 1)) for v in (pose, result))
        parent = "0" if agreed is None else program.pointer(agreed.sliced(0, image, image + 1))
        arguments = [x, parent, names[0], scale, *gains, y, "(float *)SCRATCH", ends]
        program.step(
            f"{{ {struct} caps_attention_{suffix}(&c, {', '.join(arguments)}); }}", reads, [result],
            kernels=[f"attention_{suffix}"], scratch=4 * (2 * parents * size + parents),
            products=math.prod(shape[1:]) * children * (k + (1 if agreed is None else 2)),
            constants=[*names, *gains],
        )  # fmt: skip
    return [result]


TRANSLATORS: dict[str, Translator] = {
    "Squash": _squash,
    "DynamicRouting": _dynamic,
    "QuantizedDynamicRouting": _dynamic,
    "EMRouting": _em,
    "QuantizedEMRouting": _em,
    **dict.fromkeys(
        (
            "AttentionRouting",
            "UniformRouting",
            "QuantizedAttentionRouting",
            "QuantizedUniformRouting",
        ),
        _attention,
    ),
}
