"""The routing procedures over given votes ``U [n, j, i, p]``, with the variants found in other code.

Formulas and sources: docs/reference/operators.md. The hypotheses include the deviations found in other code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from capsedge.graph.fusion.values import Array

_TINY = 1e-300
LOWEST = -(2.0**32)  # prior of a masked child: in FP32, adding an agreement does not change it
OVER = {"j": (1,), "i": (2,), "ji": (1, 2)}


def softmax(b: Array, axes: tuple[int, ...], leaky: bool = False) -> Array:
    """Softmax over axes; ``leaky`` adds the term exp 0 to its sum."""
    top = b.max(axis=axes, keepdims=True)
    top = np.maximum(top, 0) if leaky else top
    e = np.exp(b - top)
    return np.asarray(e / (e.sum(axis=axes, keepdims=True) + (np.exp(-top) if leaky else 0.0)))


def squash(s: Array, form: str, epsilon: float, over: str = "p") -> Array:
    """``A``: n²/(1+n²)·s/(n+e); ``B``: n²/(1+n²)·s/√(n²+e); ``D``: s·n/(1+n²); ``E``: (1-exp -n)·s/(n+e);
    ``F``: s·√(n²+e)/(1+n²+e); ``G``: s/(1+n); ``H``: s·√(n²+e)/(½+n²+e).

    Args:
        over: ``p``, the pose (last axis); ``j``, the last axis but one; ``element``, each element separately.
    """
    square = s * s if over == "element" else (s * s).sum({"p": -1, "j": -2}[over], keepdims=True)
    n = np.sqrt(square)
    if form == "A":
        return np.asarray(square / (1 + square) * (s / (n + epsilon + _TINY)))
    if form == "B":
        return np.asarray(square / (1 + square) * s / np.sqrt(square + epsilon + _TINY))
    if form == "D":
        return np.asarray(s * n / (1 + square))
    if form in "FH":
        square = square + epsilon
        return np.asarray(s * np.sqrt(square) / ({"F": 1.0, "H": 0.5}[form] + square + _TINY))
    if form == "E":
        return np.asarray(-np.expm1(-n) * s / (n + epsilon + _TINY))
    if form == "G":
        return np.asarray(s / (1 + n))
    raise ValueError(form)


@dataclass(frozen=True)
class Dynamic:
    """A kind of dynamic routing.

    Attributes:
        iterations: number of weighted sums computed.
        over: what the softmax runs over: ``j`` parents, ``i`` children, ``ji`` both, ``groups`` parents
            with the same position in their groups.
        form, epsilon, axis: those of the squash; the axis ``group`` covers all poses of a group together.
        group: how many neighbouring parents form a group: the elements of a pose if each has logits of its
            own, or the positions that a softmax or a squash runs over.
        prior: start logits ``[j, i]``, or zero.
        bias: bias ``[j, p]`` added to the sums, or zero.
        scale: factor of the agreements.
        leaky: whether there is an extra parent with logit zero.
        replace: whether agreements replace the logits instead of adding to them.
        batch_mean: whether agreements are averaged over the images.
        normalize: whether agreements use the sums divided by their norms instead of the poses.
        norm_epsilon: added to the square of such a norm.
    """

    iterations: int = 1
    over: str = "j"
    form: str = "B"
    epsilon: float = 0.0
    axis: str = "p"
    group: int = 1
    prior: Array = field(default_factory=lambda: np.zeros(()))
    bias: Array = field(default_factory=lambda: np.zeros(()))
    scale: float = 1.0
    leaky: bool = False
    replace: bool = False
    batch_mean: bool = False
    normalize: bool = False
    norm_epsilon: float = 0.0

    def __call__(
        self, votes: Array, prior: Array | float = 0.0, mask: Array | float = 1.0
    ) -> Array:
        """Parents ``[n, j, p]``.

        Args:
            prior: what is added to the start logits ``[n, j, i]``.
            mask: factor of the couplings, in the same layout.
        """
        start = np.zeros((1, *votes.shape[1:3])) + self.prior + prior
        b = start
        for t in range(self.iterations):
            c = self.couplings(np.where(start <= LOWEST / 2, LOWEST, b)) * mask
            s = (c[:, :, None] @ votes)[:, :, 0] + self.bias
            v = self._squash(s)
            if t + 1 < self.iterations:
                a = self.scale * (votes @ self._parents(s, v)[..., None])[..., 0]
                a = a.mean(0, keepdims=True) if self.batch_mean else a
                b = a if self.replace else b + a
        return v

    def couplings(self, b: Array) -> Array:
        """The softmax of logits ``[n, j, i]``."""
        if self.over != "groups":
            return softmax(b, OVER[self.over], self.leaky)
        return softmax(b.reshape(len(b), -1, self.group, b.shape[2]), (1,)).reshape(b.shape)

    def _squash(self, s: Array) -> Array:
        if self.axis != "group":
            return squash(s, self.form, self.epsilon, self.axis)
        vectors = s.reshape(len(s), -1, self.group * s.shape[2])
        return squash(vectors, self.form, self.epsilon).reshape(s.shape)

    def _parents(self, s: Array, v: Array) -> Array:
        """The reference result for votes."""
        if not self.normalize:
            return v
        square = (s * s).sum(-1, keepdims=True)
        return np.asarray(s / np.sqrt(square + self.norm_epsilon + _TINY))


def m_step(
    votes: Array, r: Array, epsilon: float, variance_epsilon: float = 0.0
) -> tuple[Array, Array, Array, Array]:
    """Mass ``[n,j]``, means ``[n,j,p]``, squared deviations ``[n,j,i,p]``, variances ``[n,j,p]``."""
    mass = r.sum(2)
    mean = (r[:, :, None] @ votes)[:, :, 0] / (mass + epsilon)[..., None]
    off = (votes - mean[:, :, None]) ** 2
    variance = (r[:, :, None] @ off)[:, :, 0] / (mass + epsilon)[..., None]
    variance = variance + (variance_epsilon or epsilon)
    return mass, mean, off, variance


def logistic(x: Array) -> Array:
    """The logistic function, without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


@dataclass(frozen=True)
class EM:
    """A kind of EM routing.

    Attributes:
        temperatures: inverse temperatures, one per iteration.
        beta_u, beta_a: the betas ``[j]``; docs/reference/operators.md defines the cost.
        epsilon: used in the divisions and added to the variances.
        variance_epsilon: added to the variances instead; 0 for none of its own.
        activation_epsilon: added to an activation under its logarithm.
        cost_epsilon: added to the mass in the cost.
        normalized: whether an activation is first divided by itself plus epsilon.
        ones_first: whether responsibilities start at one instead of one over the number of parents.
    """

    temperatures: tuple[float, ...]
    beta_u: Array
    beta_a: Array
    epsilon: float
    normalized: bool = False
    ones_first: bool = False
    variance_epsilon: float = 0.0
    activation_epsilon: float = 0.0
    cost_epsilon: float = 0.0

    def __call__(self, votes: Array, a: Array) -> tuple[Array, Array]:
        """Poses ``[n, j, p]`` and activations ``[n, j]`` from votes and activations ``[n, i]``."""
        a = self.acting(a)
        r = self.first(votes.shape[1])
        for t in range(len(self.temperatures)):
            mass, mean, off, variance = m_step(
                votes, r * a[:, None], self.epsilon, self.variance_epsilon
            )
            logs = 0.5 * np.log(variance).sum(-1)
            logit = self.logit(t, logs, mass, votes.shape[3])
            if t + 1 < len(self.temperatures):
                r = responsibilities(logit, logs, off, variance, self.activation_epsilon)
        return mean, logistic(logit)

    def first(self, parents: int) -> Array:
        """The first responsibilities ``[1, j, 1]``."""
        return np.full((1, parents, 1), 1.0 if self.ones_first else 1 / parents)

    def acting(self, a: Array) -> Array:
        """What the children's activations count for."""
        return a / (a + self.epsilon) if self.normalized else a

    def logit(self, t: int, logs: Array, mass: Array, pose: int) -> Array:
        """The argument of the activations of pass ``t``, from half the logarithms and masses ``[n, j]``."""
        cost = (self.beta_u * pose + logs) * (mass + self.cost_epsilon)
        return np.asarray(self.temperatures[t] * (self.beta_a - cost))


@dataclass(frozen=True)
class SelfAttention:
    """The pass of Efficient-CapsNet, and variants that resemble it.

    Attributes:
        scale: factor of the agreements with the sum of all votes.
        bias: bias ``[j, i]`` added after the softmax, or zero.
        epsilon: epsilon of the squash.
        form: form of the squash.
        over: what the softmax runs over.
    """

    scale: float
    bias: Array = field(default_factory=lambda: np.zeros(()))
    epsilon: float = 0.0
    form: str = "E"
    over: str = "j"

    def couplings(self, votes: Array) -> Array:
        """The couplings ``[n, j, i]`` before the bias."""
        total = votes.sum(2)[..., None]
        return softmax(self.scale * (votes @ total)[..., 0], OVER[self.over])

    def sums(self, votes: Array) -> Array:
        """The weighted sums ``[n, j, p]``."""
        return np.asarray(((self.couplings(votes) + self.bias)[:, :, None] @ votes)[:, :, 0])

    def __call__(self, votes: Array) -> Array:
        """Parents ``[n, j, p]``."""
        return squash(self.sums(votes), self.form, self.epsilon)


def responsibilities(
    logit: Array, logs: Array, off: Array, variance: Array, activation_epsilon: float = 0.0
) -> Array:
    """The responsibilities ``[n, j, i]`` computed by the E-step."""
    b = -np.logaddexp(0, -logit) - logs
    if activation_epsilon:
        b = np.log(logistic(logit) + activation_epsilon) - logs
    return softmax(b[..., None] - 0.5 * (off @ (1 / variance)[..., None])[..., 0], (1,))


@dataclass(frozen=True)
class Attention:
    """One pass of inverted attention.

    Attributes:
        agreement_scale: factor of the agreements; 0 for the uniform pass.
        scale, bias: scale and bias ``[p]`` of the layer normalization.
        epsilon: epsilon of the layer normalization.
        over: what the softmax runs over.
    """

    agreement_scale: float
    scale: Array
    bias: Array
    epsilon: float
    over: str = "j"

    def sums(self, votes: Array, parent: Array | None = None) -> Array:
        """The weighted sums ``[n, j, p]``."""
        if parent is None:
            return np.asarray(votes.sum(2) / votes.shape[1])
        logits = self.agreement_scale * (votes @ parent[..., None])[..., 0]
        return (softmax(logits, OVER[self.over])[:, :, None] @ votes)[:, :, 0]

    def __call__(self, votes: Array, parent: Array | None = None) -> Array:
        """Parents ``[n, j, p]``."""
        s = self.sums(votes, parent)
        off = s - s.mean(-1, keepdims=True)
        return np.asarray(
            off / np.sqrt((off * off).mean(-1, keepdims=True) + self.epsilon) * self.scale
            + self.bias
        )


def relative_difference(actual: Array, expected: Array) -> float:
    """Largest difference relative to the largest expected magnitude; infinite values are not compared."""
    finite = np.isfinite(expected)
    if actual.shape != expected.shape or not finite.any():
        return float("inf")
    size = float(np.abs(expected[finite]).max())
    return float(np.abs(np.where(finite, actual - expected, 0)).max() / max(size, _TINY))


def least_difference(actual: Array, expected: Array) -> float:
    """The least `relative_difference` of two arrays in whatever order their elements are.

    In one dimension, no other pairing has a smaller largest distance than the sorted one. Zero if it does not
    apply: with infinite values.
    """
    if not (np.isfinite(actual).all() and np.isfinite(expected).all()):
        return 0.0
    return relative_difference(np.sort(actual, axis=None), np.sort(expected, axis=None))
