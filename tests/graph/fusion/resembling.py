"""Networks that resemble routing and are none of the package's."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CHILDREN, SIZE = 18, 8


class Transformer(nn.Module):
    """Self-attention with several heads, written out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.reshape(-1, CHILDREN, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        c = F.softmax(q @ k.transpose(2, 3) * 4**-0.5, -1)
        return self.norm(self.out((c @ v).transpose(1, 2).reshape(-1, CHILDREN, SIZE)))


class Pooling(nn.Module):
    """Attention pooling: a learned query weighs the inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.score = nn.Linear(SIZE, 1)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm((F.softmax(self.score(x), 1) * torch.tanh(x)).sum(1))


class SoftMeans(nn.Module):
    """Soft k-means: distances to centres, centres from shares."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.centres = nn.Parameter(torch.randn(5, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        centres = self.centres.expand(x.shape[0], 5, SIZE)
        for _ in range(3):
            c = F.softmax(-((x[:, :, None] - centres[:, None]) ** 2).sum(-1), 2)
            centres = (c[..., None] * x[:, :, None]).sum(1) / c.sum(1)[..., None]
        return centres


class Classifier(nn.Module):
    """Convolutions and a softmax over classes: no votes anywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(
            nn.Linear(SIZE, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * CHILDREN, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.layers(x), -1)


class Experts(nn.Module):
    """Mixture of experts: a gate weighs what every expert makes of the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.gate = nn.Linear(SIZE, 5)
        self.experts = nn.Parameter(0.4 * torch.randn(5, SIZE, 6))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.einsum("bni,eij->bnej", x, self.experts)
        return (F.softmax(self.gate(x), -1)[..., None] * torch.relu(made)).sum(2)


class Slots(nn.Module):
    """Slot attention: softmax over the slots, weighted means, three passes of a gated update."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.start = nn.Parameter(torch.randn(5, SIZE))
        self.k, self.v, self.q = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.update = nn.Linear(2 * SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.k(x), self.v(x)
        slots = self.start.expand(x.shape[0], 5, SIZE)
        for _ in range(3):
            share = F.softmax(keys @ self.q(self.norm(slots)).transpose(1, 2) * SIZE**-0.5, -1)
            share = share / (share.sum(1, keepdim=True) + 1e-8)
            slots = slots + torch.tanh(
                self.update(torch.cat([slots, share.transpose(1, 2) @ values], -1))
            )
        return slots


class GraphAttention(nn.Module):
    """Graph attention: additive scores of pairs, softmax over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.w = nn.Linear(SIZE, 6, bias=False)
        self.left, self.right = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.w(x)
        scores = F.leaky_relu(self.left(h) + self.right(h).transpose(1, 2), 0.2)
        return F.elu(F.softmax(scores, -1) @ h)


class CosineAttention(nn.Module):
    """Votes weighed by their cosine with their mean, twice; no squash."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.w = nn.Parameter(0.4 * torch.randn(5, CHILDREN, SIZE, 6))

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bni,jnip->bjnp", x, self.w)
        centre = votes.mean(2)
        for _ in range(2):
            share = F.softmax(F.cosine_similarity(votes, centre[:, :, None], -1), 1)
            centre = (share[..., None] * votes).sum(2)
        return centre


class Excitation(nn.Module):
    """Squeeze and excitation with a softmax gate over channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.down, self.up = nn.Linear(SIZE, 3), nn.Linear(3, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.softmax(self.up(torch.relu(self.down(x.mean(1)))), -1)[:, None]


class Hopfield(nn.Module):
    """A modern Hopfield network: a state retrieved from learned patterns, three times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.patterns = nn.Parameter(torch.randn(12, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = F.softmax(2.0 * x @ self.patterns.T, -1) @ self.patterns
        return x


class Descriptors(nn.Module):
    """NetVLAD: soft assignment to centres, residuals summed and normalized."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.assign = nn.Linear(SIZE, 5)
        self.centres = nn.Parameter(torch.randn(5, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        share = F.softmax(self.assign(x), -1)
        off = x[:, :, None] - self.centres
        return F.normalize((share[..., None] * off).sum(1), dim=-1)


class Sharpened(nn.Module):
    """Iterated attention over votes whose logits are products with a learned query, squashed at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(13)
        self.w = nn.Parameter(0.4 * torch.randn(5, CHILDREN, SIZE, 6))
        self.query = nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bni,jnip->bjnp", x, self.w)
        share = F.softmax((votes * self.query[:, None]).sum(-1), 1)
        s = (share[..., None] * votes).sum(2)
        n = s.norm(dim=-1, keepdim=True)
        return n**2 / (1 + n**2) * s / (n + 1e-8)


class Momentum(nn.Module):
    """Routing whose logits keep nine tenths of themselves: a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(14)
        self.w = nn.Parameter(0.4 * torch.randn(5, CHILDREN, SIZE, 6))

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bni,jnip->bjnp", x, self.w)
        b = torch.zeros(x.shape[0], 5, CHILDREN)
        for t in range(3):
            s = (b.softmax(1)[..., None] * votes).sum(2)
            n = s.norm(dim=-1, keepdim=True)
            v = n**2 / (1 + n**2) * s / (n + 1e-8)
            if t < 2:
                b = 0.9 * b + (votes * v[:, :, None]).sum(-1)
        return v


class Gated(nn.Module):
    """Routing whose couplings are squared after the softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(15)
        self.w = nn.Parameter(0.4 * torch.randn(5, CHILDREN, SIZE, 6))

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bni,jnip->bjnp", x, self.w)
        b = torch.zeros(x.shape[0], 5, CHILDREN)
        for t in range(3):
            s = (b.softmax(1)[..., None] ** 2 * votes).sum(2)
            n = s.norm(dim=-1, keepdim=True)
            v = n**2 / (1 + n**2) * s / (n + 1e-8)
            if t < 2:
                b = b + (votes * v[:, :, None]).sum(-1)
        return v


RESEMBLING = (
    Transformer, Pooling, SoftMeans, Classifier, Experts, Slots, GraphAttention,
    CosineAttention, Excitation, Hopfield, Descriptors, Sharpened, Momentum, Gated,
)  # fmt: skip
