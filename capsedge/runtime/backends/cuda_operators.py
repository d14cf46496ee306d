"""Capsule operators as CUDA kernels of ONNX Runtime's CUDA provider: which nodes of a file have them.

A name that is registered (`DynamicRouting_2`) never runs as its function body, whatever its shapes. So a name
is chosen from the file, before ONNX Runtime loads it, and only if every node of that name fits the kernels.
Which nodes do is known to the operator library, which needs no GPU for that (``onnxruntime/cuda_nodes.h``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from capsedge.errors import (
    CapsedgeError,
    EnvironmentProblem,
    UnsupportedModelError,
    UsageError,
)
from capsedge.runtime.backends.native_library import (
    CUDA,
    HOW_TO_GET_KERNELS,
    check_nodes,
    code_for,
    find_cuda_kernels,
    find_library,
    no_library,
)
from capsedge.runtime.backends.onnxruntime_session import CUDA as CUDA_PROVIDER
from capsedge.runtime.backends.onnxruntime_session import NoKernelsHere, SessionSettings
from capsedge.runtime.onnx_file.structure import (
    GraphStructure,
    Node,
    Structure,
    ValueInfo,
    structure_of,
)
from capsedge.runtime.onnx_file.summary import OnnxSummary
from capsedge.spec.operators import DOMAIN, OPERATORS, operator_of

_ANY_BATCH = 1


@dataclass(frozen=True)
class CudaOperators:
    """What a session on a GPU registers.

    Attributes:
        names: types of ``capsedge`` nodes that get a CUDA kernel; the others run as their bodies.
        kernels: the file with the GPU's code.
        library: the operator library.
        others: why the first other node has no kernel; empty if all have one.
    """

    names: tuple[str, ...]
    kernels: Path
    library: Path
    others: str = ""


def find_cuda_operators() -> tuple[Path, Path]:
    """The operator library and the file with the GPU's code."""
    library = find_library()
    if library is None:
        absent = no_library()
        raise NoKernelsHere(absent.what, absent.why, absent.fix)
    kernels = find_cuda_kernels()
    if kernels is None:
        raise NoKernelsHere(
            "The CUDA kernels of capsedge are not installed.",
            "They come in a package of their own.",
            HOW_TO_GET_KERNELS,
        )
    from capsedge.runtime.backends.cuda import driver_version  # not for sessions on the CPU

    driver = driver_version()
    if driver and code_for(kernels, driver, _compute_capability()) is None:
        raise NoKernelsHere(
            "The driver of the GPU is too old for the CUDA kernels of capsedge.",
            f"It supports CUDA {driver}, and they need CUDA {CUDA}.",
            "Install NVIDIA driver 580 or later.",
        )
    return library, kernels


def _compute_capability() -> str:
    """Of the first GPU; empty if no CUDA runtime says it."""
    from capsedge.runtime.backends.cuda import load_cuda

    with suppress(EnvironmentProblem):
        return load_cuda().compute_capability(0)
    return ""


def with_operators(
    bare: SessionSettings, path: Path, data: bytes, summary: OnnxSummary, ops: str
) -> tuple[SessionSettings, bool]:
    """How a file runs on a GPU, with its operators that have kernels; and whether there are others."""
    if bare.provider != CUDA_PROVIDER:
        if ops == "fused":
            raise UsageError(
                "ops is 'fused' with ONNX Runtime's TensorRT provider.",
                "The operator library has kernels for the CPU and for the CUDA provider.",
                "Use the provider 'cuda', or build an engine with `capsedge build --plugin fused`.",
            )
        ops = "portable"
    chosen = choose(path, data, summary, ops)
    if chosen is None:
        return bare, False
    settings = replace(bare, library=chosen.library, nodes=chosen.names, kernels=chosen.kernels)
    return settings, bool(chosen.others)


def choose(path: Path, data: bytes, summary: OnnxSummary, ops: str) -> CudaOperators | None:
    """What to register for a file on a GPU; None if all of its nodes run as their bodies."""
    if not check_nodes(path, summary, ops):
        return None
    chosen = None
    problem: CapsedgeError | None = None
    if ops != "portable":
        try:
            library, kernels = find_cuda_operators()
        except NoKernelsHere as error:
            if ops == "fused":
                raise
            problem = error
        else:
            chosen = _chosen(structure_of(data, str(path)), library, kernels)
            if chosen.others and ops == "fused":
                raise UnsupportedModelError(
                    f"{path} does not run with CUDA kernels only.",
                    f"{chosen.others}.",
                    "Use ops 'auto': such nodes then run as their function bodies.",
                )
    _check_bodies(path, summary, chosen, problem)
    return chosen if chosen and chosen.names else None


def _check_bodies(
    path: Path, summary: OnnxSummary, chosen: CudaOperators | None, problem: CapsedgeError | None
) -> None:
    """Refuse a file some of whose nodes have neither a kernel nor a body."""
    names = set(chosen.names if chosen else ())
    bare = {t for t, o in summary.capsedge_nodes if (t, o) not in summary.capsedge_functions}
    missing = sorted(operator_of(name) for name in bare - names)
    if not missing:
        return
    why = "ops is 'portable'" if problem is None else problem.what.rstrip(".")
    if chosen:
        why = chosen.others or "the kernels do not include them"
    raise EnvironmentProblem(
        f"{path} does not run on the GPU here.",
        f"Its {', '.join(dict.fromkeys(missing))} nodes have no function body, and {why}.",
        problem.fix if problem else "Export it again with `capsedge export --ops auto`.",
    )


def load_problem(library: Path, kernels: Path) -> str:
    """Why the kernels do not load on this machine's GPU; empty if they do."""
    from capsedge.runtime.backends.cuda import load_cuda

    with suppress(EnvironmentProblem):
        load_cuda()  # so that the library finds a CUDA runtime that only a Python package has
    load, text = function_of(library, "capsedge_cuda_load"), ctypes.create_string_buffer(1024)
    refused = load(str(kernels).encode(), text, ctypes.c_size_t(len(text)))
    return text.value.decode(errors="replace") if refused else ""


# --- Which nodes fit ---


def _chosen(structure: Structure, library: Path, kernels: Path) -> CudaOperators:
    misfits: dict[str, str] = {}  # by name, the first node's
    known = _values(structure.graph)
    top = {id(node) for node in structure.graph.nodes}
    names: dict[str, None] = {}
    for node in _capsedge_nodes(structure):
        operator = OPERATORS.get(operator_of(node.op))
        if operator is not None and operator.standard:
            continue  # its body has a kernel
        names[node.op] = None
        where = node.name or node.outputs[0] if node.outputs else node.name
        if id(node) not in top:
            reason = "it is inside another node or function, where no shapes are stated"
        else:
            reason = _refusal(node, known, library)
        if reason:
            misfits.setdefault(node.op, f"{node.op} '{where}' has no CUDA kernel: {reason}")
    return CudaOperators(
        tuple(name for name in names if name not in misfits),
        kernels,
        library,
        next(iter(misfits.values()), ""),
    )


def _capsedge_nodes(structure: Structure) -> Iterable[Node]:
    for graph in (structure.graph, *structure.functions):
        yield from (node for node in graph.walk() if node.domain == DOMAIN)


def _values(graph: GraphStructure) -> dict[str, ValueInfo]:
    """What the file states of the graph's values, by name."""
    values = (*graph.values, *graph.outputs, *graph.inputs, *graph.initializers)
    return {value.name: value for value in values}


def _refusal(node: Node, known: Mapping[str, ValueInfo], library: Path) -> str:
    """Why the kernels do not take a node; empty if they do."""
    operator = OPERATORS.get(operator_of(node.op))
    if operator is None or not operator.has_cuda_kernel:
        return "the kernels do not include this operator"
    if not operator.takes(len(node.inputs)) or not all(node.inputs):
        return "it leaves out an input"
    if len(node.outputs) != len(operator.outputs) or not all(node.outputs):
        return "it leaves out an output"
    inputs = []
    for name, value in zip(node.inputs, operator.inputs, strict=False):
        tensor = known.get(name)
        shape = None if tensor is None else _sizes(tensor, value.shape)
        if tensor is None or shape is None:
            return f"the file does not state the shape of its input '{value.name}'"
        if tensor.type not in NATIVE_TYPES:
            return f"its input '{value.name}' is {tensor.type}"
        inputs.append((shape, tensor.type))
    return cuda_node(library, node.op, node.attributes, inputs).refused()


def _sizes(value: ValueInfo, dimensions: Sequence[str]) -> list[int] | None:
    """The sizes of an input, any size of the batch as 1; None if another size is not known.

    Dimensions that ``...`` stands for may have any size.
    """
    if value.shape is None:
        return None
    sizes: list[int] = []
    for axis, size in enumerate(value.shape):
        free = dimensions[:1] == ("...",) or (axis == 0 and dimensions[:1] == ("N",))
        if not isinstance(size, int) and not free:
            return None
        sizes.append(size if isinstance(size, int) else _ANY_BATCH)
    return sizes


NATIVE_TYPES = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "uint8": 3,
    "int32": 4,
}  # of capsedge/kernels.h
_WORDS = 512  # characters of a reason


class NativeAttribute(ctypes.Structure):
    """``capsedge_kernel_attribute`` of capsedge/kernels.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("values", ctypes.POINTER(ctypes.c_double)),
        ("count", ctypes.c_int32),
    )


class NativeTensor(ctypes.Structure):
    """``capsedge_kernel_tensor`` of capsedge/kernels.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("type", ctypes.c_int32),
    )


class NativeNode(ctypes.Structure):
    """``capsedge_cuda_node`` of onnxruntime/cuda_nodes.h."""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("attributes", ctypes.POINTER(NativeAttribute)),
        ("attribute_count", ctypes.c_int32),
        ("inputs", ctypes.POINTER(NativeTensor)),
        ("input_count", ctypes.c_int32),
    )


@dataclass(frozen=True)
class CudaNode:
    """A node with the shapes of its inputs; any thread may use it.

    Attributes:
        library: the operator library.
        native: the node as the library takes it.
    """

    library: Path
    native: NativeNode

    def refused(self) -> str:
        """Why the kernels do not take it, which needs no GPU; empty if they do."""
        return self._call("capsedge_cuda_takes")[1]

    def scratch(self) -> tuple[int, str]:
        """Bytes of scratch memory that it needs on the current GPU, and why the kernels do not take it."""
        return self._call("capsedge_cuda_scratch", result=ctypes.c_int64)

    def run(
        self, inputs: Sequence[int], outputs: Sequence[int], scratch: tuple[int, int], stream: int
    ) -> str:
        """Queue the node on a stream of the current GPU.

        Args:
            inputs, outputs: addresses on the device, in the order of the specification.
            scratch: address and bytes of scratch memory, which lasts until the work is done.

        Returns:
            Why it could not be queued; empty if it was.
        """
        address, size = scratch
        return self._call(
            "capsedge_cuda_run",
            (ctypes.c_void_p * len(inputs))(*inputs),
            (ctypes.c_void_p * len(outputs))(*outputs),
            ctypes.c_void_p(address),
            ctypes.c_int64(size),
            ctypes.c_void_p(stream),
        )[1]

    def _call(self, name: str, *arguments: Any, result: Any = ctypes.c_int) -> tuple[int, str]:
        function, text = function_of(self.library, name), ctypes.create_string_buffer(_WORDS)
        function.restype = result
        code = function(ctypes.byref(self.native), *arguments, text, ctypes.c_size_t(_WORDS))
        return code, text.value.decode(errors="replace")


def cuda_node(
    library: Path,
    name: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[tuple[Sequence[int], str]],
) -> CudaNode:
    """A node for the kernels.

    Args:
        attributes: those that are no numbers or lists of numbers are left out.
        inputs: shape and type of each; the type is one of `NATIVE_TYPES`.
    """
    tensors = (NativeTensor * len(inputs))()
    for tensor, (shape, kind) in zip(tensors, inputs, strict=True):
        tensor.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        tensor.rank, tensor.type = len(shape), NATIVE_TYPES[kind]
    numbers = _attributes(attributes)
    return CudaNode(
        library, NativeNode(name.encode(), numbers, len(numbers), tensors, len(tensors))
    )


def _attributes(attributes: Mapping[str, Any]) -> Any:
    """The numbers among attributes."""
    numbers = {
        name: list(value) if isinstance(value, (list, tuple)) else [value]
        for name, value in attributes.items()
        if isinstance(value, (int, float, list, tuple))
    }
    native = (NativeAttribute * len(numbers))()
    for attribute, (name, values) in zip(native, numbers.items(), strict=True):
        attribute.name = name.encode()
        attribute.values = (ctypes.c_double * max(1, len(values)))(*values)
        attribute.count = len(values)
    return native


@lru_cache
def function_of(library: Path, name: str) -> Any:
    """A function of the operator library."""
    try:
        return getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError) as error:
        raise EnvironmentProblem(
            f"The operator library {library} does not load, or is of another version.",
            f"{error}.",
            "Reinstall capsedge, or run without the library: `--ops portable` (ops='portable').",
        ) from error
