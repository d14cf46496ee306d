"""The subject of an export: a module that maps tensors to a tuple of tensors, and a name for each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.models import CapsuleModel
from capsedge.runtime.metadata import ModelMetadata

EXTRA_OUTPUTS = ("reconstruction", "couplings")


@dataclass(frozen=True)
class Subject:
    """A module ready for export.

    Attributes:
        module: takes the inputs, returns a tuple of the outputs.
        inputs, outputs: their names.
        example: one tensor per input, batch first, batch 2 or more.
        metadata: metadata of the file; None for a user's module without metadata.
    """

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    example: tuple[Tensor, ...]
    metadata: ModelMetadata | None


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


class Flat(nn.Module):
    """A user's module whose output (dict, named tuple, tuple or tensor) is made a plain tuple."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(_named(self.module(*inputs)).values())


class RoutingCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the first output of every routing operator that is called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outputs: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "capsedge" and isinstance(result, tuple):
            self.outputs.append(result[0])
        return result


class KeepingAllPasses(nn.Module):
    """A module that also returns the poses of every routing pass, so that no pass is dropped as dead."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        with RoutingCalls() as calls:
            outputs = self.module(*inputs)
        return (*outputs, *calls.outputs)


def _named(result: Any) -> dict[str, Tensor]:
    if isinstance(result, Mapping):
        named = dict(result)
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        named = dict(zip(result._fields, result, strict=True))
    elif isinstance(result, (tuple, list)):
        named = {f"output_{i}": value for i, value in enumerate(result)}
    else:
        named = {"output": result}
    wrong = [name for name, value in named.items() if not isinstance(value, Tensor)]
    if wrong or not named:
        raise UnsupportedModelError(
            "The module's outputs cannot be exported.",
            f"Not a tensor: {', '.join(map(str, wrong)) or 'there is no output'}.",
            "Return a tensor, a tuple, a named tuple or a dict of tensors.",
        )
    return {str(k): v for k, v in named.items()}


def of_capsule_model(
    model: CapsuleModel, extras: Sequence[str], batch: int | None, checkpoint_sha256: str
) -> Subject:
    """The subject for one of the package's models.

    Raises:
        UsageError: an unknown extra output, or a reconstruction without a decoder.
    """
    for extra in extras:
        if extra not in EXTRA_OUTPUTS:
            raise UsageError(
                f"There is no extra output '{extra}'.", "", f"Known: {', '.join(EXTRA_OUTPUTS)}."
            )
    if "reconstruction" in extras and model.decoder is None:
        raise UsageError(
            "This model cannot reconstruct.",
            "It has no decoder.",
            "Leave 'reconstruction' out of --with, or train with a decoder.",
        )
    config = model.config
    p = config.preprocessing
    generator = torch.Generator().manual_seed(1)
    images = torch.rand((batch or 2, p.channels, p.height, p.width), generator=generator)
    chosen = [e for e in EXTRA_OUTPUTS if e in extras]
    return Subject(
        _WithExtras(model, chosen).eval(),
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
            checkpoint_sha256=checkpoint_sha256,
        ),
    )


def of_module(
    module: nn.Module,
    example: Tensor | Sequence[Tensor] | None,
    batch: int | None,
    output_names: Sequence[str] | None,
    metadata: ModelMetadata | None,
) -> Subject:
    """The subject for a user's own module.

    Raises:
        UsageError: there is no example, or the names do not fit the outputs.
        UnsupportedModelError: an output is not a tensor.
    """
    if example is None:
        raise UsageError(
            "A module of your own needs an example input.",
            "Its input shapes are otherwise unknown.",
            "Pass example=torch.zeros(2, ...), or a tuple of tensors for several inputs.",
        )
    tensors = (example,) if isinstance(example, Tensor) else tuple(example)
    if not tensors or any(t.ndim == 0 for t in tensors):
        raise UsageError("Every input needs a batch dimension.", "", "Put the batch first.")
    wanted = batch or max(2, tensors[0].shape[0])
    # torch.export would treat a batch of one as a constant.
    tensors = tuple(t[:1].expand(wanted, *t.shape[1:]).contiguous() for t in tensors)
    parameters = [
        p.name
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    inputs = [*parameters, *(f"input_{i}" for i in range(len(parameters), len(tensors)))]
    with torch.no_grad():
        names = tuple(_named(module(*tensors)))
    if output_names is not None:
        if len(output_names) != len(names):
            raise UsageError(
                f"{len(output_names)} output names were given.",
                f"The module has {len(names)} outputs: {', '.join(names)}.",
            )
        names = tuple(output_names)
    return Subject(Flat(module).eval(), tuple(inputs[: len(tensors)]), names, tensors, metadata)
