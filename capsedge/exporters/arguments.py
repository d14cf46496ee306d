"""Check the arguments of ``export`` before any work: the module, and the user's own inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsedge.datasets.array_files import by_name, read_arrays
from capsedge.errors import UsageError
from capsedge.models import CapsuleModel
from capsedge.runtime.files.writing import type_in_words

Inputs = Path | str | Tensor | np.ndarray | Sequence[Any] | Mapping[str, Any]
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
    if not (atol >= 0 and rtol >= 0 and atol + rtol > 0):
        raise UsageError(f"Tolerances atol {atol:g}, rtol {rtol:g} are not positive.")


def batch_of(model: nn.Module, batch: int | None) -> int | None:
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
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu" or (
            tensor.dtype.is_floating_point and tensor.dtype != torch.float32
        ):
            raise UsageError(
                "Export starts from an FP32 module on the CPU.",
                f"'{name}' is {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}.",
                "Call model.float().cpu() first; `capsedge quantize` makes FP16 and INT8 files.",
            )


def user_inputs(
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
        inputs = by_name(inputs, names, label)
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
