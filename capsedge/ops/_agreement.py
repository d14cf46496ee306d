"""Routing by agreement over votes: what dynamic routing and routing over given votes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from capsedge.ops._common import expect
from capsedge.ops.squash import _define as _squash

SoftmaxOver = Literal["parents", "children"]
Update = Literal["accumulate", "replace"]


@dataclass(frozen=True)
class Agreement:
    """How votes are routed; the attributes of ``DynamicRouting`` and ``VoteRouting``."""

    iterations: int
    leaky: bool = False
    over_children: bool = False
    replace: bool = False
    normalize: bool = False
    elementwise: bool = False
    agreement_scale: float = 1.0
    epsilon: float = 1e-8

    def arguments(self) -> tuple[int, bool, bool, bool, bool, bool, float, float]:
        """In the order of the operators' arguments."""
        return (
            self.iterations, self.leaky, self.over_children, self.replace, self.normalize,
            self.elementwise, self.agreement_scale, self.epsilon,
        )  # fmt: skip


def checked(
    name: str,
    iterations: int,
    leaky: bool,
    softmax: SoftmaxOver,
    update: Update,
    normalize: bool,
    elementwise: bool,
    agreement_scale: float,
    epsilon: float,
) -> Agreement:
    """The arguments of the public functions as attributes.

    Raises:
        ShapeError: one is wrong; the message names it.
    """
    expect(name, iterations >= 1, "iterations {}, wanted >= 1", iterations)
    expect(name, epsilon > 0, "epsilon {}, wanted > 0", epsilon)
    expect(
        name,
        softmax in ("parents", "children"),
        "softmax {!r}, wanted 'parents' or 'children'",
        softmax,
    )
    expect(
        name,
        update in ("accumulate", "replace"),
        "update {!r}, wanted 'accumulate' or 'replace'",
        update,
    )
    over_children = softmax == "children"
    expect(
        name,
        not (leaky and over_children),
        "leaky=True adds a parent to the softmax, which runs over the children here",
    )
    return Agreement(
        iterations, leaky, over_children, update == "replace", normalize, elementwise,
        float(agreement_scale), epsilon,
    )  # fmt: skip


def _couplings(logits: Tensor, how: Agreement) -> Tensor:
    if how.over_children:
        return logits.softmax(-2)
    if not how.leaky:
        return logits.softmax(-1)
    # "None of the above": one more parent whose logit stays zero and whose votes go nowhere.
    return torch.nn.functional.pad(logits, (1, 0)).softmax(-1)[..., 1:]


def _squashed(s: Tensor, how: Agreement) -> Tensor:
    if how.elementwise:
        return _squash(s.unsqueeze(-1), -1, how.epsilon).squeeze(-1)
    return _squash(s, -1, how.epsilon)


def route(votes: Tensor, log_prior: Tensor, bias: Tensor, how: Agreement) -> tuple[Tensor, Tensor]:
    """Poses of the parents ``[N, J, P]`` and couplings ``[N, I, J]`` from votes ``[N, I, J, P]``.

    All tensors have the type in which is computed.
    """
    logits = log_prior.expand(votes.shape[:3])
    for iteration in range(how.iterations):
        c = _couplings(logits, how)
        s = (c.unsqueeze(-1) * votes).sum(1) + bias
        v = _squashed(s, how)
        if iteration + 1 == how.iterations:
            break
        parent = v
        if how.normalize:
            parent = s / (s.square().sum(-1, keepdim=True) + how.epsilon).sqrt()
        if how.agreement_scale != 1.0:
            parent = how.agreement_scale * parent
        agreement = (votes * parent.unsqueeze(1)).sum(-1)
        logits = agreement if how.replace else logits + agreement
    return v, c
