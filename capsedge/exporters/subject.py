"""The subject of an export: a module from tensors to a tuple of tensors, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.exporters.traced_routing import RoutingCalls, Traced, trace_routing
from capsedge.models import CapsuleModel
from capsedge.runtime.metadata import ModelMetadata
from capsedge.spec.vocabularies import EXTRA_OUTPUTS, TRACE


@dataclass(frozen=True)
class Subject:
    """A module ready for export.

    Attributes:
        module: takes the inputs, returns a tuple of the outputs.
        inputs, outputs: their names.
        example: one tensor per input, batch first, batch 2 or more.
        metadata: metadata of the file; None for a user's module without metadata.
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
