"""The routing operators in plain PyTorch, from docs/reference/operators.md, in place of ``capsedge.ops``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import capsedge.models.ops
from capsedge.models import CapsuleModel


def squash(x: Tensor, dim: int = -1, epsilon: float = 1e-8) -> Tensor:
    square = (x * x).sum(dim, keepdim=True)
    return x * square / (1 + square) / torch.sqrt(square + epsilon)


def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    log_prior: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    vote_bias: Tensor | None = None,
    iterations: int = 3,
    leaky: bool = False,
    softmax: str = "parents",
    elementwise: bool = False,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    votes = torch.einsum("ijpq,niq->nijp", weight, u)
    votes = votes if vote_bias is None else votes + vote_bias
    start = torch.zeros(weight.shape[:2]) if log_prior is None else log_prior
    b = start.expand(votes.shape[:3])
    for t in range(iterations):
        logits = torch.cat([torch.zeros_like(b[..., :1]), b], -1) if leaky else b
        c = F.softmax(logits, 1 if softmax == "children" else 2)[..., int(leaky) :]
        s = (c[..., None] * votes).sum(1)
        s = s if bias is None else s + bias
        v = (
            squash(s[..., None], epsilon=epsilon)[..., 0]
            if elementwise
            else squash(s, epsilon=epsilon)
        )
        if t + 1 < iterations:
            b = b + (votes * v[:, None]).sum(-1)
    return v, c


def patches(x: Tensor, kernel: Sequence[int], strides: Sequence[int]) -> Tensor:
    """``[N, H, W, C, F]`` to ``[N, H', W', Kh·Kw·C, F]``."""
    rows = (x.shape[1] - kernel[0]) // strides[0] + 1
    columns = (x.shape[2] - kernel[1]) // strides[1] + 1
    cells = [
        x[
            :,
            r : r + (rows - 1) * strides[0] + 1 : strides[0],
            c : c + (columns - 1) * strides[1] + 1 : strides[1],
        ]
        for r in range(kernel[0])
        for c in range(kernel[1])
    ]
    stacked = torch.stack(cells, 3)
    return stacked.reshape(-1, rows, columns, kernel[0] * kernel[1] * x.shape[3], x.shape[4])


def votes_of(pose: Tensor, weight: Tensor, strides: Sequence[int], matrix: bool = True) -> Tensor:
    """``[N, H', W', I, M, P]``."""
    x = patches(pose, weight.shape[:2], strides)
    w = weight.reshape(-1, *weight.shape[3:])  # [I, M, K, L]
    if not matrix:
        return torch.einsum("nhwiq,imqp->nhwimp", x, w)
    side = w.shape[-1]
    x = x.reshape(*x.shape[:4], 1, side, side)
    return torch.matmul(x, w).flatten(5)


def em_routing(
    pose: Tensor,
    a: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    inverse_temperatures: Sequence[float],
    strides: Sequence[int] = (1, 1),
    coordinate_addition: bool = False,
    coordinates: Tensor | None = None,
    shared: bool = False,
    normalize_activations: bool = False,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    _, height, width, _, size = map(int, pose.shape)
    a = a / (a + epsilon) if normalize_activations else a
    votes = votes_of(pose, weight, (1, 1) if shared else strides)
    if coordinate_addition:
        side = round(size**0.5)
        added = torch.zeros(height, width, 1, 1, size)
        added[..., side - 1] += ((torch.arange(height) + 0.5) / height)[:, None, None, None]
        added[..., 2 * side - 1] += ((torch.arange(width) + 0.5) / width)[None, :, None, None]
        votes = votes + added
    if coordinates is not None:
        votes = votes + coordinates[:, :, None, None]
    if shared:
        votes, acting = votes.flatten(1, 3)[:, None, None], a.flatten(1)[:, None, None]
    else:
        acting = patches(a[..., None], weight.shape[:2], strides)[..., 0]
    parents = votes.shape[-2]
    r = torch.full(votes.shape[:-1], 1 / parents)
    for t, temperature in enumerate(inverse_temperatures):
        weighed = (r * acting[..., None]).unsqueeze(-1)
        mass = weighed.sum(3)
        mean = (weighed * votes).sum(3) / (mass + epsilon)
        off = (votes - mean.unsqueeze(3)) ** 2
        variance = (weighed * off).sum(3) / (mass + epsilon) + epsilon
        cost = (size * beta_u + 0.5 * variance.log().sum(-1)) * mass[..., 0]
        logit = temperature * (beta_a - cost)
        if t + 1 < len(inverse_temperatures):
            spread = off / variance.unsqueeze(3) + variance.log().unsqueeze(3)
            r = F.softmax(F.logsigmoid(logit).unsqueeze(3) - 0.5 * spread.sum(-1), -1)
    return mean, torch.sigmoid(logit), r


def attention_routing(
    pose: Tensor,
    parent: Tensor | None,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    strides: Sequence[int] = (1, 1),
    matrix_pose: bool = True,
    agreement_scale: float | None = None,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    votes = votes_of(pose, weight, strides, matrix_pose)
    size = len(scale)
    if parent is None:
        c = torch.full(votes.shape[:-1], 1 / votes.shape[-2])
    else:
        factor = size**-0.5 if agreement_scale is None else agreement_scale
        c = F.softmax(factor * (votes * parent.unsqueeze(3)).sum(-1), -1)
    s = (c[..., None] * votes).sum(3)
    return F.layer_norm(s, (size,), scale, bias, epsilon), c


def exponential_squash(x: Tensor, axis: int = -1, epsilon: float = 1e-20) -> Tensor:
    n = torch.sqrt((x * x).sum(axis, keepdim=True))
    return (1 - torch.exp(-n)) * x / (n + epsilon)


def self_attention_routing(
    u: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float = 1e-20
) -> tuple[Tensor, Tensor]:
    votes = torch.einsum("ijpq,niq->nijp", weight, u)
    logits = (votes * votes.sum(1, keepdim=True)).sum(-1) / weight.shape[2] ** 0.5
    c = F.softmax(logits, -1) + bias
    return exponential_squash((c[..., None] * votes).sum(1), epsilon=epsilon), c


class Scores(nn.Module):
    """Scores and poses of a network."""

    def __init__(self, model: CapsuleModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        out = self.model(images)
        return out.scores, out.poses


@contextmanager
def plain_operators() -> Iterator[None]:
    """``capsedge.ops`` without operators, so that models export as plain nodes."""
    found: dict[str, Any] = {
        f.__name__: f
        for f in (
            squash,
            dynamic_routing,
            em_routing,
            attention_routing,
            exponential_squash,
            self_attention_routing,
        )
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, function in found.items():
            patch.setattr(capsedge.ops, name, function)
        yield
