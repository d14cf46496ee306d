"""Translate element-wise operators into loops."""

from __future__ import annotations

import numpy as np

from capsedge.exporters.c.node import Node, Translator
from capsedge.exporters.c.program import C_TYPES, Program, Untranslatable, Value, literal

# Expressions of one element, and the kernels that they call. Comparisons let NaN through.
_UNARY = {
    "Relu": ("{0} < 0.0f ? 0.0f : {0}", ""),
    "Neg": ("-{0}", ""),
    "Abs": ("{0} < 0.0f ? -{0} : {0}", ""),
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
_COMPARISONS = {
    "Equal": "{0} == {1}",
    "Greater": "{0} > {1}",
    "Less": "{0} < {1}",
    "GreaterOrEqual": "{0} >= {1}",
    "LessOrEqual": "{0} <= {1}",
    "And": "{0} && {1}",
    "Or": "{0} || {1}",
}
_VARIADIC = {
    "Sum": "{0} + {1}",
    "Max": "{0} > {1} ? {0} : {1}",
    "Min": "{0} < {1} ? {0} : {1}",
}


def elementwise(
    program: Program, values: list[Value], expression: str, *, dtype: str = "", kernel: str = ""
) -> Value:
    """A new value of the operands' broadcast shape, laid out like the first operand of that shape."""
    shape = np.broadcast_shapes(*(v.shape for v in values))
    full = [v for v in values if v.shape == shape and v.array is None]
    order = full[0].order if full and full[0].lies(full[0].order) else ()
    result = program.new(shape, dtype or values[0].dtype, order)
    program.loops(result, values, expression, kernels=[kernel] if kernel else [])
    return result


def _unary(program: Program, node: Node) -> list[Value]:
    expression, kernel = _UNARY[node.operator]
    x = node.value(0)
    if x.dtype != "float32" and node.operator not in ("Neg", "Abs"):
        raise Untranslatable(f"elements of type {x.dtype}")
    return [elementwise(program, [x], expression, kernel=kernel)]


def _binary(program: Program, node: Node) -> list[Value]:
    expression, kernel = _BINARY[node.operator]
    values = [node.value(0), node.value(1)]
    if node.operator == "Pow" and values[1].array is not None and np.all(values[1].array == 2):
        return [elementwise(program, values[:1], "{0} * {0}")]
    return [elementwise(program, values, expression, kernel=kernel)]


def _comparison(program: Program, node: Node) -> list[Value]:
    values = [node.value(0), node.value(1)]
    return [elementwise(program, values, _COMPARISONS[node.operator], dtype="bool")]


def _not(program: Program, node: Node) -> list[Value]:
    return [elementwise(program, [node.value(0)], "!{0}")]


def _variadic(program: Program, node: Node) -> list[Value]:
    result = node.value(0)
    for k in range(1, len(node.inputs)):
        result = elementwise(program, [result, node.value(k)], _VARIADIC[node.operator])
    return [result]


def _mean(program: Program, node: Node) -> list[Value]:
    count = len(node.inputs)
    (total,) = _variadic(program, Node(node.name, "Sum", node.inputs))
    return [elementwise(program, [total], f"{{0}} * {literal(1 / count)}")]


def _where(program: Program, node: Node) -> list[Value]:
    values = [node.value(k) for k in range(3)]
    return [elementwise(program, values, "{0} ? {1} : {2}", dtype=values[1].dtype)]


def _cast(program: Program, node: Node) -> list[Value]:
    from onnx import helper

    x = node.value(0)
    if node.operator == "CastLike":
        wanted = node.value(1).dtype
    else:
        wanted = helper.tensor_dtype_to_np_dtype(node.attributes["to"]).name
    wanted = {"float16": "float32", "float64": "float32", "int64": "int32"}.get(wanted, wanted)
    if wanted == x.dtype:
        return [x]
    if wanted not in C_TYPES:
        raise Untranslatable(f"a cast to {wanted}")
    expression = "{0} != 0" if wanted == "bool" else f"({C_TYPES[wanted]}){{0}}"
    return [elementwise(program, [x], expression, dtype=wanted)]


def _identity(_program: Program, node: Node) -> list[Value]:
    return [node.value(0)]


def _clip(program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    limits = []
    for k, name in ((1, "min"), (2, "max")):
        given = node.optional(k)
        number = node.attributes.get(name) if given is None else node.array(k, name).reshape(-1)[0]
        limits.append(None if number is None else literal(np.float32(number)))
    low, high = limits
    expression = "{0}" if low is None else f"{{0}} < {low} ? {low} : {{0}}"
    if high is not None:
        expression = f"{{0}} > {high} ? {high} : {expression}"
    return [elementwise(program, [x], expression)]


def _with_alpha(program: Program, node: Node) -> list[Value]:
    defaults = {
        "LeakyRelu": 0.01,
        "Elu": 1.0,
        "HardSigmoid": 0.2,
        "Selu": 1.67326,
        "ThresholdedRelu": 1.0,
    }
    alpha = literal(np.float32(node.attributes.get("alpha", defaults.get(node.operator, 1.0))))
    kernel = ""
    if node.operator == "LeakyRelu":
        expression = f"{{0}} < 0.0f ? {{0}} * {alpha} : {{0}}"
    elif node.operator == "Elu":
        expression, kernel = f"{{0}} < 0.0f ? {alpha} * (caps_exp({{0}}) - 1.0f) : {{0}}", "exp"
    elif node.operator == "HardSigmoid":
        line = f"{{0}} * {alpha} + {literal(np.float32(node.attributes.get('beta', 0.5)))}"
        expression = f"{line} < 0.0f ? 0.0f : {line} > 1.0f ? 1.0f : {line}"
    elif node.operator == "HardSwish":
        line = "{0} * 0.166666672f + 0.5f"
        expression = f"{{0}} * ({line} < 0.0f ? 0.0f : {line} > 1.0f ? 1.0f : {line})"
    else:
        gamma = literal(np.float32(node.attributes.get("gamma", 1.0507)))
        expression = f"{gamma} * ({{0}} < 0.0f ? {alpha} * (caps_exp({{0}}) - 1.0f) : {{0}})"
        kernel = "exp"
    return [elementwise(program, [node.value(0)], expression, kernel=kernel)]


def _batch_normalization(program: Program, node: Node) -> list[Value]:
    x = node.value(0)
    scale, bias, mean, variance = (
        node.array(k, "statistics").astype(np.float64) for k in range(1, 5)
    )
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    columns = (-1, *(1,) * (len(x.shape) - 2))
    pair = [factor.reshape(columns), (bias - mean * factor).reshape(columns)]
    operands = [x, *(_constant(v) for v in pair)]
    return [elementwise(program, operands, "{0} * {1} + {2}")]


def _constant(array: np.ndarray) -> Value:
    from capsedge.exporters.c.program import constant

    return constant(array.astype(np.float32))


# --- To integers and back ---


def _quantize(program: Program, node: Node) -> list[Value]:
    x, scale = node.value(0), _along(node, 1)
    zero = node.optional(2)
    dtype = "uint8" if zero is None else zero.dtype
    if dtype not in ("uint8", "int8") or node.attributes.get("block_size"):
        raise Untranslatable(f"quantization to {dtype}")
    operands = [x, scale, *([_along(node, 2)] if zero is not None else [])]
    expression = f"caps_to_{dtype}({{0}} / {{1}}, {'{2}' if zero is not None else '0'})"
    return [elementwise(program, operands, expression, dtype=dtype)]


def _dequantize(program: Program, node: Node) -> list[Value]:
    operands = [node.value(0), _along(node, 1)]
    expression = "(float){0} * {1}"
    if node.optional(2) is not None:
        operands.append(_along(node, 2))
        expression = "(float)((int32_t){0} - (int32_t){2}) * {1}"
    return [elementwise(program, operands, expression, dtype="float32")]


def _along(node: Node, k: int) -> Value:
    """A scale or zero point of the whole tensor, or of each position along the axis."""
    from capsedge.exporters.c.program import constant

    array = node.array(k, "a scale")
    if array.ndim == 1 and array.size > 1:
        rank = len(node.value(0).shape)
        shape = [1] * rank
        shape[node.axis(1, rank)] = -1
        array = array.reshape(shape)
    return constant(array)


TRANSLATORS: dict[str, Translator] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_VARIADIC, _variadic),
    **dict.fromkeys(("LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Selu"), _with_alpha),
    "Not": _not,
    "Mean": _mean,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast,
    "Identity": _identity,
    "Dropout": _identity,
    "Clip": _clip,
    "BatchNormalization": _batch_normalization,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
