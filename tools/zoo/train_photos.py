"""Train the network for photographs on a GPU, with each step recorded once as a CUDA graph.

    python -m tools.zoo.train_photos CIFAR10_FOLDER photos.safetensors --epochs 120
    python -m tools.zoo.train_photos CIFAR10_FOLDER photos.safetensors --seconds 250

SGD with Nesterov momentum 0.9 and weight decay 5e-4; the learning rate rises over the first 15 % of the steps
and falls to zero after them (Smith and Topin 2018). Images are shifted by up to 4 pixels and mirrored, and a
square of 8 pixels is blanked out (DeVries and Taylor 2017); the labels are smoothed by 0.1 (Szegedy et al.
2016). The last epoch's weights are kept; the test images choose nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsedge.datasets import read_split
from capsedge.models import build, get_config
from capsedge.models.base import CapsuleModel
from capsedge.models.checkpoint import save_checkpoint

MODEL = "attention-cifar10-small"
BATCH, RATE, WARM = 256, 0.2, 0.15
SHIFT, SIDE, HOLE, SMOOTHING = 4, 32, 8, 0.1


def augmented(images: Tensor) -> Tensor:
    """Each image of the batch shifted, zeros coming in, half of them mirrored, and with a square of zeros."""
    n, device = len(images), images.device
    padded = nn.functional.pad(images, (SHIFT,) * 4)
    start = torch.randint(0, 2 * SHIFT + 1, (2, n, 1), device=device)
    rows, columns = start + torch.arange(SIDE, device=device)
    mirrored = torch.rand(n, 1, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    batch, channels = torch.arange(n, device=device), torch.arange(3, device=device)
    moved = padded[
        batch[:, None, None, None], channels[None, :, None, None],
        rows[:, None, :, None], columns[:, None, None, :],
    ]  # fmt: skip
    centre = torch.randint(0, SIDE, (2, n, 1), device=device)
    near = (torch.arange(SIDE, device=device) - centre + HOLE // 2) // HOLE == 0
    return moved.masked_fill((near[0][:, :, None] & near[1][:, None, :])[:, None], 0)


def rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up, then down."""
    done = (step + 1) / steps
    return max(0.0, min(done / WARM, (1 - done) / (1 - WARM)))


class Step:
    """Forward and backward of one batch, recorded; the optimizer runs after it.

    Args:
        network: on the GPU, in training.
    """

    def __init__(self, network: CapsuleModel, optimizer: torch.optim.Optimizer) -> None:
        self.images = torch.rand(BATCH, 3, SIDE, SIDE, device="cuda")
        self.labels = torch.zeros(BATCH, dtype=torch.long, device="cuda")
        state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._forward_backward(network)
                optimizer.zero_grad()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.loss = self._forward_backward(network)
        network.load_state_dict(state)  # the statistics of batch normalization as they were

    def _forward_backward(self, network: CapsuleModel) -> Tensor:
        scores = network(self.images).scores
        loss = nn.functional.cross_entropy(scores, self.labels, label_smoothing=SMOOTHING)
        loss.backward()
        return loss

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        self.images.copy_(images)
        self.labels.copy_(labels)
        self._graph.replay()
        return self.loss


@torch.no_grad()
def accuracy(network: CapsuleModel, images: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    network.eval()
    found = [network(part).scores.argmax(1) for part in images.split(1000)]
    network.train()
    return float((torch.cat(found) == labels).float().mean())


def main() -> None:
    """Print a line for every ten epochs; write the checkpoint and its history."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seconds", type=float, help="as many epochs as fit, instead")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    config = get_config(MODEL)
    rule = config.preprocessing
    mean, std = (torch.tensor(x, device="cuda")[:, None, None] for x in (rule.mean, rule.std))

    def load(split: str) -> tuple[Tensor, Tensor]:
        found = read_split(options.data, split, rule)
        pixels = torch.from_numpy(found.images).cuda().movedim(3, 1).float()
        return (pixels / 255 - mean) / std, torch.from_numpy(found.classes).long().cuda()

    images, labels = load("train")
    test = load("test")
    network = build(config).cuda().train()
    optimizer = torch.optim.SGD(
        network.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    step, steps = Step(network, optimizer), len(images) // BATCH
    epochs = options.epochs
    if options.seconds:
        begin, tried = time.perf_counter(), 50
        for _ in range(tried):
            step(augmented(images[:BATCH]), labels[:BATCH])
        torch.cuda.synchronize()
        one = 1.15 * (time.perf_counter() - begin) / tried * steps
        epochs = max(1, int(options.seconds / one))
        print(f"{one:.2f} s per epoch: {epochs} epochs", file=sys.stderr)
        torch.manual_seed(options.seed)
        network.load_state_dict(build(config).state_dict())  # from the seed, as without --seconds
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: rate(at, epochs * steps))
    history: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(images), device="cuda")[: steps * BATCH].view(steps, BATCH)
        total = torch.zeros((), device="cuda")
        for index in order:
            total += step(augmented(images[index]), labels[index])
            optimizer.step()
            schedule.step()
        line: dict[str, Any] = {"epoch": epoch + 1, "loss": float(total.detach()) / steps}
        if (epoch + 1) % 10 == 0 or epoch + 1 == epochs:
            line["test_accuracy"] = accuracy(network, *test)
            print(json.dumps(line), f"{time.perf_counter() - begin:.0f} s", file=sys.stderr)
        history.append(line)
    training = {"epochs": epochs, "seed": options.seed, "batch": BATCH, "learning_rate": RATE}
    save_checkpoint(network.cpu().eval(), options.output)
    document = {"recipe": training, "gpu": torch.cuda.get_device_name(), "history": history}
    options.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
