"""Build layers of matrix capsules: EM routing as in the paper, and with clamped statistics.

The latter has no operator: its activation needs the clamped variance, which ``em_routing`` does not output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from capsedge.models import ops
from capsedge.models.layers import SideBySide, window_positions
from capsedge.models.ops.operator_inputs import cut_windows, votes


def corners(grid: tuple[int, int], side: int) -> Tensor:
    """``i / H`` and ``j / W`` in the first two elements of the first row of a pose ``[H, W, P]``."""
    h, w = grid
    added = torch.zeros(h, w, side * side)
    added[..., 0] = (torch.arange(h) / h)[:, None]
    added[..., 1] = torch.arange(w) / w
    return added


class EMCapsules(nn.Module):
    """Matrix capsules (Hinton et al. 2018), over a window or, ``shared``, as class capsules.

    Args:
        grid: rows and columns of the children's map.
        coordinates, normalized, patches: as in ``MatrixCapsulesConfig``.
    """

    added: Tensor | None

    def __init__(
        self,
        grid: tuple[int, int],
        types_in: int,
        types: int,
        side: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        shared: bool = False,
        inverse_temperatures: Sequence[float],
        epsilon: float,
        coordinates: str = "none",
        normalized: bool = False,
        patches: str = "windows",
    ) -> None:
        super().__init__()
        self.shared, self.epsilon = shared, epsilon
        self.centers, self.normalized = coordinates == "centers", normalized
        self.side_by_side = SideBySide(grid, kernel, stride, 1, patches)
        self.stride = self.side_by_side.stride
        added = corners(grid, side) if coordinates == "corners" else None
        self.register_buffer("added", added, persistent=False)
        self.inverse_temperatures = tuple(inverse_temperatures)
        # A vote, a sum of `side` products, keeps the variance of the pose.
        self.weight = nn.Parameter(
            torch.randn(kernel, kernel, types_in, types, side, side) / side**0.5
        )
        self.beta_u = nn.Parameter(torch.zeros(types))
        self.beta_a = nn.Parameter(torch.zeros(types))

    def forward(self, pose: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[N, H, W, C, P]`` and ``[N, H, W, C]`` to poses, activations and couplings."""
        return ops.em_routing(
            self.side_by_side(pose),
            self.side_by_side(a.unsqueeze(-1)).squeeze(-1),
            self.weight,
            self.beta_u,
            self.beta_a,
            inverse_temperatures=self.inverse_temperatures,
            strides=(self.stride, self.stride),
            coordinate_addition=self.centers,
            coordinates=self.added,
            shared=self.shared,
            normalize_activations=self.normalized,
            epsilon=self.epsilon,
        )


# --- Clamped statistics, as in Matrix-Capsules-pytorch (Yuxian Meng, 2017) ---

LEAST = 0.01  # lower limit of R a and of the variance
_NEVER = -1e30  # log of a child's share for a window that does not see it


class ClampedEMCapsules(nn.Module):
    """Matrix capsules over a window or, ``shared``, over the whole map; a vote is ``W @ pose``.

    It differs from the paper (Hinton et al. 2018, procedure 1): ``R`` starts at one over the number of
    parents at all positions; ``R a`` and the variance are at least 0.01; the cost takes the log of the
    variance, not of the deviation; the E-step uses the votes of the window's mirrored position, does not
    divide squared distances by the variance, and normalizes over all parents of all windows that see a child.

    Args:
        grid: rows and columns of the children's map.
        coordinates: ``corners``, as in ``MatrixCapsulesConfig``, or ``none``.
        patches: how patches of poses are read, as in ``MatrixCapsulesConfig``; activations are read from
            windows.
    """

    added: Tensor | None
    mirrored: Tensor
    seen: Tensor
    places: Tensor

    def __init__(
        self,
        grid: tuple[int, int],
        types_in: int,
        types: int,
        side: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        shared: bool = False,
        inverse_temperatures: Sequence[float],
        coordinates: str = "none",
        patches: str = "windows",
    ) -> None:
        super().__init__()
        self.window = grid if shared else (kernel, kernel)
        self.stride, self.types_in, self.types, self.side = stride, types_in, types, side
        self.shared, self.inverse_temperatures = shared, tuple(inverse_temperatures)
        self.grid = window_positions(grid, self.window, stride)
        order = "windows" if shared else patches
        self.side_by_side = SideBySide(grid, kernel, stride, side * side, order)
        self.weight = nn.Parameter(
            torch.randn(kernel, kernel, types_in, types, side, side) / side**0.5
        )
        self.beta_u = nn.Parameter(torch.zeros(types))
        self.beta_a = nn.Parameter(torch.zeros(types))
        added = None
        if coordinates == "corners":
            added = self._turned(corners(grid, side)).reshape(1, 1, 1, -1, 1, side * side)
            added = added.repeat_interleave(types_in, 3)
        self.register_buffer("added", added, persistent=False)
        for name, index in self._indices(grid).items():
            self.register_buffer(name, index, persistent=False)

    def _indices(self, grid: tuple[int, int]) -> dict[str, Tensor]:
        """Indices that state which windows see which child.

        ``mirrored [K K]``: the mirror image of each position in a window. ``seen``: for each child seen by
        any window, its positions in all windows ``[H' W' K K]``, counted from 1 and padded with 0 to the
        longest list. ``places [H' W' K K]``: the index of each in ``seen``.
        """
        (rows, columns), (height, width), step = self.window, self.grid, self.stride
        starts = product(range(0, height * step, step), range(0, width * step, step))
        inside = list(product(range(rows), range(columns)))
        children = [(x + i) * grid[1] + y + j for x, y in starts for i, j in inside]
        found: dict[int, list[int]] = {}
        for place, child in enumerate(children, 1):
            found.setdefault(child, []).append(place)
        self.most = max(map(len, found.values()))
        seen = [p for f in found.values() for p in f + [0] * (self.most - len(f))]
        where = {place: at for at, place in enumerate(seen)}
        return {
            "mirrored": torch.tensor([-i % rows * columns + -j % columns for i, j in inside]),
            "seen": torch.tensor(seen),
            "places": torch.tensor([where[place] for place in range(1, len(children) + 1)]),
        }

    def forward(self, pose: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[N, H, W, C, P]`` and ``[N, H, W, C]`` to poses, activations and responsibilities."""
        votes, acting = (
            self._votes(pose),
            cut_windows(a.unsqueeze(-1), self.window, (self.stride,) * 2),
        )
        parents = self.grid[0] * self.grid[1] * self.types
        r = acting.new_full((1, 1), 1 / parents).expand(*acting.shape[:4], self.types)
        first, *others = self.inverse_temperatures
        mean, variance, logit = self._m_step(votes, r * acting, first)
        for temperature in others:
            r = self._e_step(votes, mean, variance, logit)
            mean, variance, logit = self._m_step(votes, r * acting, temperature)
        return self._turned(mean), logit.sigmoid(), r

    def _turned(self, pose: Tensor) -> Tensor:
        """Pose matrices transposed."""
        matrices = pose.reshape(*pose.shape[:-1], self.side, self.side)
        return matrices.transpose(-1, -2).reshape(pose.shape)

    def _votes(self, pose: Tensor) -> Tensor:
        """``[N, H', W', I, M, P]``, transposed: ``(W pose)ᵀ`` is ``poseᵀ Wᵀ``."""
        patches, step = self.side_by_side(pose), self.side_by_side.stride
        children = cut_windows(patches, self.window, (step, step))
        weight = self.weight.transpose(-1, -2)
        if self.shared:
            weight = weight.expand(*self.window, *weight.shape[2:])
        made = votes(self._turned(children), weight.reshape(-1, *weight.shape[3:]), self.side)
        return made if self.added is None else made + self.added

    def _m_step(
        self, votes: Tensor, share: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Means and variances ``[N, H', W', M, P]`` and logits of the activations ``[N, H', W', M]``."""
        weights = share.clamp(min=LEAST).unsqueeze(-1)
        mass = weights.sum(3)
        mean = (weights * votes).sum(3) / mass
        spread = (weights * (votes - mean.unsqueeze(3)).square()).sum(3) / mass
        variance = spread.clamp(min=LEAST)
        cost = (self.beta_u.unsqueeze(-1) + variance.log()).sum(-1) * mass.squeeze(-1)
        return mean, variance, temperature * (self.beta_a - cost)

    def _e_step(self, votes: Tensor, mean: Tensor, variance: Tensor, logit: Tensor) -> Tensor:
        """Responsibilities ``[N, H', W', I, M]``, in the log domain."""
        n, h, w, i, m = votes.shape[:5]
        mirrored = votes.reshape(n, h, w, -1, self.types_in, m, votes.shape[5])
        mirrored = mirrored.index_select(3, self.mirrored).reshape(votes.shape)
        distance = (mirrored - mean.unsqueeze(3)).square().sum(-1)
        constant = 0.5 * (2 * math.pi * variance).log().sum(-1)
        log_p = (logsigmoid(logit) - constant).unsqueeze(3) - distance
        # Normalize each child's shares over all windows, then return them to each window.
        apart = log_p.reshape(n, -1, self.types_in, m).transpose(1, 2)
        slots = pad(apart, (0, 0, 1, 0), value=_NEVER).index_select(2, self.seen)
        shares = slots.reshape(n, self.types_in, -1, self.most * m).softmax(-1)
        back = shares.reshape(n, self.types_in, -1, m).index_select(2, self.places)
        return back.transpose(1, 2).reshape(n, h, w, i, m)
