"""Routing by agreement: ``capsedge::dynamic_routing`` and ``capsedge::vote_routing``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from capsedge.models.ops.operator_inputs import (
    accumulation_dtype,
    expect,
    expect_same_dtype,
    expect_shape,
)
from capsedge.models.ops.registration import register
from capsedge.models.ops.squash import EPSILON
from capsedge.models.ops.squash import _define as _squash

# --- The routing that both share ---

SoftmaxOver = Literal["parents", "children"]
Update = Literal["accumulate", "replace"]


@dataclass(frozen=True)
class AgreementRule:
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
        """The attributes in the order of the operators' arguments."""
        return (
            self.iterations, self.leaky, self.over_children, self.replace, self.normalize,
            self.elementwise, self.agreement_scale, self.epsilon,
        )  # fmt: skip


def checked_agreement_rule(
    name: str,
    iterations: int,
    leaky: bool,
    softmax: SoftmaxOver,
    update: Update,
    normalize: bool,
    elementwise: bool,
    agreement_scale: float,
    epsilon: float,
) -> AgreementRule:
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
    return AgreementRule(
        iterations, leaky, over_children, update == "replace", normalize, elementwise,
        float(agreement_scale), epsilon,
    )  # fmt: skip


def _prior_and_bias(
    name: str,
    like: Tensor,
    log_prior: Tensor | None,
    bias: Tensor | None,
    sizes: tuple[int, int, int],
) -> tuple[Tensor, Tensor]:
    """Start logits ``[I or 1, J]`` and bias ``[J, P]`` for ``sizes`` I, J, P: zeros if omitted.

    Raises:
        ShapeError: one has another shape.
    """
    i, j, p = sizes
    log_prior = like.new_zeros((i, j)) if log_prior is None else log_prior
    bias = like.new_zeros((j, p)) if bias is None else bias
    expect_shape(name, "log_prior", log_prior, [*_or_one(log_prior, (i,), 2), j])
    expect_shape(name, "bias", bias, [j, p])
    return log_prior, bias


def _or_one(x: Tensor, sizes: tuple[int, ...], rank: int) -> list[int]:
    """The sizes that a tensor of this rank must have, in which 1 means one value for all."""
    found = x.shape if x.ndim == rank else sizes
    return [1 if d == 1 else size for d, size in zip(found, sizes, strict=False)]


def _per_image(
    name: str,
    like: Tensor,
    image_prior: Tensor | None,
    mask: Tensor | None,
    sizes: tuple[int, int, int],
) -> tuple[Tensor | None, Tensor | None]:
    """The prior ``[N, I, J]`` and mask ``[N, I]`` of individual images, for ``sizes`` N, I, J.

    If only the mask is given, the prior before it is zero, because a node can only omit inputs from the end.

    Raises:
        ShapeError: one has another shape.
    """
    n, i, j = sizes
    if image_prior is not None:
        if image_prior.ndim == 2:
            image_prior = image_prior.unsqueeze(-1)
        expect_shape(name, "image_prior", image_prior, _or_one(image_prior, (n, i, j), 3))
    elif mask is not None:
        image_prior = like.new_zeros((1, 1, 1))
    if mask is not None:
        mask = mask if mask.is_floating_point() else mask.to(like.dtype)
        expect_shape(name, "mask", mask, _or_one(mask, (n, i), 2))
    return image_prior, mask


def _couplings(logits: Tensor, how: AgreementRule) -> Tensor:
    if how.over_children:
        return logits.softmax(-2)
    if not how.leaky:
        return logits.softmax(-1)
    # "None of the above": one more parent whose logit stays zero and whose votes go nowhere.
    return torch.nn.functional.pad(logits, (1, 0)).softmax(-1)[..., 1:]


def _squashed(s: Tensor, how: AgreementRule) -> Tensor:
    if how.elementwise:
        return _squash(s.unsqueeze(-1), -1, how.epsilon).squeeze(-1)
    return _squash(s, -1, how.epsilon)


def route(
    votes: Tensor,
    log_prior: Tensor,
    bias: Tensor,
    image_prior: Tensor | None,
    mask: Tensor | None,
    how: AgreementRule,
) -> tuple[Tensor, Tensor]:
    """Poses of the parents ``[N, J, P]`` and couplings ``[N, I, J]`` from votes ``[N, I, J, P]``.

    All tensors but the last two have the type of the computation.
    """
    if image_prior is not None:
        log_prior = log_prior + image_prior.to(votes.dtype)
    logits = log_prior.expand(votes.shape[:3])
    factor = None if mask is None else mask.to(votes.dtype).unsqueeze(-1)
    if factor is not None and not how.over_children:
        # Parents compete for one child at a time, so the values of a masked child, even NaN, have no effect.
        votes = torch.where(factor.unsqueeze(-1) == 0, 0.0, votes)
    for iteration in range(how.iterations):
        c = _couplings(logits, how)
        if factor is not None:
            c = c * factor
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


# --- Dynamic routing: Sabour et al. 2017, procedure 1, and its published variants ---


def _define(
    u: Tensor,
    weight: Tensor,
    log_prior: Tensor,
    bias: Tensor,
    vote_bias: Tensor | None,
    image_prior: Tensor | None,
    mask: Tensor | None,
    iterations: int,
    leaky: bool,
    over_children: bool,
    replace: bool,
    normalize: bool,
    elementwise: bool,
    agreement_scale: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    how = AgreementRule(
        iterations, leaky, over_children, replace, normalize, elementwise, agreement_scale, epsilon
    )
    dtype = accumulation_dtype(u)
    votes = dense_votes(u, weight, vote_bias)
    v, c = route(votes, log_prior.to(dtype), bias.to(dtype), image_prior, mask, how)
    return v.to(u.dtype), c.to(u.dtype).contiguous()


def dense_votes(u: Tensor, weight: Tensor, vote_bias: Tensor | None = None) -> Tensor:
    """Votes ``[N, I, J, Pout]`` of children ``[N, I, Pin]``, in the type of the computation."""
    dtype = accumulation_dtype(u)
    n, i, p = u.shape
    own, j, out = weight.shape[:3]
    if own == i:
        # u_hat_ij = W_ij u_i as one matrix product per child.
        predictions = torch.bmm(
            u.to(dtype).transpose(0, 1), weight.to(dtype).reshape(i, j * out, p).transpose(1, 2)
        )
        votes = predictions.reshape(i, n, j, out).transpose(0, 1)
    else:
        flat = weight.to(dtype).reshape(j * out, p).transpose(0, 1)
        votes = torch.matmul(u.to(dtype), flat).reshape(n, i, j, out)
    if vote_bias is not None:
        votes = votes + vote_bias.to(dtype)
    return votes


def dense_outputs(u: Tensor, weight: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Poses and couplings of a dense layer without values, for PyTorch's tracing."""
    n, i = u.shape[:2]
    j, out = weight.shape[1:3]
    return u.new_empty((n, j, out)), u.new_empty((n, i, j))


_op = register("dynamic_routing", _define, dense_outputs, 7)


def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    log_prior: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    vote_bias: Tensor | None = None,
    image_prior: Tensor | None = None,
    mask: Tensor | None = None,
    iterations: int = 3,
    leaky: bool = False,
    softmax: SoftmaxOver = "parents",
    update: Update = "accumulate",
    normalize: bool = False,
    elementwise: bool = False,
    agreement_scale: float = 1.0,
    epsilon: float = EPSILON,
) -> tuple[Tensor, Tensor]:
    """Route children to parents by iterated agreement.

    ``T`` iterations make ``T`` weighted sums and ``T - 1`` agreements. The defaults give the paper's
    procedure; the other settings are found in published networks.

    Args:
        u: poses of the children ``[N, I, Pin]``.
        weight: ``[I, J, Pout, Pin]``, or ``[1, J, Pout, Pin]`` for one weight shared by all children; the
            vote of child i for parent j is ``W_ij u_i``.
        log_prior: start logits ``[I, J]`` (equation 3), or ``[1, J]``; zeros if omitted.
        bias: added to each parent's sum before the squash ``[J, Pout]``; zeros if omitted.
        vote_bias: constant added to the votes, ``W_ij u_i + c_ij``: ``[I, J, Pout]``, or ``[1, J, Pout]`` for
            all children alike; no constant if omitted.
        image_prior: added to the start logits of each image ``[N, I, J]``, or ``[N, I]`` for the same value
            for all parents. If the softmax runs over the children, excluded children of a history have -2³²
            here.
        mask: factor of the couplings of each child of an image ``[N, I]``, of any numeric type. It applies
            after the softmax, so the remaining children's couplings do not grow. If the softmax runs over the
            parents, the values of a child with mask 0, even NaN, have no effect.
        iterations: ``T >= 1``.
        leaky: adds a "none of the above" parent with logit zero, whose share is dropped; not available with a
            softmax over the children.
        softmax: whether the couplings of a child sum to one over the ``parents`` (the paper), or those
            of a parent over the ``children``.
        update: whether agreements ``accumulate`` in the logits (the paper), or ``replace`` them.
        normalize: computes agreements with the sum divided by its norm instead of the squashed pose; together
            with ``update="replace"``, this is k-means routing.
        elementwise: squashes each element of a pose separately, ``x·|x|/(1 + x²)``.
        agreement_scale: factor of the agreements.
        epsilon: constant of the squash and of the norm.

    Returns:
        Poses of the parents ``[N, J, Pout]`` and the coupling coefficients of the last weighted sum
        ``[N, I, J]``, both of the type of ``u``. Half types are computed in FP32.

    Raises:
        ShapeError: a shape, type or attribute is wrong; the message names it.

    Source: Sabour, Frosst, Hinton 2017, procedure 1 and equations 2 to 4; leaky routing from the
    authors' released code.
    """
    name = "DynamicRouting"
    expect_shape(name, "u", u, ["N", "I", "Pin"])
    children = u.shape[1]
    shared = weight.ndim == 4 and weight.shape[0] == 1
    expect_shape(name, "weight", weight, [1 if shared else children, "J", "Pout", u.shape[2]])
    j, out = weight.shape[1:3]
    log_prior, bias = _prior_and_bias(name, weight, log_prior, bias, (children, j, out))
    how = checked_agreement_rule(
        name, iterations, leaky, softmax, update, normalize, elementwise, agreement_scale, epsilon
    )
    tensors = {"u": u, "weight": weight, "log_prior": log_prior, "bias": bias}
    if vote_bias is not None:
        one = vote_bias.ndim == 3 and vote_bias.shape[0] == 1
        expect_shape(name, "vote_bias", vote_bias, [1 if one else children, j, out])
    image_prior, mask = _per_image(name, u, image_prior, mask, (u.shape[0], children, j))
    if image_prior is not None and vote_bias is None:
        vote_bias = u.new_zeros((1, j, out))  # a node can only omit inputs from the end
    optional = {"vote_bias": vote_bias, "image_prior": image_prior, "mask": mask}
    tensors |= {key: value for key, value in optional.items() if value is not None}
    expect_same_dtype(name, **tensors)
    result: tuple[Tensor, Tensor] = _op(
        u, weight, log_prior, bias, vote_bias, image_prior, mask, *how.arguments()
    )
    return result


# --- Routing over given votes ---


def _define_votes(
    votes: Tensor,
    log_prior: Tensor,
    bias: Tensor,
    image_prior: Tensor | None,
    mask: Tensor | None,
    iterations: int,
    leaky: bool,
    over_children: bool,
    replace: bool,
    normalize: bool,
    elementwise: bool,
    agreement_scale: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(votes)
    how = AgreementRule(
        iterations, leaky, over_children, replace, normalize, elementwise, agreement_scale, epsilon
    )
    votes = votes.expand(-1, -1, log_prior.shape[-1], -1)
    v, c = route(votes.to(dtype), log_prior.to(dtype), bias.to(dtype), image_prior, mask, how)
    return v.to(votes.dtype), c.to(votes.dtype).contiguous()


def _fake_votes(votes: Tensor, log_prior: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    n, i, _one, p = votes.shape
    j = log_prior.shape[1]
    return votes.new_empty((n, j, p)), votes.new_empty((n, i, j))


_op_votes = register("vote_routing", _define_votes, _fake_votes, 5)


def vote_routing(
    votes: Tensor,
    log_prior: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    image_prior: Tensor | None = None,
    mask: Tensor | None = None,
    iterations: int = 3,
    leaky: bool = False,
    softmax: SoftmaxOver = "parents",
    update: Update = "accumulate",
    normalize: bool = False,
    elementwise: bool = False,
    agreement_scale: float = 1.0,
    epsilon: float = EPSILON,
) -> tuple[Tensor, Tensor]:
    """Route votes to parents by iterated agreement, however the votes were computed.

    For votes that are a linear map of capsules, ``dynamic_routing`` is faster: it never writes them to
    memory. Use this function for votes from a convolution or a nonlinear layer. Positions that route
    independently go into the batch.

    Args:
        votes: ``[N, I, J, P]``: one for each child and parent; or ``[N, I, 1, P]``: the same for all parents,
            whose number then follows from ``bias`` or ``log_prior``.
        log_prior: start logits ``[I, J]``, or ``[1, J]``; zeros if omitted.
        bias: added to each parent's sum before the squash ``[J, P]``; zeros if omitted.
        image_prior, mask: as in ``dynamic_routing``.
        iterations, leaky, softmax, update: as in ``dynamic_routing``.
        normalize, elementwise, agreement_scale, epsilon: as in ``dynamic_routing``.

    Returns:
        Poses of the parents ``[N, J, P]`` and the coupling coefficients of the last weighted sum
        ``[N, I, J]``, both of the type of ``votes``. Half types are computed in FP32.

    Raises:
        ShapeError: a shape, type or attribute is wrong; the message names it.

    Source: Sabour, Frosst, Hinton 2017, procedure 1, from equation 2 on.
    """
    name = "VoteRouting"
    expect_shape(name, "votes", votes, ["N", "I", "J", "P"])
    i, j, p = votes.shape[1:]
    if j == 1 and bias is not None and bias.ndim == 2:
        j = bias.shape[0]
    elif j == 1 and log_prior is not None and log_prior.ndim == 2:
        j = log_prior.shape[1]
    log_prior, bias = _prior_and_bias(name, votes, log_prior, bias, (i, j, p))
    image_prior, mask = _per_image(name, votes, image_prior, mask, (votes.shape[0], i, j))
    tensors = {"votes": votes, "log_prior": log_prior, "bias": bias}
    optional = {"image_prior": image_prior, "mask": mask}
    tensors |= {key: value for key, value in optional.items() if value is not None}
    expect_same_dtype(name, **tensors)
    how = checked_agreement_rule(
        name, iterations, leaky, softmax, update, normalize, elementwise, agreement_scale, epsilon
    )
    result: tuple[Tensor, Tensor] = _op_votes(
        votes, log_prior, bias, image_prior, mask, *how.arguments()
    )
    return result
