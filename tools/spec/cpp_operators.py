"""Write the table of operators for C++: a header included by ``kernels/operators.h``, whose types it uses."""

from __future__ import annotations

import re
from collections.abc import Iterable

from capsedge.spec.operators import (
    CUDA_KERNELS_KEY,
    CUDA_OPERATORS_KEY,
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
    places = _joined(_places(o) for o in OPERATORS.values() if not o.quantizes)
    body = (
        "using spec::kDomain;  // the TensorRT plugins' namespace, too\n"
        f'constexpr char kPluginVersion[] = "{PLUGIN_VERSION}";\n'
        f"constexpr size_t kMaxInstances = {MAX_INSTANCES};  // names of an operator that have kernels\n"
        "// Session option that the operator library reads: how many names of each operator have kernels.\n"
        f'constexpr char kInstancesKey[] = "{INSTANCES_KEY}";\n'
        "// Session options by which it has CUDA kernels instead: for which names, and the file of code.\n"
        f'constexpr char kCudaOperatorsKey[] = "{CUDA_OPERATORS_KEY}";\n'
        f'constexpr char kCudaKernelsKey[] = "{CUDA_KERNELS_KEY}";\n\n'
        f"enum class OperatorId {{\n{_joined(f'  k{name},' for name in OPERATORS)}}};\n"
        f"constexpr size_t kOperatorCount = {len(OPERATORS)};\n\n"
        "constexpr WindowPositions kWindowPositions[] = {\n"
        f"{windows}}};\n\n"
        "inline constexpr std::array<OperatorSpec, kOperatorCount> kOperators = {{\n"
        f"{_joined(map(_operator, OPERATORS.values()))}}}}};\n\n"
        "// The places of an operator's inputs.\n"
        f"namespace places {{\n{places}}}  // namespace places\n"
    )
    return header(
        "The operators of docs/reference/operators.md, in the types of kernels/operators.h.",
        ['"generated/onnx_wire.h"'],
        "namespace capsedge {\n\n" + body + "\n}  // namespace capsedge\n",
    )


def makers() -> str:
    """``generated/makers.h``, for kernels/cpu/operators/operator.h."""
    found = [
        "make_quantized_routing" if o.quantizes else f"make_{snake(o.name)}"
        for o in OPERATORS.values()
    ]
    return header(
        "What makes an operator of the CPU: a function in its file; one for all with INT8 weights.",
        ['"generated/operators.h"'],
        "namespace capsedge {\n\n"
        + _joined(
            f"std::unique_ptr<Operator> {name}(const Attributes&, const Level&);"
            for name in dict.fromkeys(found)
        )
        + "\n// In the order of kOperators.\n"
        "constexpr std::unique_ptr<Operator> (*kMakers[])(const Attributes&, const Level&) = {\n"
        + _joined(f"    {name}," for name in found)
        + "};\n\n}  // namespace capsedge\n",
    )


def snake(name: str) -> str:
    """``EMRouting`` as ``em_routing``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def sizes() -> str:
    """``generated/operator_sizes.h``."""
    every = OPERATORS.values()
    most = {
        "Inputs": max(len(o.inputs) for o in every),
        "Outputs": max(len(o.outputs) for o in every),
        "Dimensions": max(len(v.shape) for o in every for v in (*o.inputs, *o.outputs)),
        "Attributes": max(len(o.attributes) for o in every),
        "Integers": max(len(_integers(a)) for o in every for a in o.attributes),
    }
    return header(
        "How long the lists of kernels/operators.h are: as the longest of any operator.",
        ["<cstddef>"],
        "namespace capsedge {\n\n"
        + _joined(f"constexpr size_t kMost{name} = {size};" for name, size in most.items())
        + "\n}  // namespace capsedge\n",
    )


def _integers(a: Attribute) -> list[int]:
    """The integers of its default."""
    given = a.default if isinstance(a.default, tuple) else (a.default,)
    return [v for v in given if isinstance(v, int)]


def _operator(o: Operator) -> str:
    quantizes = f'"{o.quantizes}"' if o.quantizes else "nullptr"
    plugin = "true" if o.plugin else "false"
    standard = "true" if o.standard else "false"
    return (
        f'    {{"{o.name}", {quantizes}, {plugin}, {standard},\n'
        f"     {_braces(map(_value, o.inputs))},\n"
        f"     {_braces(map(_value, o.outputs))},\n"
        f"     {_braces(map(_attribute, o.attributes))}}},"
    )


def _places(o: Operator) -> str:
    """``namespace DynamicRouting { enum : int { kU, kWeight }; }``."""
    places = ", ".join("k" + name.title().replace("_", "") for name in o.input_names)
    return f"namespace {o.name} {{\nenum : int {{ {places} }};\n}}"


def _value(value: Value) -> str:
    optional = "true" if value.optional else "false"
    shape = ", ".join(f'"{name}"' for name in value.shape)
    per_image = "true" if value.per_image else "false"
    ones, body_ones = (
        sum(1 << k for k, name in enumerate(value.shape) if name in some)
        for some in (value.ones, value.body_ones)
    )
    return f"{{\"{value.name}\", '{value.type}', {optional}, {{{shape}}}, {ones}, {per_image}, {body_ones}}}"


def _attribute(a: Attribute) -> str:
    marks = ", ".join(str(found).lower() for found in (a.default is None, a.flag, a.positive))
    integers = ", ".join(map(str, _integers(a)))
    number = f"{a.default!r}f" if isinstance(a.default, float) else "0"
    kind = f"AttributeType::{_TYPES[a.type]}"
    return f'{{"{a.name}", {kind}, {marks}, {{{integers}}}, {number}}}'


def _braces(entries: Iterable[str]) -> str:
    inside = ",\n      ".join(entries)
    return f"{{{inside}}}"


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
