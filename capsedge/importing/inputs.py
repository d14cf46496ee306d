"""The inputs on which an imported network is compared with its author's code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsedge.datasets import ImageSet
from capsedge.runtime.metadata import Preprocessing
from capsedge.verification.inputs import Floats, generated, hard_cases, prepared

RANDOM = 512  # images of noise
STROKES = 512
BATCH = 32


@dataclass(frozen=True)
class Block:
    """Inputs that are in memory at once.

    Attributes:
        names: of each, for a person.
        inputs: ``[n, C, H, W]``, prepared; n is at most `BATCH`.
    """

    names: tuple[str, ...]
    inputs: Floats


@dataclass(frozen=True)
class Inputs:
    """Noise, strokes, hard cases, and images of the user's; made block by block, to bound the memory.

    Attributes:
        preprocessing: of the network.
        images: the user's, if there are some.
    """

    preprocessing: Preprocessing
    images: ImageSet | None = None

    def __len__(self) -> int:
        hard = len(hard_cases(self._shape, self.preprocessing))
        return RANDOM + STROKES + hard + (0 if self.images is None else len(self.images))

    def __iter__(self) -> Iterator[Block]:
        """The blocks, the same whenever they are asked for."""
        prep = self.preprocessing
        yield from _numbered("noise", (self._noise(n, k) for k, n in _sizes(RANDOM)))
        strokes = (generated(self._shape, prep, n, seed=2017 + k) for k, n in _sizes(STROKES))
        yield from _numbered("strokes", strokes)
        hard = hard_cases(self._shape, prep)
        yield Block(hard.names, np.stack(list(hard.inputs())))
        if self.images is not None:
            yield from _numbered("image", self.images.batches(BATCH))

    @property
    def _shape(self) -> tuple[int, int, int]:
        prep = self.preprocessing
        return prep.channels, prep.height, prep.width

    def _noise(self, number: int, block: int) -> Floats:
        prep = self.preprocessing
        noise = np.random.default_rng(2020 + block).random((number, *self._shape))
        return prepared(noise, prep)


def _sizes(total: int) -> Iterator[tuple[int, int]]:
    """Number and size of the blocks that so many inputs make."""
    for k in range(-(-total // BATCH)):
        yield k, min(BATCH, total - k * BATCH)


def _numbered(name: str, blocks: Iterator[Floats]) -> Iterator[Block]:
    numbers = count()
    for block in blocks:
        yield Block(tuple(f"{name} {next(numbers)}" for _ in block), block)


def batches(inputs: NDArray[np.float32], size: int) -> Sequence[Tensor]:
    """Batches of a size; never of one image where it is not 1, since public code squeezes that axis away."""
    tensor = torch.from_numpy(inputs)
    if size == 1:
        return torch.split(tensor, 1)
    several = tensor if len(tensor) > 1 else tensor.repeat(2, 1, 1, 1)
    return torch.tensor_split(several, -(-len(several) // size))
