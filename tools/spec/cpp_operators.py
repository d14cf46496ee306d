"""The table of operators for C++: a header that ``kernels/operators.h`` includes, whose types it has."""

from __future__ import annotations

from collections.abc import Iterable

from capsedge.spec.operators import (
    INSTANCES_KEY,
    MAX_INSTANCES,
    OPERATORS,
    PLUGIN_VERSION,
    WINDOWS_OF,
    Attribute,
    Operator,
    Value,
)
from tools.spec.cpp import header

_TYPES = {"int": "kInt", "float": "kFloat", "ints": "kInts", "floats": "kFloats"}


def table() -> str:
    """``generated/operators.h``."""
    windows = "".join(
        f'    {{"{name}", "{size}", "{window}", {axis}}},\n'
        for name, (size, window, axis) in WINDOWS_OF.items()
    )
    largest = max(len(value.shape) for o in OPERATORS.values() for value in (*o.inputs, *o.outputs))
    body = (
        "using spec::kDomain;  // the TensorRT plugins' namespace, too\n"
        f'constexpr char kPluginVersion[] = "{PLUGIN_VERSION}";\n'
        f"constexpr size_t kMaxInstances = {MAX_INSTANCES};  // names of an operator that have kernels\n"
        "// Session option that the operator library reads: how many names of each operator have kernels.\n"
        f'constexpr char kInstancesKey[] = "{INSTANCES_KEY}";\n\n'
        f"enum class OperatorId {{\n{_joined(f'  k{name},' for name in OPERATORS)}}};\n"
        f"constexpr size_t kOperatorCount = {len(OPERATORS)};\n\n"
        f"static_assert(kOperatorDimensions >= {largest});\n"
        "constexpr WindowPositions kWindowPositions[] = {\n"
        f"{windows}}};\n\n"
        "inline constexpr std::array<OperatorSpec, kOperatorCount> kOperators = {{\n"
        f"{_joined(map(_operator, OPERATORS.values()))}}}}};\n"
    )
    return header(
        "The operators of docs/reference/operators.md, in the types of kernels/operators.h.",
        ['"generated/onnx_wire.h"'],
        "namespace capsedge {\n\n" + body + "\n}  // namespace capsedge\n",
    )


def _operator(o: Operator) -> str:
    quantizes = f'"{o.quantizes}"' if o.quantizes else "nullptr"
    plugin = "true" if o.plugin else "false"
    return (
        f'    {{"{o.name}", {quantizes}, {plugin},\n'
        f"     {_braces(map(_value, o.inputs))},\n"
        f"     {_braces(map(_value, o.outputs))},\n"
        f"     {_braces(map(_attribute, o.attributes))}}},"
    )


def _value(value: Value) -> str:
    optional = "true" if value.optional else "false"
    shape = ", ".join(f'"{name}"' for name in value.shape)
    return f"{{\"{value.name}\", '{value.type}', {optional}, {{{shape}}}}}"


def _attribute(a: Attribute) -> str:
    required, flag = (str(found).lower() for found in (a.default is None, a.flag))
    given = a.default if isinstance(a.default, tuple) else (a.default,)
    integers = ", ".join(str(v) for v in given if isinstance(v, int))
    number = f"{a.default!r}f" if isinstance(a.default, float) else "0"
    kind = f"AttributeType::{_TYPES[a.type]}"
    return f'{{"{a.name}", {kind}, {required}, {flag}, {{{integers}}}, {number}}}'


def _braces(entries: Iterable[str]) -> str:
    inside = ",\n      ".join(entries)
    return f"{{{inside}}}"


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
