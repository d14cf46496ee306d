"""Define `CapsuleModel`, the base of every capsule network, and its outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from capsedge.errors import UsageError
from capsedge.models.configs import ModelConfig
from capsedge.models.stems import make_stem, stem_grid
from capsedge.runtime.metadata.origin import Origin, TrainingSplit
from capsedge.runtime.metadata.typical_input import TypicalInput
from capsedge.spec import limits


class CapsuleOutput(NamedTuple):
    """Result of a forward pass.

    Attributes:
        scores: lengths (or activations) in [0, 1], or logits, of the class capsules ``[N, J]``.
        poses: their poses ``[N, J, P]``.
        couplings: those of the class layer's last weighted sum ``[N, I, J]``.
    """

    scores: Tensor
    poses: Tensor
    couplings: Tensor


class CapsuleModel(nn.Module, ABC):
    """Base of the model families.

    Attributes:
        config: the configuration that the model was built from.
        score_name: the name of the scores in an exported file: ``lengths`` or ``logits``.
        decoder: the reconstruction decoder, if there is one.
        origin: the source of imported weights; None for others.
        typical_input: properties of images like those in training; None if the checkpoint does not state
            them.
        training_split: which images were held out from training; None if the checkpoint does not state it.
    """

    score_name = "lengths"
    origin: Origin | None = None
    typical_input: TypicalInput | None = None
    training_split: TrainingSplit | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        channels, *grid = self._picture
        self.stem, self.stem_channels = make_stem(config.stem, channels, (grid[0], grid[1]))
        self.decoder: nn.Module | None = None

    @abstractmethod
    def forward(self, images: Tensor) -> CapsuleOutput:
        """Classify ``images [N, C, H, W]``, preprocessed as ``config.preprocessing`` says."""

    def reconstruct(self, poses: Tensor) -> Tensor:
        """Pictures decoded from each class's capsule alone, all others masked to zero.

        Args:
            poses: poses of the class capsules ``[N, J, P]``.

        Returns:
            ``[N, J, C, H, W]`` in [0, 1].

        Raises:
            UsageError: the model has no decoder.
        """
        j, p = poses.shape[1:]
        mask = torch.eye(j, dtype=poses.dtype, device=poses.device)
        masked = (poses.unsqueeze(1) * mask[None, :, :, None]).reshape(-1, j * p)
        return self._decode(masked).reshape(-1, j, *self._picture)

    def reconstruct_class(self, poses: Tensor, labels: Tensor) -> Tensor:
        """Pictures decoded, as in training, from the capsule of one class per image.

        Args:
            poses: ``[N, J, P]``.
            labels: the class of each image ``[N]``.

        Returns:
            ``[N, C, H, W]`` in [0, 1].

        Raises:
            UsageError: the model has no decoder.
        """
        mask = nn.functional.one_hot(labels, poses.shape[1]).to(poses.dtype).unsqueeze(-1)
        return self._decode((poses * mask).flatten(1)).reshape(-1, *self._picture)

    @property
    def _picture(self) -> tuple[int, int, int]:
        p = self.config.preprocessing
        return p.channels, p.height, p.width

    def _decode(self, masked: Tensor) -> Tensor:
        if self.decoder is None:
            raise UsageError("This model has no reconstruction decoder.")
        pictures: Tensor = self.decoder(masked)
        return pictures

    def _grid_after_stem(self) -> tuple[int, int]:
        """Rows and columns of the stem's output."""
        return stem_grid(self.config.stem, self._picture[1:])


# --- The work that a model would need, checked before it is built ---


def check_model_cost(model: CapsuleModel) -> None:
    """Run a model on one image without values, and refuse it if it exceeds a limit.

    Args:
        model: on the device ``meta``, where nothing is allocated or computed.

    Raises:
        UsageError: a layer or the whole model computes too many values or takes too many operations; or the
            layers do not fit each other.
    """
    p = model.config.preprocessing
    image = torch.empty(1, *p.shape, device="meta")
    try:
        with torch.no_grad(), _WorkCounter():
            model.eval()(image)
    except RuntimeError as error:  # from torch: a layer does not fit the previous one
        raise UsageError("A model of this size cannot run.", str(error).split("\n")[0]) from error


class _WorkCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators, the values that they compute, and the operations of convolutions and matrix products.

    Raises:
        UsageError: an operator exceeds a limit.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sum = self._steps = self._operations = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self._steps += 1
        _check(self._steps, limits.MODEL_STEPS, "operators")
        for value in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(value, Tensor):
                _check(value.numel(), limits.MODEL_VALUES, "values in one layer")
                self._sum += value.numel()
                _check(self._sum, limits.MODEL_SUM, "values")
        count = flop_registry.get(getattr(func, "overloadpacket", None))
        if count is not None:
            self._operations += count(*args, **(kwargs or {}), out_val=found)
            _check(self._operations, limits.MODEL_OPERATIONS, "operations")
        return found


def _check(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise UsageError(
            "The model is too large for one image.",
            f"One takes {count:,} {what}; the limit is {limit:,}.",
            "Use a model for smaller images, or with fewer channels.",
        )
