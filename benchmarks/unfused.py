"""Routing that no operator covers, in the file of ``capsedge export`` and in a plain export.

    python -m benchmarks.unfused [--children 288] [--batches 1 16] [--threads 1] [--seconds 2]

Each network is one layer of capsules, 8 to 16 elements, 10 parents, three iterations. Both files run in ONNX
Runtime, in turns; outputs are compared first. The ratio is of the medians.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import capsedge
from capsedge.runtime.profiling.compare import CAPSEDGE, Entrant, compare
from capsedge.runtime.profiling.worker import RunLimits, Specification

Step = Callable[[Tensor], Tensor]


def unit_squash(s: Tensor) -> Tensor:
    """The direction times ``n / (1 + n)``."""
    return s / (1 + s.norm(dim=-1, keepdim=True))


def softmax_squash(s: Tensor) -> Tensor:
    """A softmax over the elements of the pose."""
    return s.softmax(dim=-1)


class Routed(nn.Module):
    """One layer of capsules, as votes ``[B, J, I, P]`` or ``[B, I, J, P]``.

    Args:
        parents_first: the order of the votes.
        squash: of the sums.
        cosine: whether agreements are cosines.
    """

    def __init__(
        self, children: int, squash: Step, *, cosine: bool = False, parents_first: bool = True
    ) -> None:
        super().__init__()
        self.squash, self.cosine, self.first = squash, cosine, parents_first
        order = (10, children) if parents_first else (children, 10)
        self.weight = nn.Parameter(0.2 * torch.randn(*order, 8, 16))

    def forward(self, u: Tensor) -> Tensor:
        parents, children = (1, 2) if self.first else (2, 1)
        votes = torch.matmul(u.unsqueeze(parents).unsqueeze(-2), self.weight).squeeze(-2)
        b = torch.zeros(votes.shape[:3])
        for _ in range(3):
            c = b.softmax(dim=parents)
            v = self.squash((c.unsqueeze(-1) * votes).sum(dim=children, keepdim=True))
            if self.cosine:
                b = b + functional.cosine_similarity(votes, v.expand_as(votes), dim=-1)
            else:
                b = b + (votes * v).sum(dim=-1)
        return v.squeeze(children)


def networks(children: int) -> dict[str, nn.Module]:
    """The networks by name."""
    return {
        "cosine agreement": Routed(children, lambda s: s, cosine=True),
        "squash s/(1+n)": Routed(children, unit_squash),
        "softmax as the squash": Routed(children, softmax_squash),
        "the same, children first": Routed(children, softmax_squash, parents_first=False),
    }


def ratio(
    name: str, net: nn.Module, u: Tensor, threads: int, seconds: float, folder: Path
) -> tuple[float, float]:
    """Milliseconds of the exported file, and how many times as long the plain export takes."""
    ours, plain = folder / "ours.onnx", folder / "plain.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (u,), str(plain), dynamo=False, opset_version=17, input_names=["u"],
            output_names=["output"], dynamic_axes={"u": {0: "N"}, "output": {0: "N"}},
        )  # fmt: skip
    capsedge.export(net, ours, example={"u": torch.rand(2, *u.shape[1:])})
    entrants = [
        Entrant("plain", Specification("ort", str(plain), threads=threads), name),
        Entrant("ours", Specification(CAPSEDGE, str(ours), "", threads=threads), name),
    ]
    found = compare(entrants, {"u": u.numpy()}, RunLimits(0.3, seconds, 20))
    medians = {e.name: float(e.latency.median) for e in found.entries if e.latency is not None}
    return medians["ours"], medians["plain"] / medians["ours"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--children", type=int, default=288)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--networks", type=int, default=None, help="only so many of them")
    given = parser.parse_args()
    torch.manual_seed(0)
    chosen = list(networks(given.children).items())[: given.networks]
    print("| routing | " + " | ".join(f"batch {b}" for b in given.batches) + " |")
    print("|---|" + "---|" * len(given.batches))
    for name, net in chosen:
        cells = []
        for batch in given.batches:
            u = torch.from_numpy(
                np.random.default_rng(0).standard_normal((batch, given.children, 8), np.float32)
            )
            with tempfile.TemporaryDirectory() as folder:
                ms, times = ratio(name, net.eval(), u, given.threads, given.seconds, Path(folder))
            cells.append(f"{ms:.3f} ms, {times:.1f}x")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
