"""Translate element-wise operators into loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from capsedge.exporters.c.program import (
    C_TYPES,
    CNode,
    Program,
    ProgramValue,
    Shape,
    Translator,
    Untranslatable,
    c_literal,
    constant,
)

# Expressions of one element, and the kernels that they call. Comparisons let NaN through.
_UNARY = {
    "Relu": ("{0} < 0.0f ? 0.0f : {0}", ""),
    "Neg": ("-{0}", ""),
    "Abs": ("{0} <= 0.0f ? 0.0f - {0} : {0}", ""),
    "Exp": ("caps_exp({0})", "exp"),
    "Log": ("caps_log({0})", "log"),
    "Sqrt": ("caps_sqrt({0})", ""),
    "Sigmoid": ("caps_sigmoid({0})", "sigmoid"),
    "Tanh": ("caps_tanh({0})", "tanh"),
    "Softplus": ("caps_softplus({0})", "softplus"),
    "Reciprocal": ("1.0f / {0}", ""),
    "Sign": ("(float)(({0} > 0.0f) - ({0} < 0.0f))", ""),
    "Softsign": ("{0} / (1.0f + ({0} < 0.0f ? -{0} : {0}))", ""),
}
_BINARY = {
    "Add": ("{0} + {1}", ""),
    "Sub": ("{0} - {1}", ""),
    "Mul": ("{0} * {1}", ""),
    "Div": ("{0} / {1}", ""),
    "Pow": ("caps_pow({0}, {1})", "pow"),
    "PRelu": ("{0} < 0.0f ? {0} * {1} : {0}", ""),
}
# Of integers: sums wrap, and a number divided by zero is zero. C computes those of 8 bits as int.
_SMALL = {
    "Add": "{0} + {1}",
    "Sub": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Div": "{1} ? {0} / {1} : 0",
    "Neg": "-{0}",
    "Abs": "{0} < 0 ? -{0} : {0}",
}
_WIDE = {
    "Add": "caps_add_{type}({0}, {1})",
    "Sub": "caps_sub_{type}({0}, {1})",
    "Mul": "caps_mul_{type}({0}, {1})",
    "Div": "caps_div_{type}({0}, {1})",
    "Neg": "caps_sub_{type}(0, {0})",
    "Abs": "{0} < 0 ? caps_sub_{type}(0, {0}) : {0}",
}
_COMPARISONS = {
    "Equal": "{0} == {1}",
    "Greater": "{0} > {1}",
    "Less": "{0} < {1}",
    "GreaterOrEqual": "{0} >= {1}",
    "LessOrEqual": "{0} <= {1}",
    "And": "{0} && {1}",
    "Or": "{0} || {1}",
}
_EXTREMES = {"Max": "<", "Min": ">"}


def elementwise(
    program: Program,
    values: list[ProgramValue],
    expression: str,
    *,
    dtype: str = "",
    kernel: str = "",
) -> ProgramValue:
    """A new value of the operands' broadcast shape, laid out like the first operand of that shape."""
    shape = broadcast([v.shape for v in values])
    full = [v for v in values if v.shape == shape and v.array is None]
    order = full[0].order if full and full[0].lies(full[0].order) else ()
    result = program.new(shape, dtype or values[0].dtype, order)
    program.loops(result, values, expression, kernels=[kernel] if kernel else [])
    return result


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that these are broadcast to.

    Raises:
        Untranslatable: there is none.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise Untranslatable(f"shapes {', '.join(str(list(s)) for s in shapes)}") from error


def _alike(node: CNode, inputs: Iterable[int]) -> list[ProgramValue]:
    """Operands, all of one type."""
    values = [node.value(k) for k in inputs]
    if len({v.dtype for v in values}) > 1:
        raise Untranslatable(f"operands of types {', '.join(v.dtype for v in values)}")
    return values


def _arithmetic(program: Program, operator: str, values: list[ProgramValue]) -> ProgramValue:
    """The result of `_UNARY` or `_BINARY`, or of what stands for it with integers."""
    dtype = values[0].dtype
    if dtype == "float32":
        expression, kernel = (_UNARY | _BINARY)[operator]
        return elementwise(program, values, expression, kernel=kernel)
    table = _WIDE if dtype in ("int32", "int64") else _SMALL
    if operator not in table or dtype == "bool":
        raise Untranslatable(f"elements of type {dtype}")
    expression = table[operator].replace("{type}", dtype)
    return elementwise(program, values, expression, kernel="integers" if table is _WIDE else "")


def _unary(program: Program, node: CNode) -> list[ProgramValue]:
    if node.operator == "Abs" and node.value(0).dtype == "uint8":
        return [node.value(0)]
    return [_arithmetic(program, node.operator, [node.value(0)])]


def _binary(program: Program, node: CNode) -> list[ProgramValue]:
    if node.operator != "Pow":
        return [_arithmetic(program, node.operator, _alike(node, (0, 1)))]
    x, power = node.floats(0), node.value(1)
    plain = power.array is not None and power.size == 1 and len(power.shape) <= len(x.shape)
    if plain and np.all(power.array == 2):
        return [elementwise(program, [x], "{0} * {0}")]
    if power.array is not None:  # of any type
        power = constant(power.array.astype(np.float32))
    elif power.dtype != "float32":
        power = elementwise(program, [power], "(float){0}", dtype="float32")
    return [_arithmetic(program, "Pow", [x, power])]


def _comparison(program: Program, node: CNode) -> list[ProgramValue]:
    values = _alike(node, (0, 1))
    return [elementwise(program, values, _COMPARISONS[node.operator], dtype="bool")]


def _not(program: Program, node: CNode) -> list[ProgramValue]:
    return [elementwise(program, [node.value(0)], "!{0}")]


def _sum(program: Program, node: CNode) -> list[ProgramValue]:
    first, *others = _alike(node, range(len(node.inputs)))
    for value in others:
        first = _arithmetic(program, "Add", [first, value])
    return [first]


def _extreme(program: Program, node: CNode) -> list[ProgramValue]:
    """The largest or smallest of all operands; NaN if one of them is."""
    first, *others = _alike(node, range(len(node.inputs)))
    sign = _EXTREMES[node.operator]
    for value in others:
        if first.array is not None:
            first, value = value, first
        certain = value.dtype != "float32" or (
            value.array is not None and not np.isnan(value.array).any()
        )
        test = f"{{0}} {sign} {{1}}" + ("" if certain else " || {1} != {1}")
        first = elementwise(program, [first, value], f"{test} ? {{1}} : {{0}}")
    return [first]


def _mean(program: Program, node: CNode) -> list[ProgramValue]:
    node.floats(0)
    (total,) = _sum(program, node)
    return [elementwise(program, [total], f"{{0}} * {c_literal(np.float32(1 / len(node.inputs)))}")]


def _where(program: Program, node: CNode) -> list[ProgramValue]:
    values = [node.value(0), *_alike(node, (1, 2))]
    if values[0].dtype != "bool":
        raise Untranslatable(f"a condition of type {values[0].dtype}")
    return [elementwise(program, values, "{0} ? {1} : {2}", dtype=values[1].dtype)]


def _cast(program: Program, node: CNode) -> list[ProgramValue]:
    """To integers, numbers out of range become the nearest one in range, and NaN zero."""
    x = node.value(0)
    like = node.operator == "CastLike"
    wanted = node.value(1).dtype if like else _type_of(node.attributes.get("to"))
    if wanted == x.dtype:
        return [x]
    if wanted not in C_TYPES:
        raise Untranslatable(f"a cast to {wanted}")
    if wanted == "bool":
        return [elementwise(program, [x], "{0} != 0", dtype=wanted)]
    if x.dtype == "float32":
        return [
            elementwise(program, [x], f"caps_cast_{wanted}({{0}})", dtype=wanted, kernel="cast")
        ]
    return [elementwise(program, [x], f"({C_TYPES[wanted]}){{0}}", dtype=wanted)]


def _type_of(number: object) -> str:
    """Numpy's name of an element type, or ONNX's where numpy has none of its own."""
    from onnx import TensorProto, helper

    types = TensorProto.DataType
    if not isinstance(number, int) or number not in types.values():
        raise Untranslatable(f"the type {number}")
    name = types.Name(number)
    return (
        name.lower()
        if name in ("STRING", "UNDEFINED")
        else helper.tensor_dtype_to_np_dtype(number).name
    )


def _identity(_program: Program, node: CNode) -> list[ProgramValue]:
    return [node.value(0)]


def _dropout(_program: Program, node: CNode) -> list[ProgramValue]:
    training = node.optional(2)
    if training is not None and (training.array is None or training.array.any()):
        raise Untranslatable("training mode")
    if node.outputs > 1:
        raise Untranslatable("a mask")
    return [node.value(0)]


def _clip(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    limits = []
    for k, name in ((1, "min"), (2, "max")):
        given = node.optional(k)
        number = node.attributes.get(name) if given is None else node.filled(k, name, ()).item()
        limits.append(None if number is None else np.asarray(number, x.dtype)[()])
    low, high = limits
    if low is not None and high is not None and high < low:
        low = high
    expression = "{0}" if low is None else f"{{0}} < {c_literal(low)} ? {c_literal(low)} : {{0}}"
    if high is not None:
        expression = f"{{0}} > {c_literal(high)} ? {c_literal(high)} : {expression}"
    return [elementwise(program, [x], expression)]


def _with_alpha(program: Program, node: CNode) -> list[ProgramValue]:
    defaults = {
        "LeakyRelu": 0.01,
        "Elu": 1.0,
        "HardSigmoid": 0.2,
        "Selu": 1.67326,
    }
    alpha = c_literal(np.float32(node.attributes.get("alpha", defaults.get(node.operator, 1.0))))
    kernel = ""
    if node.operator == "LeakyRelu":
        expression = f"{{0}} < 0.0f ? {{0}} * {alpha} : {{0}}"
    elif node.operator == "Elu":
        expression, kernel = f"{{0}} < 0.0f ? {alpha} * (caps_exp({{0}}) - 1.0f) : {{0}}", "exp"
    elif node.operator == "HardSigmoid":
        line = f"{{0}} * {alpha} + {c_literal(np.float32(node.attributes.get('beta', 0.5)))}"
        expression = f"{line} < 0.0f ? 0.0f : {line} > 1.0f ? 1.0f : {line}"
    elif node.operator == "HardSwish":
        line = "{0} * 0.166666672f + 0.5f"
        expression = f"{{0}} * ({line} < 0.0f ? 0.0f : {line} > 1.0f ? 1.0f : {line})"
    else:
        gamma = c_literal(np.float32(node.attributes.get("gamma", 1.0507)))
        expression = f"{gamma} * ({{0}} < 0.0f ? {alpha} * (caps_exp({{0}}) - 1.0f) : {{0}})"
        kernel = "exp"
    return [elementwise(program, [node.floats(0)], expression, kernel=kernel)]


def _batch_normalization(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.floats(0)
    if node.attributes.get("training_mode") or node.outputs > 1:
        raise Untranslatable("training mode")
    if len(x.shape) < 2:
        raise Untranslatable(f"an input of {len(x.shape)} dimensions")
    scale, bias, mean, variance = (
        node.filled(k, "a statistic", x.shape[1:2]).astype(np.float64) for k in range(1, 5)
    )
    with np.errstate(all="ignore"):  # weights may be anything
        factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
        offset = bias - mean * factor
        columns = (-1, *(1,) * (len(x.shape) - 2))
        pair = [v.reshape(columns).astype(np.float32) for v in (factor, offset)]
    operands = [x, *map(constant, pair)]
    return [elementwise(program, operands, "{0} * {1} + {2}")]


# --- To integers and back ---


def _quantize(program: Program, node: CNode) -> list[ProgramValue]:
    x, scale = node.floats(0), _scale(node)
    zero = node.optional(2)
    given = node.attributes.get("output_dtype")
    dtype = zero.dtype if zero is not None else _type_of(given) if given else "uint8"
    if dtype not in ("uint8", "int8") or node.attributes.get("block_size"):
        raise Untranslatable(f"quantization to {dtype}")
    operands = [x, scale, *([_along(node, 2)] if zero is not None else [])]
    expression = f"caps_to_{dtype}({{0}} / {{1}}, {'{2}' if zero is not None else '0'})"
    return [elementwise(program, operands, expression, dtype=dtype)]


def _dequantize(program: Program, node: CNode) -> list[ProgramValue]:
    operands = [node.value(0), _scale(node)]
    if operands[0].dtype not in ("uint8", "int8", "int32") or node.attributes.get("block_size"):
        raise Untranslatable(f"elements of type {operands[0].dtype}")
    expression = "(float){0} * {1}"
    if node.optional(2) is not None and np.any(node.array(2, "a zero point")):
        operands.append(_along(node, 2))
        if {operands[0].dtype, operands[2].dtype} - {"uint8", "int8"}:
            raise Untranslatable("a zero point of 32 bits")
        expression = "(float)({0} - {2}) * {1}"
    return [elementwise(program, operands, expression, dtype="float32")]


def _scale(node: CNode) -> ProgramValue:
    scale = _along(node, 1)
    if scale.dtype != "float32":
        raise Untranslatable(f"a scale of type {scale.dtype}")
    return scale


def _along(node: CNode, k: int) -> ProgramValue:
    """A scale or zero point of the whole tensor, or of each position along the axis."""
    array, shape = node.array(k, "a scale"), node.value(0).shape
    if array.size == 1:
        return constant(array.reshape(()))
    axis = node.axis(1, len(shape))
    if array.shape != shape[axis : axis + 1]:
        raise Untranslatable(f"a scale of shape {list(array.shape)}")
    return constant(array.reshape([-1 if k == axis else 1 for k in range(len(shape))]))


TRANSLATORS: dict[str, Translator] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_EXTREMES, _extreme),
    "Sum": _sum,
    **dict.fromkeys(("LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Selu"), _with_alpha),
    "Not": _not,
    "Mean": _mean,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast,
    "Identity": _identity,
    "Dropout": _dropout,
    "Clip": _clip,
    "BatchNormalization": _batch_normalization,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
