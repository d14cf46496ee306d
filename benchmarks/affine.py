"""Robustness to affine changes not seen in training: three routings and a plain CNN of equal size.

    python -m benchmarks.affine DATA [--epochs 12] [--seed 1] [--json affine.json] [--picture affine.png]

Digits are placed on a canvas of 40x40 pixels. The only augmentation in training moves them, by up to 6
pixels. The test images of MNIST are then moved, rotated, scaled and sheared, one change at a time and by
increasing amounts, as affNIST does at random. All four networks share one recipe and one stem, whose width
makes their parameter counts equal to within five per cent. The test images were not used for any tuning.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, one_hot

import capsedge
from benchmarks.common import machine
from capsedge.datasets import ImageSet, read_split
from capsedge.exporters.export import export
from capsedge.models import build, get_config
from capsedge.models.configs import CapsuleConv, Conv, ModelConfig
from capsedge.models.training import augment
from capsedge.models.training.evaluate import to_input
from capsedge.models.training.losses import cross_entropy_loss, fast_math, margin_loss, spread_loss
from capsedge.runtime.result_summary import new_figure, save_figure

SIDE, SHIFT, BATCH = 40, 6, 128
PARAMETERS = 250_000
CHANGES: dict[str, tuple[float, ...]] = {
    "translation, pixels": (0, 2, 4, 6, 8, 10),
    "rotation, degrees": (0, 10, 20, 30, 40, 50),
    "scale": (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2),
    "shear": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
}
Loss = Callable[[Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Entrant:
    """A network and its loss.

    Attributes:
        loss: the loss, from scores ``[N, 10]``, targets ``[N, 10]`` and the share of training completed.
    """

    name: str
    network: nn.Module
    loss: Loss

    def scores(self, images: Tensor) -> Tensor:
        """The scores ``[N, 10]``."""
        found = self.network(images)
        return found if isinstance(found, Tensor) else found.scores


def stem(width: int) -> tuple[Conv, ...]:
    """Three convolutions from 40x40 to 9x9."""
    return (
        Conv(width, 5, 2, 2, bias=False, batch_norm=True),
        Conv(2 * width, 3, 1, 1, bias=False, batch_norm=True),
        Conv(2 * width, 3, 2, bias=False, batch_norm=True),
    )


def capsules(name: str) -> Callable[[int], nn.Module]:
    """A function that makes a capsule network, given the width of its stem."""
    prep = replace(get_config("digits-dynamic").preprocessing, height=SIDE, width=SIDE)
    base: ModelConfig = get_config(name)
    changes: dict[str, Any] = {"preprocessing": prep, "primary_types": 8}
    if name == "digits-dynamic":
        changes |= {"primary_kernel": 3, "primary_stride": 2, "decoder": ()}
    elif name == "digits-attention":
        changes |= {"capsule_layers": (CapsuleConv(16, 3, 2),)}

    def make(width: int) -> nn.Module:
        # EM keeps the votes of all iterations: like digits-em, it routes from 7x7 positions to the classes.
        more = (Conv(2 * width, 3, bias=False, batch_norm=True),) if name == "digits-em" else ()
        return build(base.replace(stem=stem(width) + more, **changes))

    return make


def plain(width: int) -> nn.Module:
    """The same stem, then a convolution and two dense layers."""
    layers: list[nn.Module] = []
    channels = 1
    for conv in stem(width):
        layers += [
            nn.Conv2d(
                channels, conv.channels, conv.kernel, conv.stride, int(conv.padding), bias=False
            ),
            nn.BatchNorm2d(conv.channels),
            nn.ReLU(),
        ]
        channels = conv.channels
    layers += [nn.Conv2d(channels, 64, 3, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64 * 16, 96), nn.ReLU(), nn.Linear(96, 10))


def sized(make: Callable[[int], nn.Module]) -> nn.Module:
    """The network with the stem width that brings its parameter count closest to `PARAMETERS`."""

    def count(width: int) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in make(width).parameters())

    best = min(range(8, 129, 2), key=lambda width: abs(count(width) - PARAMETERS))
    if abs(count(best) - PARAMETERS) > 0.05 * PARAMETERS:
        raise SystemExit(
            f"no width makes {PARAMETERS:,} parameters: the nearest has {count(best):,}"
        )
    return make(best)


def entrants(seed: int) -> list[Entrant]:
    """The four networks, with fresh weights."""

    def spread(scores: Tensor, targets: Tensor, done: float) -> Tensor:
        return spread_loss(scores, targets, min(0.2 + 1.4 * done, 0.9))

    makers: dict[str, tuple[Callable[[int], nn.Module], Loss]] = {
        "dynamic": (capsules("digits-dynamic"), lambda s, t, _: margin_loss(s, t)),
        "em": (capsules("digits-em"), spread),
        "attention": (capsules("digits-attention"), lambda s, t, _: cross_entropy_loss(s, t)),
        "plain CNN": (plain, lambda s, t, _: cross_entropy(s, t)),
    }
    found = []
    for name, (make, loss) in makers.items():
        torch.manual_seed(seed)
        found.append(Entrant(name, sized(make), loss))
    return found


def placed(images: Tensor) -> Tensor:
    """Digits ``[N, 1, 28, 28]`` in the middle of the canvas."""
    margin = (SIDE - images.shape[2]) // 2
    return nn.functional.pad(images, (margin,) * 4)


def train(entrant: Entrant, data: ImageSet, epochs: int, seed: int) -> float:
    """Train with one-cycle Adam on moved digits; returns the seconds it took."""
    config = get_config("digits-dynamic")
    steps = max(1, len(data) // BATCH)
    optimizer = torch.optim.Adam(entrant.network.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps * epochs)
    rng = torch.Generator().manual_seed(seed)
    labels = torch.as_tensor(data.classes)
    start = time.monotonic()
    entrant.network.train()
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=rng)
        total = 0.0
        for step in range(steps):
            index = order[step * BATCH : (step + 1) * BATCH]
            images = augment.shift(placed(to_input(data.images[index.numpy()], config)), SHIFT, rng)
            with fast_math(True):
                scores = entrant.scores(images)
                targets = one_hot(labels[index], 10).float()
                loss = entrant.loss(scores, targets, (epoch + step / steps) / epochs)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(f"{entrant.name}: epoch {epoch + 1}, loss {total / steps:.4f}", file=sys.stderr)
    entrant.network.eval()
    return time.monotonic() - start


def changed(images: Tensor, kind: str, amount: float, rng: torch.Generator) -> Tensor:
    """Images with one change of this amount, in a sign or direction drawn for each image."""
    n = len(images)
    sign = torch.randint(0, 2, (n,), generator=rng) * 2.0 - 1
    zero, one = torch.zeros(n), torch.ones(n)
    rows = [[one, zero, zero], [zero, one, zero]]
    if kind.startswith("translation"):
        angle = 2 * math.pi * torch.rand(n, generator=rng)
        share = 2 * amount / images.shape[3]
        rows[0][2], rows[1][2] = (share * f(angle) for f in (torch.cos, torch.sin))
    elif kind.startswith("rotation"):
        angle = sign * math.radians(amount)
        rows = [[angle.cos(), angle.sin(), zero], [-angle.sin(), angle.cos(), zero]]
    elif kind == "scale":
        rows = [[one / amount, zero, zero], [zero, one / amount, zero]]
    else:
        rows[0][1] = sign * amount
    theta = torch.stack([torch.stack(row, 1) for row in rows], 1)
    grid = affine_grid(theta, list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)


@contextmanager
def answering(entrant: Entrant) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function from images to scores; capsule networks use the package's operators, many times faster."""
    if not hasattr(entrant.network, "config"):
        yield entrant.scores
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "network.onnx"
        export(entrant.network, file)
        with capsedge.load(file) as session:
            name = session.outputs[0].name
            yield lambda x: torch.from_numpy(session.run(x.numpy())[name])


@torch.no_grad()
def accuracies(entrant: Entrant, images: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """The share of correct answers by kind and amount; every network gets the same changes.

    Args:
        images: the network's inputs ``[N, C, H, W]``; pixels that move in from outside are zero.
        labels: ``[N]``.
    """
    found: dict[str, dict[str, float]] = {}
    with answering(entrant) as scores:
        for kind, amounts in CHANGES.items():
            found[kind] = {}
            for amount in amounts:
                moved = changed(images, kind, amount, torch.Generator().manual_seed(7))
                right = sum(
                    int((scores(x).argmax(1) == y).sum())
                    for x, y in zip(torch.split(moved, 250), torch.split(labels, 250), strict=True)
                )
                found[kind][f"{amount:g}"] = right / len(labels)
    return found


def markdown(document: dict[str, Any]) -> str:
    """A table per kind of change."""
    names = list(document["networks"])
    lines = []
    for kind, amounts in CHANGES.items():
        lines += [f"| {kind} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for amount in (f"{a:g}" for a in amounts):
            shares = [document["networks"][n]["accuracy"][kind][amount] for n in names]
            lines.append(f"| {amount} | {' | '.join(f'{100 * s:.2f} %' for s in shares)} |")
        lines.append("")
    return "\n".join(lines)


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw curves, one panel per kind of change, with 95 % intervals of the number of correct answers."""
    figure = new_figure(10, 5.6)
    panels = figure.subplots(2, 2, sharey=True).flat
    images = document["test_images"]
    for panel, kind in zip(panels, CHANGES, strict=True):
        for name, marker in zip(document["networks"], "osD^", strict=False):
            curve = document["networks"][name]["accuracy"][kind]
            amounts = [float(a) for a in curve]
            shares = list(curve.values())
            bounds = [wilson(share, images) for share in shares]
            bars = [
                [100 * (s - low) for s, (low, _) in zip(shares, bounds, strict=True)],
                [100 * (high - s) for s, (_, high) in zip(shares, bounds, strict=True)],
            ]
            panel.errorbar(
                amounts, [100 * s for s in shares], bars, marker=marker, markersize=4, linewidth=1,
                capsize=3, label=name,
            )  # fmt: skip
        panel.set_xlabel(kind)
        panel.grid(alpha=0.3)
    for panel in figure.axes[::2]:
        panel.set_ylabel("accuracy, %")
    least = min(
        share
        for network in document["networks"].values()
        for curve in network["accuracy"].values()
        for share in curve.values()
    )
    figure.axes[0].set_ylim(10 * math.floor(10 * least), 101)
    figure.axes[0].legend()
    save_figure(figure, path)


def publish(document: dict[str, Any], picture: Path | None) -> None:
    """Print the tables, and draw the curves if a file is given for them."""
    print(markdown(document))
    if picture:
        draw(document, picture)


def wilson(share: float, images: int) -> tuple[float, float]:
    """The 95 % interval of a share of correct answers (Wilson 1927): its bounds, from 0 to 1."""
    z = 1.96
    middle = share + z * z / (2 * images)
    half = z * math.sqrt(share * (1 - share) / images + z * z / (4 * images * images))
    whole = 1 + z * z / images
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def finished(path: Path | None, document: dict[str, Any]) -> dict[str, Any]:
    """The networks already measured by an earlier run of the same kind, read from its file."""
    if path is None or not path.exists():
        return {}
    before: dict[str, Any] = json.loads(path.read_text())
    same = ("seed", "epochs", "training_images", "test_images")
    networks: dict[str, Any] = before["networks"]
    return networks if all(before[key] == document[key] for key in same) else {}


def main() -> None:
    """Train, test and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    prep = get_config("digits-dynamic").preprocessing
    training = read_split(options.data, "train", prep, options.limit)
    test = read_split(options.data, "test", prep, options.limit)
    document = {
        "command": f"python -m benchmarks.affine {' '.join(sys.argv[1:])}",
        "machine": machine(),
        "seed": options.seed,
        "epochs": options.epochs,
        "training_images": len(training),
        "test_images": len(test),
        "networks": {},
    }
    networks = document["networks"] = finished(options.json, document)
    images = placed(to_input(test.images, get_config("digits-dynamic")))
    for entrant in entrants(options.seed):
        if entrant.name in networks:
            continue
        seconds = train(entrant, training, options.epochs, options.seed)
        networks[entrant.name] = {
            "parameters": sum(p.numel() for p in entrant.network.parameters()),
            "hours": seconds / 3600,
            "accuracy": accuracies(entrant, images, torch.as_tensor(test.classes)),
        }
        if options.json:  # keep what is done so far
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    publish(document, options.picture)


if __name__ == "__main__":
    main()
