"""The patches that published networks route over where they are not plain windows (docs/how-to/import.md).

Code that stacks shifted copies of a map and then views the stack with its axes in another order mixes
positions. The mixture is a fixed permutation: the patches are laid side by side, so that the operators find
them as windows that do not overlap.
"""

from __future__ import annotations

import torch
from torch import Tensor


def patch_index(
    grid: tuple[int, int], kernel: int, stride: int, elements: int, order: str
) -> Tensor:
    """Where each element of the patches, laid side by side, is taken from.

    Args:
        grid: rows and columns of the children.
        elements: of a pose; 1 where the permutation is one of positions.
        order: ``kernel``: patches ``[K, K, H', W']`` read as ``[H', W', K, K]``; ``elements``: patches
            ``[P, H'W']`` at every place of the kernel read as ``[H'W', P]``.

    Returns:
        Indices into ``[H W P]``, for ``[H'K, W'K, P]`` flattened.
    """
    source = torch.arange(grid[0] * grid[1] * elements).reshape(*grid, elements)
    patches = source.unfold(0, kernel, stride).unfold(1, kernel, stride)
    h, w = patches.shape[:2]  # [H', W', P, K, K]
    if order == "kernel":
        mixed = patches.permute(3, 4, 0, 1, 2).reshape(h, w, kernel, kernel, elements)
    else:
        mixed = patches.permute(3, 4, 2, 0, 1).reshape(kernel, kernel, h, w, elements)
        mixed = mixed.permute(2, 3, 0, 1, 4)
    return mixed.permute(0, 2, 1, 3, 4).flatten()


def patched(x: Tensor, index: Tensor, places: tuple[int, int]) -> Tensor:
    """A map of capsules ``[N, H, W, C, P]`` as patches side by side.

    Args:
        index: of ``patch_index``, of positions or of positions and elements.
        places: rows and columns of all patches together.
    """
    n, h, w, c, p = x.shape
    rows, columns = places
    if index.numel() == rows * columns:  # whole poses change places
        return x.reshape(n, h * w, c, p).index_select(1, index).reshape(n, rows, columns, c, p)
    flat = x.permute(0, 3, 1, 2, 4).reshape(n, c, h * w * p)
    return flat.index_select(2, index).reshape(n, c, rows, columns, p).permute(0, 2, 3, 1, 4)
