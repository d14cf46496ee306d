"""Typical writings of EM routing in plain PyTorch, after the rows of the table in docs/how-to/optimize.md.

Every module takes features ``[B, 5, 5, F]``, makes matrix capsules of them and routes twice: over windows,
then to class capsules.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

SIDE, TYPES, MIDDLE, CLASSES, GRID, KERNEL = 2, 3, 4, 6, 5, 3
POSE = SIDE * SIDE


class Writing(nn.Module, ABC):
    """A layer that makes capsules, and routing."""

    epsilon = 1e-6

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(len(type(self).__name__))
        self.pose = nn.Linear(5, TYPES * POSE)
        self.act = nn.Linear(5, TYPES)
        self.w1 = nn.Parameter(torch.randn(KERNEL * KERNEL * TYPES, MIDDLE, SIDE, SIDE))
        self.w2 = nn.Parameter(torch.randn(MIDDLE, CLASSES, SIDE, SIDE))
        self.betas = nn.ParameterList(
            nn.Parameter(torch.randn(k)) for k in (MIDDLE, MIDDLE, CLASSES, CLASSES)
        )

    @staticmethod
    def example(batch: int) -> Tensor:
        return torch.randn(batch, GRID, GRID, 5, generator=torch.Generator().manual_seed(batch))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch = x.shape[0]
        pose = torch.tanh(self.pose(x)).reshape(batch, GRID, GRID, TYPES, POSE)
        a = torch.sigmoid(self.act(x)).reshape(batch, GRID, GRID, TYPES)
        places = (GRID - KERNEL) // 2 + 1
        pose = self.patches(pose.reshape(batch, GRID, GRID, -1)).reshape(
            -1, KERNEL * KERNEL * TYPES, POSE
        )
        a = self.patches(a).reshape(-1, KERNEL * KERNEL * TYPES)
        mean, a = self.route(self.votes(pose, self.w1), a, self.betas[0], self.betas[1])
        count = places * places * MIDDLE
        weight = self.w2.repeat(places * places, 1, 1, 1)
        votes = self.votes(mean.reshape(batch, count, POSE), weight)
        votes = self.located(votes, places)
        return self.route(votes, a.reshape(batch, count), self.betas[2], self.betas[3])

    def patches(self, x: Tensor) -> Tensor:
        """``[B, H, W, F]`` to ``[B, places, kernel·kernel, F]``, by slices."""
        places = (GRID - KERNEL) // 2 + 1
        found = [
            x[:, 2 * r : 2 * r + KERNEL, 2 * c : 2 * c + KERNEL].reshape(
                x.shape[0], 1, KERNEL * KERNEL, -1
            )
            for r in range(places)
            for c in range(places)
        ]
        return torch.cat(found, 1)

    def votes(self, pose: Tensor, weight: Tensor) -> Tensor:
        """``[n, i, P]`` to ``[n, i, j, P]``: pose times weight."""
        m = pose.reshape(-1, pose.shape[1], 1, SIDE, SIDE) @ weight
        return m.reshape(-1, pose.shape[1], weight.shape[1], POSE)

    def located(self, votes: Tensor, places: int) -> Tensor:
        return votes

    @abstractmethod
    def route(
        self, votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of each writing its own."""


class Paper(Writing):
    """The procedure of the paper in logarithms, growing temperatures."""

    temperatures: tuple[float, ...] = (
        0.01 * (1 - 0.95),
        0.01 * (1 - 0.95**2),
        0.01 * (1 - 0.95**3),
    )

    def route(
        self, votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        parents = votes.shape[2]
        r = torch.full(votes.shape[:3], 1.0 / parents)
        for t, temperature in enumerate(self.temperatures):
            ra = r * a[:, :, None]
            mass = ra.sum(1)
            mean = (ra[..., None] * votes).sum(1) / (mass[..., None] + self.epsilon)
            off = (votes - mean[:, None]) ** 2
            var = (ra[..., None] * off).sum(1) / (mass[..., None] + self.epsilon) + self.epsilon
            logit = temperature * (beta_a - self.cost(beta_u, var) * mass)
            act = torch.sigmoid(logit)
            if t + 1 < len(self.temperatures):
                r = self.couplings(off, var[:, None], logit[:, None])
        return mean, act

    def cost(self, beta_u: Tensor, var: Tensor) -> Tensor:
        return (beta_u[:, None] + 0.5 * torch.log(var)).sum(-1)

    def couplings(self, off: Tensor, var: Tensor, logit: Tensor) -> Tensor:
        density = -0.5 * (off / var + torch.log(var)).sum(-1)
        return torch.softmax(density + nn.functional.logsigmoid(logit), dim=2)


class Densities(Paper):
    """Densities as quotients; their products with the activations are divided by the sum over the parents."""

    def couplings(self, off: Tensor, var: Tensor, logit: Tensor) -> Tensor:
        density = torch.exp(-0.5 * (off / var).sum(-1)) / (2 * math.pi * var).prod(-1).sqrt()
        weighed = torch.sigmoid(logit) * density
        return weighed / weighed.sum(2, keepdim=True)


class ElementBetas(Paper):
    """One beta_u for each element of a pose, whole logarithms of variances, halved temperatures."""

    temperatures = tuple(t / 2 for t in Paper.temperatures)

    def __init__(self) -> None:
        super().__init__()
        self.betas[0] = nn.Parameter(torch.randn(MIDDLE, POSE))
        self.betas[2] = nn.Parameter(torch.randn(CLASSES, POSE))

    def cost(self, beta_u: Tensor, var: Tensor) -> Tensor:
        return (beta_u + torch.log(var)).sum(-1)


class Renormalized(Paper):
    """Couplings times activations, divided by their sum over the parents; one temperature."""

    epsilon = 1e-8

    def route(
        self, votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        n, i, j, _ = votes.shape
        r = torch.full((n, i, j), 1.0 / j)
        for t in range(3):
            r = r * a[:, :, None]
            r = r / (r.sum(dim=2, keepdim=True) + self.epsilon)
            mass = r.sum(dim=1, keepdim=True)
            share = (r / (mass + self.epsilon)).unsqueeze(-1)
            mean = torch.sum(share * votes, dim=1, keepdim=True)
            var = torch.sum(share * (votes - mean) ** 2, dim=1, keepdim=True) + self.epsilon
            cost = (beta_u.view(j, 1) + torch.log(var.sqrt())) * mass.view(n, 1, j, 1)
            act = torch.sigmoid(0.001 * (beta_a - cost.sum(dim=3).reshape(n, j)))
            if t < 2:
                log_p = (
                    -((votes - mean) ** 2) / (2 * var)
                    - torch.log(var.sqrt())
                    - 0.5 * math.log(2 * math.pi)
                )
                r = torch.softmax(log_p.sum(3) + torch.log(act.view(n, 1, j)), dim=2)
        return mean.squeeze(1), act

    def located(self, votes: Tensor, places: int) -> Tensor:
        """Row and column, i/h, added to the first two elements."""
        x = votes.reshape(-1, places, places, MIDDLE, CLASSES, POSE)
        steps = torch.arange(places, dtype=torch.float32) / places
        rows = torch.zeros(1, places, 1, 1, 1, POSE)
        columns = torch.zeros(1, 1, places, 1, 1, POSE)
        rows[0, :, 0, 0, 0, 0], columns[0, 0, :, 0, 0, 1] = steps, steps
        return (x + rows + columns).reshape(votes.shape)


class WeightFirst(Paper):
    """Votes W·pose instead of pose·W."""

    def votes(self, pose: Tensor, weight: Tensor) -> Tensor:
        m = weight @ pose.reshape(-1, pose.shape[1], 1, SIDE, SIDE)
        return m.reshape(-1, pose.shape[1], weight.shape[1], POSE)


class PaperCoordinates(Paper):
    """Row and column, (i + 1/2)/h, added to the last elements of the first two rows."""

    elements = (SIDE - 1, 2 * SIDE - 1)

    def located(self, votes: Tensor, places: int) -> Tensor:
        x = votes.reshape(-1, places, places, MIDDLE, CLASSES, POSE)
        steps = (torch.arange(places, dtype=torch.float32) + 0.5) / places
        add = torch.zeros(places, places, POSE)
        add[:, :, self.elements[0]] = steps[:, None]
        add[:, :, self.elements[1]] = steps
        return (x + add[None, :, :, None, None]).reshape(votes.shape)


class WeightFirstCoordinates(PaperCoordinates, WeightFirst):
    """In the file's poses, which are the transposes of the operator's: another place there."""


class VoteBias(Paper):
    """A bias of each parent's votes."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(CLASSES, POSE))

    def located(self, votes: Tensor, places: int) -> Tensor:
        return votes + self.bias


class OnesFirst(Paper):
    """Couplings begin at one instead of one divided by the number of parents."""

    def route(
        self, votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        r = torch.ones(votes.shape[:3])
        for t, temperature in enumerate(self.temperatures):
            ra = r * a[:, :, None]
            mass = ra.sum(1)
            mean = torch.einsum("nij,nijp->njp", ra, votes) / (mass[..., None] + self.epsilon)
            off = (votes - mean[:, None]) ** 2
            var = (
                torch.einsum("nij,nijp->njp", ra, off) / (mass[..., None] + self.epsilon)
                + self.epsilon
            )
            cost = (beta_u[None, :, None] + 0.5 * torch.log(var)) * mass[..., None]
            logit = 100 * temperature * (beta_a - cost.sum(-1))
            if t + 1 < len(self.temperatures):
                density = -0.5 * (off / var[:, None] + torch.log(var)[:, None]).sum(-1)
                r = torch.softmax(density + nn.functional.logsigmoid(logit)[:, None], dim=2)
        return mean, torch.sigmoid(logit)


class SpreadFloor(Paper):
    """A floor of its own for the variances, another in the denominators."""

    epsilon = 1e-9
    floor = 1e-5

    def floored(self, spread: Tensor) -> Tensor:
        return spread + self.floor

    def route(
        self, votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        shares = a.unsqueeze(2).expand(votes.shape[:3]) / votes.shape[2]
        last = len(self.temperatures) - 1
        for t, temperature in enumerate(self.temperatures):
            mass = shares.sum(dim=1, keepdim=True).unsqueeze(3)
            weights = shares.unsqueeze(3) / (mass + self.epsilon)
            centre = (weights * votes).sum(dim=1, keepdim=True)
            spread = self.floored((weights * (votes - centre).pow(2)).sum(dim=1, keepdim=True))
            cost = (beta_u[:, None] + spread.sqrt().log()) * mass
            found = torch.sigmoid(temperature * (beta_a - cost.sum(-1)))
            if t < last:
                fit = -(votes - centre).pow(2) / (2 * spread) - spread.sqrt().log()
                shares = torch.softmax(found.log() + fit.sum(-1), dim=2) * a.unsqueeze(2)
        return centre.squeeze(1), found.squeeze(1)


class ClampedSpread(SpreadFloor):
    """A lower bound of the variances, which no operator has."""

    def floored(self, spread: Tensor) -> Tensor:
        return spread.clamp(min=self.floor)


class SafeLogarithm(Writing):
    """Parents before children; an epsilon under the logarithm of the activations."""

    epsilon = 1e-8
    safe = 1e-6

    def route(
        self, votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        v = votes.transpose(1, 2)
        n, j, i, _ = v.shape
        rr = torch.ones(n, j, i) / j
        for t in range(2):
            prime = (rr * a.view(n, 1, i))[..., None]
            total = prime.sum(2, keepdim=True)
            mean = (prime * v).sum(2, keepdim=True) / (total + self.epsilon)
            square = torch.square(v - mean)
            var = (prime * square).sum(2, keepdim=True) / (total + self.epsilon) + self.epsilon
            cost = ((beta_u.view(1, j, 1, 1) + 0.5 * torch.log(var)) * total).sum(-1)
            act = torch.sigmoid(2.0 * (beta_a.view(1, j, 1) - cost))
            if t == 0:
                o_p = -(square / (2 * var)).sum(-1) - 0.5 * torch.log(2 * math.pi * var).sum(-1)
                rr = torch.softmax(torch.log(act + self.safe) + o_p, dim=1)
        return mean.squeeze(2), act.squeeze(2)


class SafeSum(Paper):
    """A sum of responsibilities that is never zero, in the denominators and in the cost."""

    epsilon = 1e-4

    def route(
        self, votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        r = votes.new_full((*votes.shape[:3], 1), 1 / votes.shape[2])
        for t, temperature in enumerate(self.temperatures):
            r = r * a[:, :, None, None]
            s = self.epsilon + torch.sum(r, 1, True)
            mu = torch.sum(r * votes, 1, True) / s
            var = torch.sum(r * (votes - mu) ** 2, 1, True) / s + 1e-6
            h = (beta_u.unsqueeze(1) + 0.5 * torch.log(var)) * s
            act = (temperature * (beta_a - h.sum(3))).sigmoid()
            if t < len(self.temperatures) - 1:
                e = ((votes - mu) ** 2 / var + torch.log(var)).sum(3) * 0.5
                r = nn.functional.softmax(torch.log(act + 1e-5) - e, 2).unsqueeze(3)
        return mu[:, 0], act[:, 0]


class LogarithmOfDeviation(Paper):
    """An epsilon between the root and the logarithm, in the cost alone: no operator has it."""

    def cost(self, beta_u: Tensor, var: Tensor) -> Tensor:
        return (beta_u[:, None] + torch.log(var.sqrt() + 1e-3)).sum(-1)
