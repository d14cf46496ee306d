"""The papers' augmentations, on whole batches ``[N, C, H, W]`` in [0, 1].

They run on the images' device, which may be a GPU. Random numbers are drawn on the CPU, so a seed gives the
same augmentation on both.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, pad


def shift(images: Tensor, limit: int, rng: Generator) -> Tensor:
    """Shift each image by up to ``limit`` pixels per axis, filling with zeros.

    Source: Sabour et al. 2017, section 5 (2 pixels for MNIST); also the padded random crop of CIFAR-10.
    """
    if limit == 0:
        return images
    n, c, h, w = images.shape
    padded = pad(images, (limit,) * 4)
    rows = torch.randint(0, 2 * limit + 1, (n, 1), generator=rng) + torch.arange(h)
    columns = torch.randint(0, 2 * limit + 1, (n, 1), generator=rng) + torch.arange(w)
    index = (
        torch.arange(n)[:, None, None, None],
        torch.arange(c)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    )
    return padded[tuple(each.to(images.device) for each in index)]


def flip(images: Tensor, rng: Generator) -> Tensor:
    """Mirror each image left to right with probability one half (Tsai et al. 2020, CIFAR-10)."""
    chosen = (torch.rand(len(images), generator=rng) < 0.5).to(images.device)
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def affine(
    images: Tensor,
    size: tuple[int, int],
    rng: Generator,
    *,
    shift_limit: float,
    degrees: float = 0.0,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """Place each image on a zero canvas of ``size``, rotated, scaled and shifted at random.

    Args:
        images: ``[N, C, H, W]``.
        size: rows and columns of the canvas.
        shift_limit: largest shift of the centre, in pixels of the canvas.
        degrees: largest rotation.
        scales: smallest and largest magnification.

    Returns:
        ``[N, C, *size]``.
    """
    n, c, h, w = images.shape

    def uniform(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(n, generator=rng)).to(images.device)

    angle = uniform(-degrees, degrees) * math.pi / 180
    zoom = uniform(*scales)
    cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
    dx, dy = uniform(-shift_limit, shift_limit), uniform(-shift_limit, shift_limit)
    # grid_sample maps canvas coordinates to image coordinates, both in [-1, 1].
    fx, fy = size[1] / w, size[0] / h
    tx, ty = 2 * dx / size[1], 2 * dy / size[0]
    theta = torch.stack(
        [
            torch.stack([cos * fx, sin * fy, -(cos * fx * tx + sin * fy * ty)], 1),
            torch.stack([-sin * fx, cos * fy, -(-sin * fx * tx + cos * fy * ty)], 1),
        ],
        1,
    )
    grid = affine_grid(theta, [n, c, *size], align_corners=False)
    return grid_sample(images, grid, align_corners=False)


def overlap(
    images: Tensor, labels: Tensor, size: tuple[int, int], rng: Generator, *, diverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pairs of digits of two classes on one canvas.

    Args:
        images: single digits ``[N, C, H, W]``.
        labels: their classes ``[N]``, on the CPU.
        size: rows and columns of the canvas.
        diverse: DiverseMultiMNIST (rotated, scaled, wider shifts) instead of MultiMNIST.

    Returns:
        The canvases ``[N, C, *size]`` (the brighter ink wins), the classes of both digits ``[N, 2]``, and
        each digit alone on its canvas ``[N, 2, C, *size]``.

    Source: Sabour et al. 2017, section 6.1 (36x36, shifts of up to 4 pixels); Tsai et al. 2020, section 5.3.
    The ranges of rotation (30 degrees) and scale (0.8 to 1.2) are ours: the paper does not state them.
    """
    n = len(images)
    partner = torch.randperm(n, generator=rng)
    for _ in range(20):
        same = labels[partner] == labels
        if not bool(same.any()):
            break
        partner[same] = torch.randint(0, n, (int(same.sum()),), generator=rng)
    keep = labels[partner] != labels
    first, second = images[keep], images[partner[keep]]

    def paste(x: Tensor) -> Tensor:
        if diverse:
            return affine(x, size, rng, shift_limit=6, degrees=30, scales=(0.8, 1.2))
        top, left = (size[0] - x.shape[2]) // 2, (size[1] - x.shape[3]) // 2
        canvas = pad(x, (left, size[1] - x.shape[3] - left, top, size[0] - x.shape[2] - top))
        return shift(canvas, 4, rng)

    each = torch.stack([paste(first), paste(second)], 1)
    both = torch.stack([labels[keep], labels[partner[keep]]], 1)
    return each.amax(1), both, each
