"""The operators as CUDA kernels: without a gradient, and without the couplings, which no kernel stores."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef  # type: ignore[attr-defined]

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.cuda_operators import (
    CudaNode,
    cuda_node,
    find_cuda_operators,
    load_problem,
)
from capsedge.runtime.backends.onnxruntime_session import NoKernelsHere, kernels_problem
from capsedge.spec.operators import OPERATORS, Operator

# --- The context ---


@dataclass
class FusedCalls:
    """How operators on CUDA tensors were computed within `fused`; a replayed CUDA graph adds nothing.

    Attributes:
        kernels: number of calls that ran as CUDA kernels, by operator, such as ``"dynamic_routing"``.
        others: operators of which calls ran in PyTorch, and why the first of them did.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    others: dict[str, str] = field(default_factory=dict)


class _Here(threading.local):
    calls: FusedCalls | None = None


_here = _Here()
# Whether any thread is in a context. torch.compile compiles anew when this changes; when an attribute of a
# thread does, not always.
in_use = False
_inside = 0
_entering = threading.Lock()


def _enter(step: int) -> None:
    global in_use, _inside
    with _entering:
        _inside += step
        in_use = _inside > 0


@contextmanager
def fused() -> Iterator[FusedCalls]:
    """Within this context, operators on CUDA tensors run as CUDA kernels of capsedge in place of PyTorch's.

    It is for inference: a call that needs a gradient runs as it does outside. The kernels need the package
    ``capsedge-cuda``; they take FP32 and FP16, and no priors or masks of images. Whatever they do not take
    runs in PyTorch, with the same results up to rounding; ``others`` says why.

    **Couplings have no values**, whichever ran: in their place is a tensor of their shape on the device
    ``meta``, which torch refuses to read.

    Enter it outside of functions that ``torch.compile`` compiles, in the thread that calls the network. To
    capture a CUDA graph, call the network once before.

    Yields:
        What ran, up to date after every call.

    Raises:
        EnvironmentProblem: by a call in it: the kernels are installed, but damaged, of another version than
            capsedge, or the GPU refuses them.

    Example:
        >>> with torch.inference_mode(), capsedge.ops.fused() as ran:
        ...     scores = model(images.cuda()).scores
        >>> ran.kernels
        Counter({'squash': 1, 'dynamic_routing': 1})
    """
    before, _here.calls = _here.calls, FusedCalls()
    _enter(1)
    try:
        yield _here.calls
    finally:
        _enter(-1)
        _here.calls = before


def applies(args: Sequence[Any]) -> bool:
    """While `in_use`: whether a call is for `register_fused`, by where it is made and what it is given."""
    # A file or an exported program has the operators themselves.
    if _here.calls is None or torch.compiler.is_exporting():
        return False
    tensors = [x for x in args if isinstance(x, Tensor)]
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return _gpu.has(tensors[0]) and not needs_gradient


class _Gpu:
    """What is asked of torch about a GPU; tests without one replace it."""

    def has(self, x: Tensor) -> bool:
        """Whether a tensor is there."""
        return x.is_cuda

    @contextmanager
    def on(self, device: torch.device) -> Iterator[int]:
        """Make it the current one; yields its current stream."""
        with torch.cuda.device(device):
            yield torch.cuda.current_stream(device).cuda_stream

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for work of the current stream, by torch's allocator."""
        return torch.empty(shape, dtype=dtype, device=device)


_gpu = _Gpu()


# --- Registration ---


def register_fused(
    name: str, definition: Callable[..., Any], fake: Callable[..., Any], schema: str
) -> CustomOpDef:
    """Register ``capsedge::<name>_fused``: the operator without a gradient and without couplings.

    Args:
        name: name of the operator in PyTorch.
        definition: computes what the kernels do not take.
        fake: shapes and types of the outputs, couplings included.
        schema: arguments and results.
    """
    spec = next(each for each in OPERATORS.values() if each.torch == name)

    def as_declared(outputs: Sequence[Tensor]) -> Any:
        stored = len(spec.outputs)
        made = (*outputs[:stored], *(_without_values(x) for x in outputs[stored:]))
        return made if len(made) > 1 else made[0]

    def forward(*args: Any) -> Any:
        calls = _here.calls or FusedCalls()
        outputs, why = launch(spec, fake, args)
        if outputs is None:
            calls.others.setdefault(name, why)
            # Contiguous, as the kernels' outputs are and `shapes` declares.
            return as_declared([x.contiguous() for x in _listed(definition(*args))])
        calls.kernels[name] += 1
        return as_declared(outputs)

    def shapes(*args: Any) -> Any:
        return as_declared([x.new_empty(x.shape) for x in _listed(fake(*args))])

    op = torch.library.custom_op(f"capsedge::{name}_fused", forward, mutates_args=(), schema=schema)
    op.register_fake(shapes)
    return op


def _listed(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _without_values(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device="meta")


# --- One call ---

_TYPES = {torch.float32: "float32", torch.float16: "float16"}  # as the kernels store
_ALIGNMENT = 16  # bytes; kernels for other addresses are slower
_Shape = tuple[int, ...]


@dataclass(frozen=True)
class _LaunchPlan:
    """What all calls with the same shapes and attributes share.

    Attributes:
        node: None if the kernels do not take it.
        scratch: bytes of scratch memory.
        outputs: the operator's outputs on the device ``meta``.
        why: the reason if there is no node.
    """

    node: CudaNode | None = None
    scratch: int = 0
    outputs: tuple[Tensor, ...] = ()
    why: str = ""


def launch(
    spec: Operator, fake: Callable[..., Any], args: Sequence[Any]
) -> tuple[tuple[Tensor, ...] | None, str]:
    """Queue a call on the current stream of its GPU.

    Returns:
        Its outputs, of which couplings have no values; or None, and why the kernels do not take it.

    Raises:
        EnvironmentProblem: see `fused`.
    """
    at = len(spec.inputs)
    tensors, attributes = list(args[:at]), args[at:]
    while tensors[-1] is None:
        tensors.pop()
    if why := _misfit(tensors):
        return None, why
    first = tensors[0]
    with _gpu.on(first.device) as stream:
        plan = _plan(
            spec.name,
            fake,
            tuple(tuple(x.shape) for x in tensors),
            first.dtype,
            first.device,
            tuple(tuple(x) if isinstance(x, (list, tuple)) else x for x in attributes),
        )
        if plan.node is None:
            return None, plan.why
        stored = plan.outputs[: len(spec.outputs)]
        outputs = tuple(_gpu.empty(x.shape, x.dtype, first.device) for x in stored)
        why = _run(plan.node, plan.scratch, [_aligned(x) for x in tensors], outputs, stream)
    if why:
        raise EnvironmentProblem(
            f"The GPU refuses the CUDA kernels of {spec.torch}.",
            f"{why}.",
            "Look at `nvidia-smi` and `capsedge doctor`, or leave out `capsedge.ops.fused()`.",
        )
    return (*outputs, *plan.outputs[len(stored) :]), ""


def _misfit(tensors: Sequence[Tensor | None]) -> str:
    """Why the kernels take no such tensors, whatever their shapes; empty if they may."""
    given = [x for x in tensors if x is not None]
    first = given[0]
    if len(given) < len(tensors):
        return "it leaves out an input"
    if not all(_gpu.has(x) and x.device == first.device for x in given):
        return "its inputs are not on one GPU"
    if any(x.dtype != first.dtype for x in given):
        return "its inputs have several types"
    if first.dtype not in _TYPES:
        return f"its inputs are {str(first.dtype).removeprefix('torch.')}"
    return "" if first.numel() else "its inputs are empty"


def _run(
    node: CudaNode, size: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
) -> str:
    """Queue a node with so much scratch memory; returns why it could not be queued, or nothing."""
    # Freed before the work is done: torch lends it only to later work of the same stream.
    scratch = _gpu.empty((size,), torch.uint8, inputs[0].device)
    return node.run(
        [x.data_ptr() for x in inputs],
        [x.data_ptr() for x in outputs],
        (scratch.data_ptr(), size),
        stream,
    )


@lru_cache(maxsize=256)
def _plan(
    name: str,
    fake: Callable[..., Any],
    shapes: tuple[_Shape, ...],
    dtype: torch.dtype,
    device: torch.device,  # which the scratch memory depends on
    attributes: tuple[Any, ...],
) -> _LaunchPlan:
    spec = OPERATORS[name]
    library, why = _library()
    if library is None:
        return _LaunchPlan(why=why)
    given = dict(zip(spec.attribute_names, attributes, strict=True))
    node = cuda_node(library, name, given, [(shape, _TYPES[dtype]) for shape in shapes])
    scratch, why = node.scratch()
    if scratch < 0:
        return _LaunchPlan(why=why)
    absent = [None] * (len(spec.inputs) - len(shapes))
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
    return _LaunchPlan(node, scratch, _listed(fake(*tensors, *absent, *attributes)))


@lru_cache(maxsize=1)
def _library() -> tuple[Path | None, str]:
    """The operator library with the kernels loaded; or None, and why they are not.

    Raises:
        EnvironmentProblem: they are installed, and do not load.
    """
    try:
        library, kernels = find_cuda_operators()
        if why := load_problem(library, kernels):
            raise kernels_problem(why)
    except NoKernelsHere as error:
        return None, f"{error.what} {error.why}"
    return library, ""


def _aligned(x: Tensor) -> Tensor:
    """The tensor, or a copy of it that the kernels read fast: contiguous, at an aligned address."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % _ALIGNMENT else x
