"""The inputs of a network in C: which ones it takes, and their names, types and shapes there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.c import naming
from capsedge.exporters.c.program import C_TYPES, Program, ProgramValue, Shape
from capsedge.runtime.files.text import printable
from capsedge.spec import limits

_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "uint8",
}
_WHAT = "The file cannot be written as C."
_ELSEWHERE = "or run it with libcapsedge (docs/how-to/recommender.md)."


@dataclass(frozen=True)
class CInput:
    """An input of the network.

    Attributes:
        name: name in the ONNX file.
        parameter: name of the parameter in C.
        dtype: numpy's name of its element type: float32, int8 or uint8.
        shape: shape, including the batch.
    """

    name: str
    parameter: str
    dtype: str
    shape: Shape

    @property
    def ctype(self) -> str:
        return C_TYPES[self.dtype]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def macro(self) -> str:
        """The macro of its size, without the prefix of the network."""
        return f"{self.parameter.upper()}_SIZE"

    @property
    def declaration(self) -> str:
        """The parameter with its type."""
        return f"const {self.ctype} *{self.parameter}"


def is_plain(inputs: Sequence[CInput]) -> bool:
    """Whether the network takes one input of floats, such as an image."""
    return len(inputs) == 1 and inputs[0].dtype == "float32"


def listed(inputs: Sequence[CInput]) -> str:
    """Names and types, for messages."""
    return ", ".join(f"{printable(each.name)} ({each.dtype})" for each in inputs)


def check_types(model: onnx.ModelProto) -> None:
    """Refuse a model whose inputs have other types than C takes.

    Raises:
        UnsupportedModelError: they do, or there are none or too many.
    """
    found = input_values(model)
    if not 1 <= len(found) <= limits.C_INPUTS:
        raise UnsupportedModelError(
            _WHAT,
            f"It has {len(found):,} inputs; the C source takes 1 to {limits.C_INPUTS}.",
            f"Export it with 1 to {limits.C_INPUTS} inputs; one may hold many values.",
        )
    if any(i.type.tensor_type.elem_type not in _TYPES for i in found):
        given = ", ".join(f"{printable(i.name)} ({_type_name(i)})" for i in found)
        raise UnsupportedModelError(
            _WHAT,
            f"The C source takes inputs of float32, int8 and uint8, but the file has {given}.",
            f"Export it with inputs of these types, {_ELSEWHERE}",
        )


def inputs_of(model: onnx.ModelProto) -> tuple[CInput, ...]:
    """The inputs of a model whose shapes are fixed: one is ``input`` in C, several have names of their own.

    Args:
        model: with types that `check_types` accepted.

    Raises:
        UnsupportedModelError: their batches differ, or two of them would have one name.
    """
    found = input_values(model)
    inputs = tuple(
        CInput(
            i.name,
            naming.c_parameter_name(i.name) if len(found) > 1 else "input",
            _TYPES[i.type.tensor_type.elem_type],
            tuple(d.dim_value for d in i.type.tensor_type.shape.dim),
        )
        for i in found
    )
    _check_names(inputs)
    if len({each.shape[0] for each in inputs}) > 1:
        sizes = ", ".join(f"{printable(each.name)} {each.shape[0]:,}" for each in inputs)
        raise UnsupportedModelError(
            _WHAT,
            f"Its inputs have different batches: {sizes}.",
            "Export it with the batch as the first dimension of every input.",
        )
    return inputs


def input_values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller passes: those without a stored value."""
    stored = {t.name for t in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in stored]


def _type_name(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type  # 0: it is no tensor
    return str(onnx.helper.tensor_dtype_to_np_dtype(kind)) if kind else "no tensor"


def _check_names(inputs: Sequence[CInput]) -> None:
    """Refuse two inputs of one name: a number behind it would not tell which is which.

    Macros of their sizes are upper case, so names that differ only in case are the same, too.
    """
    seen: dict[str, CInput] = {}
    for each in inputs:
        other = seen.setdefault(each.macro, each)
        if other is not each:
            raise UnsupportedModelError(
                _WHAT,
                f"Its inputs '{printable(other.name)}' and '{printable(each.name)}' would both be "
                f"{each.parameter} in C, where names have letters, digits and underscores alone.",
                "Rename one of them, such as the parameter of forward, and export it again.",
            )


def check_used(program: Program, inputs: Sequence[CInput], values: dict[str, ProgramValue]) -> None:
    """Refuse an input among several that no step reads: it would be a mistake, or memory for nothing.

    Args:
        values: the values of the inputs, by name.

    Raises:
        UnsupportedModelError: there is one.
    """
    read = {id(buffer) for step in program.steps for buffer in step.reads}
    unused = [each for each in inputs if id(values[each.name].buffer) not in read]
    if unused and len(inputs) > 1:
        raise UnsupportedModelError(
            _WHAT,
            f"No result depends on the values of its input '{printable(unused[0].name)}'.",
            "Leave it out of forward and of the example, and export it again.",
        )
