"""Write the capsule operators that have kernels; all other cases are written as their function bodies."""

from __future__ import annotations

import math

import numpy as np

from capsedge.exporters.c.program import (
    MOST_BYTES,
    CNode,
    Program,
    ProgramValue,
    Translator,
    Untranslatable,
    broadcast_constant,
    c_literal,
    nonnegative_axis,
)
from capsedge.spec import limits
from capsedge.spec.operators import OPERATORS, Operator


def inputs_of(spec: Operator, node: CNode) -> dict[str, ProgramValue]:
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
    return ", ".join(str(v) if isinstance(v, int) else c_literal(np.float32(v)) for v in values)


def _array(values: dict[str, ProgramValue], name: str) -> np.ndarray:
    found = values[name].array
    if found is None:
        raise Untranslatable(f"an input {name} that is computed")
    return found


def _weight(values: dict[str, ProgramValue], rank: int) -> np.ndarray:
    """The weight, INT8 if it has a scale."""
    weight = _array(values, "weight")
    wanted = "int8" if "weight_scale" in values else "float32"
    if weight.ndim != rank or weight.dtype.name != wanted or not weight.size:
        raise Untranslatable(f"a weight of shape {list(weight.shape)}, {weight.dtype}")
    return weight


def _filled(values: dict[str, ProgramValue], name: str, *shape: int) -> np.ndarray:
    """A constant input as floats of this shape."""
    return broadcast_constant(_array(values, name), name, shape).astype(np.float32)


def _computed(
    program: Program, values: dict[str, ProgramValue], name: str, rank: int
) -> ProgramValue:
    """An input of float32, dense."""
    value = values[name]
    if value.dtype != "float32" or len(value.shape) != rank:
        raise Untranslatable(f"an input {name} of shape {list(value.shape)}, {value.dtype}")
    return program.ordered(value)


def _iterations(given: dict[str, object]) -> int:
    """How many there are, within the limit of other readers."""
    found = given.get("iterations")
    if not isinstance(found, int) or not 1 <= found <= limits.ITERATIONS:
        raise Untranslatable(f"{found} iterations")
    return found


def _scale(
    program: Program, values: dict[str, ProgramValue], names: list[str], parents: int, size: int
) -> str:
    """The scale of INT8 weights, or 0."""
    if "weight_scale" not in values:
        return "0"
    names.append(program.constants.add(_filled(values, "weight_scale", parents, size)))
    return names[-1]


def _suffix(values: dict[str, ProgramValue]) -> str:
    return "q8" if "weight_scale" in values else "f32"


def _squash(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.floats(0)
    rank = len(x.shape)
    given = OPERATORS["Squash"].complete(node.attributes)
    axis = nonnegative_axis(given["axis"], rank)
    order = [k for k in range(rank) if k != axis] + [axis]
    x = program.ordered(x, order)
    result = program.new(x.shape, order=order)
    size = x.shape[axis]
    epsilon = _numbers(float(given["epsilon"]))
    numbers = f"{x.size // size}, {size}, {epsilon}"
    code = f"caps_squash({program.pointer(x)}, {program.pointer(result)}, {numbers});"
    program.step(code, [x], [result], kernels=["squash"], overwrites=[x])
    return [result]


def _dynamic(program: Program, node: CNode) -> list[ProgramValue]:
    spec = OPERATORS[node.operator]
    values, given = inputs_of(spec, node), spec.complete(node.attributes)
    u, weight = _computed(program, values, "u", 3), _weight(values, 4)
    n, children, depth = u.shape
    own, parents, size, last = weight.shape
    if own not in (1, children) or last != depth:
        raise Untranslatable(f"a weight of shape {list(weight.shape)} for {list(u.shape)}")
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
    prior = _filled(values, "log_prior", children, parents)
    names = [program.constants.add(packed)]
    scale = _scale(program, values, names, parents, size)
    bias = _filled(values, "bias", parents, size)
    names.append(program.constants.add(bias))
    # A term shared by all parents of a child cancels in the softmax, unless leaky routing adds a parent.
    even = not given["leaky"] and np.all(prior == prior[:, :1])
    priors = "0"
    if np.any(prior) and not even:
        priors = program.constants.add(prior)
        names.append(priors)
    result = program.new((n, parents, size))
    iterations = _iterations(given)
    suffix = _suffix(values)
    for k in range(n):
        x, y = (program.pointer(v.sliced(0, k, k + 1)) for v in (u, result))
        numbers = _numbers(
            children, parents, size, depth, iterations, int(bool(given["leaky"])), int(own == 1)
        )
        ends = _numbers(float(given["agreement_scale"]), float(given["epsilon"]))
        code = (
            f"caps_dynamic_{suffix}({x}, {names[0]}, {scale}, {priors}, {program.constants.add(bias)}, {y}, "
            f"(float *)SCRATCH, {numbers}, {ends});"
        )
        program.step(
            code, [u], [result], kernels=[f"dynamic_{suffix}"], scratch=4 * (3 * padded + parents),
            products=iterations * children * everything * (depth + 2), constants=names,
        )  # fmt: skip
    return [result]


def _windows(
    values: dict[str, ProgramValue], given: dict[str, object], rows: int, shared: bool
) -> tuple[list[int], int]:
    """The numbers of ``caps_windows``, and the children of a window."""
    _, height, width, types, size = values["pose"].shape
    weight = _weight(values, 6)
    kh, kw, own, parents, k, out = weight.shape
    strides = given["strides"]
    if not isinstance(strides, tuple | list) or len(strides) != 2 or min(strides) < 1:
        raise Untranslatable(f"strides of {strides}")
    if size != rows * k or types != own or kh > height or kw > width or (shared and kh * kw > 1):
        shapes = f"{list(values['pose'].shape)} with a weight of shape {list(weight.shape)}"
        raise Untranslatable(f"poses of shape {shapes}")
    if max(strides) > MOST_BYTES // 2:
        raise Untranslatable(f"strides of {strides}")
    grid = (1, 1) if shared else ((height - kh) // strides[0] + 1, (width - kw) // strides[1] + 1)
    numbers = [height, width, types, parents, rows, k, out, kh, kw, *strides, *grid, int(shared)]
    return [int(v) for v in numbers], (height * width if shared else kh * kw) * types


def _em(program: Program, node: CNode) -> list[ProgramValue]:
    spec = OPERATORS[node.operator]
    values, given = inputs_of(spec, node), spec.complete(node.attributes)
    weight = _weight(values, 6)
    shared = bool(given["shared"])
    pose, a = _computed(program, values, "pose", 5), _computed(program, values, "a", 4)
    if a.shape != pose.shape[:4]:
        raise Untranslatable(f"activations of shape {list(a.shape)} for {list(pose.shape)}")
    numbers, children = _windows(values, given, weight.shape[4], shared)
    parents, k, out = weight.shape[3:]
    size = k * out
    iterations, centres = _iterations(given), int(bool(given["coordinate_addition"]))
    if centres and k < 2:
        raise Untranslatable("coordinates in poses of a single row")
    suffix = _suffix(values)
    names = [program.constants.add(weight)]
    scale = _scale(program, values, names, parents, out)
    vectors = [_filled(values, name, parents) for name in ("beta_u", "beta_a")]
    vectors.append(np.asarray(given["inverse_temperatures"], np.float32))
    if len(vectors[2]) < iterations:
        raise Untranslatable(f"{len(vectors[2])} temperatures for {iterations} iterations")
    given_names = [program.constants.add(v) for v in vectors]
    coordinates = "0"
    if "coordinates" in values:
        places = _array(values, "coordinates").astype(np.float32)
        if places.size != pose.shape[1] * pose.shape[2] * size:
            raise Untranslatable(f"coordinates of shape {list(places.shape)}")
        coordinates = program.constants.add(places)
        given_names.append(coordinates)
    first = 1.0 if given["ones_first"] else 1.0 / parents
    head = f"static const caps_em_{suffix}_t c = {{{{{_numbers(*numbers)}}}, " + _numbers(
        iterations, centres, int(bool(given["normalize_activations"])), first,
        float(given["epsilon"]), float(given["variance_epsilon"] or given["epsilon"]),
        float(given["activation_epsilon"]), float(given["cost_epsilon"]),
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
            products=math.prod(grid) * iterations * 2 * children * parents * size * (k + 2),
            constants=[*names, *given_names],
        )  # fmt: skip
    return [poses, activations]


def _attention(program: Program, node: CNode) -> list[ProgramValue]:
    spec = OPERATORS[node.operator]
    values, given = inputs_of(spec, node), spec.complete(node.attributes)
    weight = _weight(values, 6)
    parents, k, out = weight.shape[3:]
    rows = k if given["matrix_pose"] else 1
    pose = _computed(program, values, "pose", 5)
    numbers, children = _windows(values, given, rows, False)
    size = rows * out
    n = pose.shape[0]
    shape = (n, *numbers[11:13], parents, size)
    agreed = None
    if "parent" in values:
        agreed = program.ordered(values["parent"].expanded(shape))
        if agreed.dtype != "float32":
            raise Untranslatable(f"parents of type {agreed.dtype}")
    suffix = _suffix(values)
    names = [program.constants.add(weight)]
    scale = _scale(program, values, names, parents, out)
    gains = [program.constants.add(_filled(values, name, size)) for name in ("scale", "bias")]
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
