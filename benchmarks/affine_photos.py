"""Robustness of the photograph network to affine changes, compared with a plain CNN of equal size.

    python -m benchmarks.affine_photos CIFAR10_FOLDER plain.safetensors [--json FILE] [--picture FILE]

The plain network has the same stem; a convolution, global average pooling and a dense layer replace the
capsules. Unless the file exists, it is trained on a GPU as `tools.zoo.train_photos` trains the capsules. The
test images are moved, rotated, scaled and sheared, one change at a time and by increasing amounts; training
only moves images by up to 4 pixels, mirrors them and hides parts. The test images were not used for any
tuning.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.affine import Entrant, accuracies, publish
from benchmarks.common import machine
from capsedge.models import get_config
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.stems import make_stem
from capsedge.models.training.losses import cross_entropy_loss
from capsedge.runtime.zoo import zoo_checkpoint
from tools.zoo.train_photos import MODEL, SIDE, BFloat16, load, train

WIDTH = 81  # channels after the stem; makes the parameter counts equal to within a thousandth


def plain() -> nn.Sequential:
    """The photograph network's stem with a plain classifier, with random weights."""
    stem, channels = make_stem(get_config(MODEL).stem, 3, (SIDE, SIDE))
    return nn.Sequential(
        stem,
        nn.Conv2d(channels, WIDTH, 3, 2, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTH, 10),
    )


def trained(data: Path, epochs: int, seed: int, device: str) -> nn.Sequential:
    """The plain network, trained like the capsules."""
    torch.manual_seed(seed)
    network = plain()
    body, network[0] = network[0], BFloat16(network[0])
    train(network.to(device), *load(data, "train", device), epochs, seed)
    network[0] = body
    return network.cpu()


def main() -> None:
    """Train if necessary, test and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("plain", type=Path)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=int, help="only so many test images; 0 only trains")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if not options.plain.exists():
        network = trained(options.data, options.epochs, options.seed, options.device)
        state = {name: value.contiguous() for name, value in network.state_dict().items()}
        save_file(state, options.plain)
    if options.limit == 0:
        return
    network = plain()
    network.load_state_dict(load_file(options.plain))
    images, labels = (x[: options.limit] for x in load(options.data, "test", "cpu"))
    document: dict[str, Any] = {
        "command": f"python -m benchmarks.affine_photos {' '.join(sys.argv[1:])}",
        "machine": machine(),
        "test_images": len(images),
        "networks": {},
    }
    entrants = {"attention": load_checkpoint(zoo_checkpoint(MODEL)), "plain CNN": network.eval()}
    for name, each in entrants.items():
        entrant = Entrant(name, each, lambda s, t, _: cross_entropy_loss(s, t))
        document["networks"][name] = {
            "parameters": sum(p.numel() for p in each.parameters()),
            "accuracy": accuracies(entrant, images, labels),
        }
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    publish(document, options.picture)


if __name__ == "__main__":
    main()
