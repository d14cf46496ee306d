"""The subject of an export: a module from tensors to a tuple of tensors; which may be one, how it runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsedge.datasets.array_files import arrays_by_input, read_arrays
from capsedge.errors import UsageError
from capsedge.exporters.flat_module import repeated_to_batch
from capsedge.exporters.traced_routing import Traced, trace_routing
from capsedge.models import CapsuleModel
from capsedge.models.ops.registration import RoutingCalls
from capsedge.runtime.files.writing import type_in_words
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.spec.vocabularies import EXTRA_OUTPUTS, TRACE

Inputs = Path | str | Tensor | np.ndarray | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A module ready for export.

    Attributes:
        module: takes the inputs, returns a tuple of the outputs.
        inputs, outputs: their names.
        example: one tensor per input, batch first, batch 2 or more.
        metadata: metadata of the file, as far as it is known; None for a user's module without any.
        batches: batch sizes at which a file with a free batch is compared.
        traced: the routing whose iterations become outputs; None without a trace.
        to_trace: whether to trace all routing that the graph expresses in capsule operators.
        free_axes: for each input, the axes besides the batch that stay free.
        longest: for each input, the largest size of each axis that the network takes; 0 if only the shape
            limits it. Empty if no length is limited.
    """

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    example: tuple[Tensor, ...]
    metadata: ModelMetadata | None
    batches: tuple[int, ...] = (1, 3)
    traced: Traced | None = None
    to_trace: bool = False
    free_axes: tuple[tuple[int, ...], ...] = ()
    longest: tuple[tuple[int, ...], ...] = ()

    @property
    def reference(self) -> nn.Module:
        """The reference of the comparison: the module, and its trace."""
        return self.traced or self.module

    @property
    def compared(self) -> tuple[str, ...]:
        """Names of what ``reference`` returns."""
        return self.outputs + (self.traced.outputs if self.traced else ())

    def sized(self, batch: int) -> Subject:
        """The subject with the first image of its example, repeated to a batch."""
        return replace(self, example=repeated_to_batch(self.example, batch))

    @property
    def length_names(self) -> dict[int, str]:
        """The names of the free dimensions besides the batch, by their sizes in the example: L, L2, ...

        Axes of the same size share one dimension.
        """
        names: dict[int, str] = {}
        for x, axes in zip(self.example, self.free_axes, strict=bool(self.free_axes)):
            for axis in axes:
                names.setdefault(int(x.shape[axis]), f"L{len(names) + 1 if names else ''}")
        return names


class _WithExtras(nn.Module):
    """A capsule model with the outputs of the file."""

    def __init__(self, model: CapsuleModel, extras: Sequence[str]) -> None:
        super().__init__()
        self.model, self.extras = model, tuple(extras)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        scores, poses, couplings = self.model(images)
        outputs = [scores, poses]
        for extra in self.extras:
            outputs.append(
                self.model.reconstruct(poses) if extra == "reconstruction" else couplings
            )
        return tuple(outputs)


class KeepingAllPasses(nn.Module):
    """A module that also returns the poses of every routing pass, so that no pass is dropped as dead."""

    variadic = True  # torch.export then expects the input shapes under this one parameter name

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        with RoutingCalls() as calls:
            outputs = self.module(*inputs)
        return (*outputs, *calls.outputs)


def of_capsule_model(
    model: CapsuleModel, extras: Sequence[str], batch: int | None, checkpoint_sha256: str
) -> Subject:
    """Make the subject from one of the package's models.

    Raises:
        UsageError: an unknown extra output, or a reconstruction without a decoder.
    """
    for extra in extras:
        if extra not in EXTRA_OUTPUTS:
            raise UsageError(
                f"Unknown extra output '{extra}'.",
                "",
                f"Choose one of: {', '.join(EXTRA_OUTPUTS)}.",
            )
    if "reconstruction" in extras and model.decoder is None:
        raise UsageError(
            "This model cannot reconstruct images.",
            "It has no decoder.",
            "Remove 'reconstruction' from --with, or train with a decoder.",
        )
    config = model.config
    p = config.preprocessing
    generator = torch.Generator().manual_seed(1)
    images = torch.rand((batch or 2, p.channels, p.height, p.width), generator=generator)
    chosen = [e for e in EXTRA_OUTPUTS if e in extras and e != TRACE]
    module = _WithExtras(model, chosen).eval()
    traced = trace_routing(module, model, images) if TRACE in extras else None
    return Subject(
        module,
        ("images",),
        (model.score_name, "poses", *chosen),
        (images,),
        ModelMetadata(
            architecture=config.architecture,
            configuration=config.to_dict(),
            routing=config.routing,
            iterations=config.iterations,
            class_names=config.class_names,
            preprocessing=p,
            task=config.task,
            outputs=config.outputs,
            checkpoint_sha256=checkpoint_sha256,
            origin=model.origin,
            typical_input=model.typical_input,
            training_split=model.training_split,
        ),
        traced=traced,
    )


# --- The arguments of ``export``, checked before any work ---

_USER_INPUTS = (
    "model.load_state_dict(torch.load(path, weights_only=True)); capsedge.export(model, ...)"
)


def check_module(model: object) -> None:
    """Refuse anything that is not a module, and say how to get a module from it.

    Raises:
        UsageError: it is a path, a state dict, a class, or anything else.
    """
    if isinstance(model, nn.Module):
        return
    if isinstance(model, (str, Path)):
        raise UsageError(
            f"'{model}' is a path; export takes a module.",
            "A weights file does not hold the network's code.",
            "For a checkpoint of this package: capsedge.export(capsedge.load_checkpoint(path), ...). For a "
            f"network of your own: model = CapsNet(); {_USER_INPUTS} (docs/how-to/your-model.md).",
        )
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise UsageError(
            f"{model.__name__} is a class; export takes a module.",
            "A class has no weights yet.",
            f"Create an instance and load its weights: model = {model.__name__}(...); "
            "model.load_state_dict(...).",
        )
    if isinstance(model, Mapping):
        raise UsageError(
            "A state dict is not a module.",
            "It holds the weights without the network's code.",
            "Build the network and load it: model.load_state_dict(state); capsedge.export(model, ...)",
        )
    found = type_in_words(model)
    raise UsageError(
        f"{found[0].upper()}{found[1:]} is not a PyTorch module.",
        "export takes a torch.nn.Module.",
        "Wrap a function in a module; for an ONNX file use capsedge.optimize.",
    )


def check_tolerance(atol: float, rtol: float) -> None:
    """Refuse tolerances of an export that are negative, and those that are both zero."""
    if not (atol >= 0 and rtol >= 0 and atol + rtol > 0):
        raise UsageError(f"Tolerances atol {atol:g}, rtol {rtol:g} are not positive.")


def fixed_batch_size(model: nn.Module, batch: int | None) -> int | None:
    """The batch size to fix; a network whose original code averages over the batch allows only one.

    Raises:
        UsageError: another size is requested.
    """
    fixed = model.config.fixed_batch if isinstance(model, CapsuleModel) else None
    if fixed is not None and batch not in (None, fixed):
        raise UsageError(
            f"This network can be exported only with batch {fixed}, not {batch}.",
            "The author's code averages agreements over the batch, so the results depend on the "
            "batch size.",
            f"Leave the batch out, or set it to {fixed}.",
        )
    return batch if fixed is None else fixed


def check_parameters(model: nn.Module) -> None:
    """Refuse to export a module with parameters or buffers that are not FP32 or not on the CPU."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu" or (
            tensor.dtype.is_floating_point and tensor.dtype != torch.float32
        ):
            raise UsageError(
                "Export starts from an FP32 module on the CPU.",
                f"'{name}' is {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}.",
                "Call model.float().cpu() first; `capsedge quantize` makes FP16 and INT8 files.",
            )


def comparison_inputs(
    inputs: Inputs,
    names: Sequence[str],
    example: Sequence[Tensor],
    free_axes: Sequence[Sequence[int]] = (),
) -> tuple[Tensor, ...]:
    """The user's inputs as tensors of the example's types, one for each input.

    Args:
        inputs: an npz or npy file, an array or tensor, a sequence of them, or a mapping by input name.
        free_axes: for each input, the axes whose size may differ from the example's.

    Raises:
        UsageError: they do not fit the inputs.
    """
    label = str(inputs) if isinstance(inputs, (str, Path)) else "inputs"
    if isinstance(inputs, (str, Path)):
        inputs = read_arrays(Path(inputs))
    if isinstance(inputs, Mapping):
        inputs = arrays_by_input(inputs, names, label)
    values = [inputs] if isinstance(inputs, (Tensor, np.ndarray)) else list(inputs)
    if len(values) != len(names):
        raise UsageError(
            f"{label} holds {len(values)} inputs.", f"The network takes {', '.join(names)}.", ""
        )
    found = []
    axes = free_axes or [()] * len(names)
    for name, value, like, free in zip(names, values, example, axes, strict=True):
        x = torch.as_tensor(np.ascontiguousarray(value))
        fits = x.ndim == like.ndim and all(
            a == b or (k in free and a)
            for k, (a, b) in enumerate(zip(x.shape, like.shape, strict=True))
            if k
        )
        if not x.ndim or not len(x) or not fits:
            sizes = ["any" if k in free else str(d) for k, d in enumerate(like.shape) if k]
            raise UsageError(
                f"{label} does not fit the input '{name}'.",
                f"It is {list(x.shape)}; expected [{', '.join(['n', *sizes])}].",
                "Pass the inputs as the network sees them, with the batch first.",
            )
        if like.dtype.is_floating_point and not x.dtype.is_floating_point:
            raise UsageError(
                f"{label} holds whole numbers for the input '{name}'.",
                f"The network takes {str(like.dtype).removeprefix('torch.')}.",
                "Pass the inputs as the network sees them, scaled and normalized.",
            )
        if x.dtype.is_floating_point and not torch.isfinite(x).all():
            raise UsageError(f"{label} holds NaN or infinite values.", "", "Leave them out.")
        found.append(x.to(like.dtype))
    if len({len(x) for x in found}) > 1:
        raise UsageError(
            f"{label} holds different numbers of samples for its inputs.",
            "",
            "Pass the same number of samples for every input.",
        )
    return tuple(found)


# --- Threads while it runs: some thirty times during an export ---

# Where a run takes milliseconds, PyTorch's threads wait for each other longer than they compute, and on a
# busy machine a hundred times as long.
_LONG = 0.1  # seconds of one run on one thread
_caller_threads: ContextVar[int | None] = ContextVar("_caller_threads", default=None)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within this context, PyTorch has one thread until a `watched` run is long; afterwards, those before."""
    before = torch.get_num_threads()
    token = _caller_threads.set(before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _caller_threads.reset(token)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A run of the module: one that is long brings back the threads that `one_thread` took."""
    started = time.thread_time()
    yield
    before = _caller_threads.get()
    if before is not None and time.thread_time() - started >= _LONG:
        torch.set_num_threads(before)
