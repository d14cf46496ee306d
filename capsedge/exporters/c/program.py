"""A network as a list of C statements over buffers of one arena; the target of the operators' translation.

A value is a tensor of the graph: a buffer, and the position of every element in it. A transpose, a slice or a
broadcast is another view of the same buffer and costs nothing. Constants are values too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Array = NDArray[Any]

C_TYPES = {
    "float32": "float",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "uint8_t",
}
MOST_BYTES = (1 << 31) - 1  # of a tensor: the source counts elements and bytes in an int


class Untranslatable(ValueError):
    """An operator, or a case of one, that is not written as C; the message says which part."""


@dataclass(eq=False)
class Buffer:
    """Memory that steps write: part of the arena, or what the caller passes.

    Attributes:
        name: its name in the C source.
        bytes: its size.
        ctype: C type of its elements.
        external: whether the caller owns it.
    """

    name: str
    bytes: int
    ctype: str = "float"
    external: bool = False


@dataclass(frozen=True, eq=False)
class ProgramValue:
    """A tensor.

    Attributes:
        shape: its dimensions.
        dtype: numpy's name of its element type.
        strides: elements between neighbours along every axis.
        offset: offset of the first element in the buffer.
        buffer: the buffer that holds it; None for a constant.
        array: the elements of a constant.
    """

    shape: Shape
    dtype: str = "float32"
    strides: tuple[int, ...] = ()
    offset: int = 0
    buffer: Buffer | None = None
    array: Array | None = None

    def __post_init__(self) -> None:
        if self.buffer is None or not self.size:
            return
        last = self.offset + sum((d - 1) * s for d, s in zip(self.shape, self.strides, strict=True))
        if self.offset < 0 or (last + 1) * np.dtype(self.dtype).itemsize > self.buffer.bytes:
            raise Untranslatable("elements outside of a tensor")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ctype(self) -> str:
        return C_TYPES[self.dtype]

    @property
    def order(self) -> tuple[int, ...]:
        """Its axes from the outermost in memory to the innermost."""
        return tuple(sorted(range(len(self.shape)), key=lambda a: (-self.strides[a], a)))

    def lies(self, order: Sequence[int]) -> bool:
        """Whether its elements are contiguous in this order of axes."""
        wanted = contiguous_strides(self.shape, order)
        axes = zip(self.shape, self.strides, wanted, strict=True)
        return all(size == 1 or own == want for size, own, want in axes)

    def transposed(self, axes: Sequence[int]) -> ProgramValue:
        """A view with its axes permuted."""
        return self._view(
            [self.shape[a] for a in axes],
            [self.strides[a] for a in axes],
            lambda x: x.transpose(axes),
        )

    def sliced(self, axis: int, start: int, stop: int, step: int = 1) -> ProgramValue:
        """A view of every ``step``-th element between two positions of an axis."""
        shape, strides = list(self.shape), list(self.strides)
        if not 0 <= start <= stop <= shape[axis]:
            raise Untranslatable(f"elements {start} to {stop} of an axis of {shape[axis]}")
        shape[axis] = len(range(start, stop, step))
        offset = self.offset + start * strides[axis]
        strides[axis] *= step
        if self.array is not None:
            index = np.arange(start, stop, step)
            return constant(self.array.take(index, axis))
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def expanded(self, shape: Sequence[int]) -> ProgramValue:
        """A broadcast view: axes of size 1 are repeated, and further axes are added in front."""
        missing = len(shape) - len(self.shape)
        if missing < 0 or any(
            have not in (1, want) for have, want in zip(self.shape, shape[missing:], strict=True)
        ):
            raise Untranslatable(f"a broadcast of {list(self.shape)} to {list(shape)}")
        own = [
            0 if have == 1 and want != 1 else step
            for have, want, step in zip(self.shape, shape[missing:], self.strides, strict=True)
        ]
        return self._view(shape, [0] * missing + own, lambda x: np.broadcast_to(x, tuple(shape)))

    def _view(
        self, shape: Sequence[int], strides: Sequence[int], of_array: Callable[[Array], Array]
    ) -> ProgramValue:
        if self.array is not None:
            return constant(of_array(self.array))
        return replace(self, shape=tuple(shape), strides=tuple(strides))


def constant(array: Array) -> ProgramValue:
    """A constant array as a value of a C program."""
    array = np.ascontiguousarray(array) if array.ndim else array
    return ProgramValue(array.shape, array.dtype.name, contiguous_strides(array.shape), array=array)


def contiguous_strides(shape: Sequence[int], order: Sequence[int] = ()) -> tuple[int, ...]:
    """Strides of contiguous elements in an order of the axes, by default their own."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


@dataclass
class ProgramStep:
    """One statement of the program.

    Attributes:
        code: C, with the names of buffers; ``SCRATCH`` for the scratch memory.
        reads, writes: the buffers.
        scratch: bytes of scratch memory.
        overwrites: those of ``reads`` whose place the result may take if they are read here last and have its
            size: each element is read before it is written, and never again.
        slide: how many bytes before its input the result may start, over what is no longer read; None where
            they must be apart.
        node, operator: what it was translated from.
        products: multiply-adds.
        constants: names of the constants that it reads.
    """

    code: str
    reads: list[Buffer]
    writes: list[Buffer]
    scratch: int = 0
    overwrites: list[Buffer] = field(default_factory=list)
    slide: int | None = None
    node: str = ""
    operator: str = ""
    products: int = 0
    constants: list[str] = field(default_factory=list)


class Program:
    """Collects the steps, constants and kernels of one function."""

    def __init__(self, constants: Constants, prefix: str = "") -> None:
        self.fast: Callable[[str], bool] = lambda _: False  # which convolutions may be in tiles
        self.saved: dict[str, int] = {}  # multiply-adds that tiles save, by node
        self.steps: list[ProgramStep] = []
        self.kernels: set[str] = set()
        self.constants = constants
        self._prefix = prefix
        self._count = 0
        self._node = ("", "")

    def begin(self, node: str, operator: str) -> None:
        """Attribute the following steps to this node."""
        self._node = (node, operator)

    def new(
        self, shape: Iterable[int], dtype: str = "float32", order: Sequence[int] = ()
    ) -> ProgramValue:
        """A value in a buffer of its own, in the order of its axes by default."""
        shape = tuple(shape)
        if dtype not in C_TYPES:
            raise Untranslatable(f"elements of type {dtype}")
        size = checked_tensor_bytes(math.prod(shape) * np.dtype(dtype).itemsize)
        buffer = Buffer(f"{self._prefix}v{self._count}", size, C_TYPES[dtype])
        self._count += 1
        return ProgramValue(shape, dtype, contiguous_strides(shape, order), buffer=buffer)

    def step(
        self,
        code: str,
        reads: Iterable[ProgramValue],
        writes: Iterable[ProgramValue],
        *,
        kernels: Iterable[str] = (),
        scratch: int = 0,
        overwrites: Iterable[ProgramValue] = (),
        slide: int | None = None,
        products: int = 0,
        constants: Iterable[str] = (),
    ) -> None:
        """Add a statement."""
        if scratch:
            checked_tensor_bytes(scratch)
        self.kernels.update(kernels)
        self.steps.append(
            ProgramStep(
                code,
                [v.buffer for v in reads if v.buffer is not None],
                [v.buffer for v in writes if v.buffer is not None],
                scratch,
                [v.buffer for v in overwrites if v.buffer is not None],
                slide,
                *self._node,
                products,
                list(constants),
            )
        )

    def pointer(self, value: ProgramValue) -> str:
        """A C expression for the first element."""
        if value.buffer is None:
            assert value.array is not None
            return self.constants.add(value.array)
        return f"({value.buffer.name} + {value.offset})" if value.offset else value.buffer.name

    def ordered(self, value: ProgramValue, order: Sequence[int] = ()) -> ProgramValue:
        """The value with its elements in an order of the axes (their own by default), copied if necessary."""
        axes = tuple(order) or tuple(range(len(value.shape)))
        if value.array is not None:
            array = np.ascontiguousarray(value.array.transpose(axes))
            return ProgramValue(
                value.shape, value.dtype, contiguous_strides(value.shape, axes), array=array
            )
        if value.lies(axes):
            return value
        result = self.new(value.shape, value.dtype, axes)
        self.loops(result, [value], "{0}")
        return result

    def reshaped(self, value: ProgramValue, shape: Iterable[int]) -> ProgramValue:
        """The value in another shape."""
        shape = tuple(shape)
        if math.prod(shape) != value.size or any(size < 0 for size in shape):
            raise Untranslatable(f"{list(value.shape)} reshaped to {list(shape)}")
        if value.array is not None:
            return constant(value.array.reshape(shape))
        return replace(self.ordered(value), shape=shape, strides=contiguous_strides(shape))

    def loops(
        self,
        result: ProgramValue,
        operands: Sequence[ProgramValue],
        expression: str,
        *,
        kernels: Iterable[str] = (),
    ) -> None:
        """Compute every element of ``result`` from those of the operands, which are broadcast to it.

        Args:
            expression: C, with ``{0}``, ``{1}`` for the operands' elements.
        """
        strides = [result.strides]
        for value in operands:
            missing = len(result.shape) - len(value.shape)
            own = [0 if d == 1 else s for d, s in zip(value.shape, value.strides, strict=True)]
            strides.append((0,) * missing + tuple(own))
        dims = merged_loops((result.shape[a], *(s[a] for s in strides)) for a in result.order)
        names = [f"i{k}" for k in range(len(dims))]
        index = [
            index_expression([(name, d[1 + n]) for name, d in zip(names, dims, strict=True)])
            for n in range(len(strides))
        ]
        terms, constants = [], []
        for value, at in zip(operands, index[1:], strict=True):
            if value.array is not None and value.size == 1:
                terms.append(c_literal(value.array.reshape(-1)[0]))
                continue
            if value.array is not None:
                constants.append(self.pointer(value))
            terms.append(f"{self.pointer(value)}[{at}]")
        heads = [f"for ({n} = 0; {n} < {d[0]}; {n}++) " for n, d in zip(names, dims, strict=True)]
        declared = f"int {', '.join(names)}; " if names else ""
        head = f"{declared}{''.join(heads)}{self.pointer(result)}[{index[0]}]"
        code = f"{{ {head} = {expression.format(*terms)}; }}"
        pairs = zip(operands, strides[1:], strict=True)
        apart = [v.buffer for v, own in pairs if not _same_positions(result, v, own)]
        over = [v for v in operands if v.buffer not in apart]
        self.step(code, operands, [result], kernels=kernels, overwrites=over, constants=constants)


def _same_positions(result: ProgramValue, value: ProgramValue, strides: Sequence[int]) -> bool:
    """Whether each element of a result has the place, in its buffer, of the element it is computed from."""
    if result.offset != value.offset or np.dtype(result.dtype) != np.dtype(value.dtype):
        return False
    axes = zip(result.shape, result.strides, strides, strict=True)
    return all(size == 1 or own == other for size, own, other in axes)


def checked_tensor_bytes(size: int) -> int:
    """The bytes of a tensor.

    Raises:
        Untranslatable: it has no elements, or more than the source can count.
    """
    if not size:
        raise Untranslatable("a tensor without elements")
    if size > MOST_BYTES:
        raise Untranslatable(f"a tensor of {size:,} bytes, of which C has {MOST_BYTES:,} at most")
    return size


def merged_loops(dims: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Loops ``(size, stride, stride, ...)``, neighbours joined where every stride allows it."""
    found: list[tuple[int, ...]] = []
    for size, *strides in dims:
        if size == 1:
            continue
        if found and all(a == b * size for a, b in zip(found[-1][1:], strides, strict=True)):
            found[-1] = (found[-1][0] * size, *strides)
        else:
            found.append((size, *strides))
    return found


def _floats(array: Array) -> list[str]:
    """Numbers with 9 digits, enough to distinguish all float32 values."""
    if not np.isfinite(array).all():
        return [c_literal(number) for number in array]
    texts = [f"{number:.9g}" for number in array.tolist()]
    return [f"{t}f" if "." in t or "e" in t else f"{t}.0f" for t in texts]


def index_expression(terms: Iterable[tuple[str, int]]) -> str:
    """An index: ``i0 * 16 + i1``."""
    parts = [name if step == 1 else f"{name} * {step}" for name, step in terms if step]
    return " + ".join(parts) or "0"


def c_literal(number: Any) -> str:
    """A numpy number as a C literal."""
    if isinstance(number, np.floating | float):
        single = np.float32(number)
        if np.isnan(single):
            return "NAN"
        if np.isinf(single):
            return "INFINITY" if single > 0 else "-INFINITY"
        text = str(single)
        return text + ("f" if set(text) & set(".e") else ".0f")
    whole = int(number)
    return f"(-{-(whole + 1)} - 1)" if whole == -(1 << 63) else str(whole)


class Constants:
    """Arrays that the source holds as ``const`` data; equal arrays are stored once."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, bytes], str] = {}
        self.arrays: dict[str, Array] = {}

    def add(self, array: Array) -> str:
        """The name of an array's elements."""
        array = np.ascontiguousarray(array)
        if array.dtype == np.bool_:
            array = array.astype(np.uint8)
        if array.dtype.name not in C_TYPES:
            raise Untranslatable(f"constants of type {array.dtype}")
        checked_tensor_bytes(array.nbytes)
        key = (array.dtype.name, array.tobytes())
        if key not in self._names:
            self._names[key] = name = f"k{len(self.arrays)}"
            self.arrays[name] = array.reshape(-1)
        return self._names[key]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def definitions(self) -> Iterator[str]:
        """The C definitions, one per array."""
        for name, array in self.arrays.items():
            numbers = _floats(array) if array.dtype.kind == "f" else map(c_literal, array)
            lines, line = [], ""
            for number in numbers:
                if len(line) + len(number) > 118:
                    lines.append(line)
                    line = ""
                line += number + ","
            text = "\n".join([*lines, line])
            kind = C_TYPES[array.dtype.name]
            yield f"static const {kind} {name}[{array.size}] CAPS_ALIGNED = {{\n{text}}};"


@dataclass
class CNode:
    """A node.

    Attributes:
        name: name of the node, or of its first output.
        operator: its type, without the number of an instance.
        inputs: its values; None for omitted ones.
        attributes: attributes as Python values.
        outputs: how many it has.
        relu: whether a Relu follows that the node can do itself.
        opset: version of the standard operators.
    """

    name: str
    operator: str
    inputs: list[ProgramValue | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    relu: bool = False
    opset: int = 20

    def value(self, k: int) -> ProgramValue:
        """A required input."""
        value = self.optional(k)
        if value is None:
            raise Untranslatable(f"input {k} is missing")
        return value

    def optional(self, k: int) -> ProgramValue | None:
        return self.inputs[k] if k < len(self.inputs) else None

    def array(self, k: int, what: str) -> Array:
        """A required input that must be constant."""
        value = self.value(k)
        if value.array is None:
            raise Untranslatable(f"{what} that is computed")
        return value.array

    def integers(self, k: int, name: str) -> list[int] | None:
        """Integers from an input (newer operators) or an attribute (older ones); None if there is neither."""
        if self.optional(k) is not None:
            return [int(v) for v in self.array(k, name).reshape(-1)]
        found = self.attributes.get(name)
        return None if found is None else [int(v) for v in found]

    def floats(self, k: int) -> ProgramValue:
        """A required input of float32."""
        value = self.value(k)
        if value.dtype != "float32":
            raise Untranslatable(f"elements of type {value.dtype}")
        return value

    def filled(self, k: int, what: str, shape: Sequence[int]) -> Array:
        """A required, constant input that is broadcast to a shape."""
        return broadcast_constant(self.array(k, what), what, shape)

    def axis(self, default: int, rank: int) -> int:
        return nonnegative_axis(int(self.attributes.get("axis", default)), rank)


def broadcast_constant(array: Array, what: str, shape: Sequence[int]) -> Array:
    """An array, broadcast to a shape.

    Raises:
        Untranslatable: it has another shape.
    """
    try:
        return np.broadcast_to(array, tuple(shape))
    except ValueError as error:
        raise Untranslatable(f"{what} of shape {list(array.shape)} for {list(shape)}") from error


def nonnegative_axis(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        Untranslatable: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise Untranslatable(f"axis {axis} of {rank}")
    return axis % rank


Translator: TypeAlias = Callable[[Program, CNode], Sequence[ProgramValue]]
