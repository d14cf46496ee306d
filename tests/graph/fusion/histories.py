"""Networks over histories, as recommenders are written: the interests of a user by routing.

Small, and in other words than those of torch-rechub (ComiRec-DR and MIND), deepmatch and funrec. They apply
masks as these do, and as transformers do.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Mask = Literal[
    "after", "before", "both", "added", "subtracted", "product", "infinite", "divided", "divided safely",
    "parents", "before parents", "divided parents", "mean over items", "none",
]  # fmt: skip
OUT = float(-(2**31))


class Interests(nn.Module):
    """Interests ``[N, J, D]`` of items ``[N, I, D]`` and a mask ``[N, I]`` of those that count.

    Args:
        mask: ``after`` the softmax over the children (torch-rechub), ``before`` it (deepmatch), ``added`` to
            the logits or ``subtracted`` from them (as in transformers), a factor of them besides
            (``product``), ``infinite`` with zeros for what is not a number, ``both`` before and after the
            softmax, after it and ``divided`` by the sum, ``safely`` with an epsilon; after a softmax over the
            ``parents``, before that one (what is out has equal couplings), or after it and divided by the sum
            over them or over the items; or not at all.
        weights: one matrix for ``each`` item and interest, for ``each interest``, or ``one``.
        given: start logits ``[N, J, I]`` are a further input, in the place of random ones.
        summed: votes are weighted by a product of their elements and a sum, not by a matrix product.
    """

    def __init__(
        self,
        items: int = 7,
        size: int = 6,
        interests: int = 4,
        mask: Mask = "after",
        weights: Literal["each", "each interest", "one"] = "each",
        given: bool = False,
        summed: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.summed = summed
        self.items, self.size, self.interests = items, size, interests
        self.mask, self.weights, self.given = mask, weights, given
        rows = size if weights == "one" else interests * size
        shape = (1, items, rows, size) if weights == "each" else (rows, size)
        self.weight = nn.Parameter(torch.randn(shape) * size**-0.5)

    def votes(self, items: Tensor) -> Tensor:
        if self.weights == "each":  # as the authors write it: a product by broadcasting, and a sum
            votes = torch.sum(self.weight * items.unsqueeze(2), dim=3)
        else:
            votes = functional.linear(items, self.weight)
        if self.weights == "one":
            votes = votes.repeat(1, 1, self.interests)
        votes = votes.reshape(-1, self.items, self.interests, self.size)
        return votes.transpose(1, 2).contiguous()

    def forward(self, items: Tensor, mask: Tensor, logits: Tensor | None = None) -> Tensor:
        votes = self.votes(items)
        if logits is None:
            logits = torch.zeros(len(items), self.interests, self.items)
        for t in range(3):
            seen = mask.unsqueeze(1).repeat(1, self.interests, 1)
            if self.mask in ("before", "both"):
                shares = torch.where(seen == 0, torch.full_like(logits, OUT), logits).softmax(-1)
            elif self.mask == "added":
                shares = (logits + torch.where(seen == 0, -1e9, 0.0)).softmax(-1)
            elif self.mask == "before parents":
                shares = torch.where(seen == 0, OUT, logits).softmax(1)
            elif self.mask in ("parents", "divided parents", "mean over items"):
                shares = logits.softmax(1) * seen.float()
            elif self.mask == "subtracted":
                shares = (logits - 1e9 * (1 - seen.float())).softmax(-1)
            elif self.mask == "product":
                here = (seen > 0).float()
                shares = (logits * here - 1e9 * (1 - here)).softmax(-1)
            elif self.mask == "infinite":
                shares = logits.masked_fill(seen == 0, -torch.inf).softmax(-1).nan_to_num(0)
            else:
                shares = logits.softmax(-1)
            if self.mask in ("after", "both", "divided", "divided safely"):
                shares = torch.where(torch.eq(seen, 0), torch.zeros_like(shares), shares)
            if self.mask == "divided":
                shares = shares / shares.sum(-1, keepdim=True)
            elif self.mask in ("divided safely", "mean over items"):
                shares = shares / (shares.sum(-1, keepdim=True) + 1e-9)
            elif self.mask == "divided parents":
                shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-9)
            if self.summed:
                interests = (shares.unsqueeze(3) * votes).sum(2, keepdim=True)
            else:
                interests = torch.matmul(shares.unsqueeze(2), votes)
            norm = interests.square().sum(-1, keepdim=True)
            interests = norm / (1 + norm) / torch.sqrt(norm + 1e-9) * interests
            if t < 2:
                change = torch.matmul(votes, interests.transpose(2, 3))
                logits = logits + change.reshape(-1, self.interests, self.items)
        return interests.reshape(-1, self.interests, self.size)

    def example(self, batch: int = 3) -> tuple[Tensor, ...]:
        """Items, a mask of ragged lengths of which the first is none, and logits."""
        torch.manual_seed(batch)
        here = torch.arange(self.items) < (torch.arange(batch) * 3 % (self.items + 1))[:, None]
        given = (torch.randn(batch, self.interests, self.items),) if self.given else ()
        return (torch.randn(batch, self.items, self.size), here.long(), *given)


class Mind(nn.Module):
    """Interests ``[N, J, D]`` of items ``[N, I, D]`` as MIND and deepmatch compute them.

    Votes have no axis for the interests, since one matrix is for all; they differ by the start logits, which
    are not trained. What the mask leaves out gets a low logit before the softmax.
    """

    start: Tensor

    def __init__(self, items: int = 7, size: int = 6, interests: int = 4, over: int = 2) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.items, self.size, self.over = items, size, over
        self.matrix = nn.Parameter(torch.randn(size, size) * size**-0.5)
        self.register_buffer("start", torch.randn(1, interests, items))

    def forward(self, items: Tensor, mask: Tensor) -> Tensor:
        votes = items @ self.matrix
        logits = self.start.repeat(len(items), 1, 1)
        for t in range(3):
            shares = torch.where(mask.unsqueeze(1) > 0, logits, OUT).softmax(self.over)
            interests = shares @ votes
            norm = interests.square().sum(-1, keepdim=True)
            interests = norm / (1 + norm) / torch.sqrt(norm + 1e-9) * interests
            if t < 2:
                logits = logits + interests @ votes.transpose(1, 2)
        return interests

    def example(self, batch: int = 3) -> tuple[Tensor, ...]:
        """Items, and a mask of ragged lengths of which the first is none."""
        torch.manual_seed(batch)
        here = torch.arange(self.items) < (torch.arange(batch) * 3 % (self.items + 1))[:, None]
        return torch.randn(batch, self.items, self.size), here.long()


class Words(Interests):
    """Two items for each word, and a mask of the words."""

    def forward(self, items: Tensor, mask: Tensor, logits: Tensor | None = None) -> Tensor:
        return super().forward(items, mask.repeat_interleave(2, 1), logits)

    def example(self, batch: int = 3) -> tuple[Tensor, ...]:
        items, mask, *given = super().example(batch)
        return (items, mask[:, ::2], *given)


class Floats(Interests):
    """The mask is an input of floats, which may have any value."""

    def example(self, batch: int = 3) -> tuple[Tensor, ...]:
        items, mask, *given = super().example(batch)
        return (items, mask.float(), *given)


class Compared(Floats):
    """What counts is above a half."""

    def forward(self, items: Tensor, mask: Tensor, logits: Tensor | None = None) -> Tensor:
        return super().forward(items, (mask > 0.5).float(), logits)


class Fading(Floats):
    """The longer ago, the less an item counts."""

    def forward(self, items: Tensor, mask: Tensor, logits: Tensor | None = None) -> Tensor:
        return super().forward(items, mask * 0.9 ** torch.arange(self.items), logits)


class Attended(Interests):
    """Interests weighted by their products with a wish, which is not part of the routing."""

    def forward(self, items: Tensor, mask: Tensor, logits: Tensor | None = None) -> Tensor:
        interests = super().forward(items, mask, logits)
        wish = items.mean(1, keepdim=True)
        shares = ((interests + 1) * wish).sum(-1).softmax(1)
        return (shares[..., None] * (interests + 1)).sum(1)


class AnyLength(nn.Module):
    """Interests of ids ``[N, L]`` of any length; id 0 is none. One matrix for each interest, or for all.

    If ``placed``, a vector for each of up to 120 positions is added.
    """

    def __init__(
        self, *, each: bool, size: int = 6, interests: int = 4, placed: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.each, self.size, self.interests = each, size, interests
        self.items = nn.Embedding(40, size)
        self.places = nn.Embedding(120, size) if placed else None
        self.linear = nn.Linear(size, size * interests if each else size, bias=False)

    def forward(self, history: Tensor) -> Tensor:
        length, mask = history.shape[1], (history > 0).long()
        items = self.items(history)
        if self.places is not None:
            items = items + self.places(torch.arange(length))
        votes = self.linear(items)
        votes = votes if self.each else votes.repeat(1, 1, self.interests)
        votes = votes.reshape(-1, length, self.interests, self.size).transpose(1, 2)
        logits = torch.zeros(history.shape[0], self.interests, length)
        for t in range(3):
            shares = logits.softmax(-1)
            seen = mask.unsqueeze(1).repeat(1, self.interests, 1)
            shares = torch.where(seen == 0, torch.zeros_like(shares), shares)
            interests = torch.matmul(shares.unsqueeze(2), votes)
            norm = interests.square().sum(-1, keepdim=True)
            interests = norm / (1 + norm) / torch.sqrt(norm + 1e-9) * interests
            if t < 2:
                change = torch.matmul(votes, interests.transpose(2, 3))
                logits = logits + change.reshape(-1, self.interests, length)
        return interests.reshape(-1, self.interests, self.size)


class TwoHistories(nn.Module):
    """Interests of clicks and of purchases, whose lengths differ.

    Routed ``apart``, ``joined`` as one history, or one child for each of their ``pairs``.
    """

    def __init__(self, how: Literal["apart", "joined", "pairs"] = "apart") -> None:
        super().__init__()
        self.how = how
        self.clicks, self.bought = AnyLength(each=True), AnyLength(each=True)

    def forward(self, clicks: Tensor, bought: Tensor) -> Tensor:
        if self.how == "apart":
            return torch.cat([self.clicks(clicks), self.bought(bought)], 1)
        if self.how == "joined":
            return self.clicks(torch.cat([clicks, bought], 1))
        pairs = clicks[:, :, None] * bought[:, None] % 40
        return self.clicks(pairs.reshape(len(pairs), -1))


def histories(batch: int, length: int) -> Tensor:
    """Ragged ones, of which the first is empty."""
    torch.manual_seed(length)
    here = torch.arange(length) < torch.linspace(0, length, batch).long()[:, None]
    return torch.randint(1, 40, (batch, length)) * here
