"""What every capsule network offers, whatever its routing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.models.config import ModelConfig
from capsedge.models.stems import make_stem, stem_grid
from capsedge.runtime.nothing import TypicalInput
from capsedge.runtime.origin import Origin


class CapsuleOutput(NamedTuple):
    """Result of a forward pass.

    Attributes:
        scores: lengths (or activations) in [0, 1], or logits, of the class capsules ``[N, J]``.
        poses: their poses ``[N, J, P]``.
        couplings: of the class layer's last weighted sum ``[N, I, J]``.
    """

    scores: Tensor
    poses: Tensor
    couplings: Tensor


def make_decoder(sizes: Sequence[int], picture: tuple[int, int, int]) -> nn.Sequential:
    """Fully connected layers that draw a picture ``[C H W]`` of all class capsules."""
    hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], math.prod(picture)), nn.Sigmoid())


class CapsuleModel(nn.Module, ABC):
    """Base of the model families.

    Attributes:
        config: what built the model.
        score_name: ``lengths`` or ``logits``: the name of the scores in an exported file.
        decoder: the reconstruction decoder, if there is one.
        origin: where imported weights come from; None for others.
        typical_input: what images as in training are like; None if the checkpoint does not state it.
    """

    score_name = "lengths"
    origin: Origin | None = None
    typical_input: TypicalInput | None = None

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
            poses: of the class capsules ``[N, J, P]``.

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
        """Pictures decoded from the capsule of one class of each image, as training does.

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
