"""Train the network for photographs on a GPU.

    python -m tools.zoo.train_photos CIFAR10_FOLDER photos.safetensors --epochs 120

SGD with Nesterov momentum 0.9 and weight decay 5e-4. The learning rate rises over the first 15 % of the steps
and falls to zero after them (Smith and Topin 2018). Images are shifted by up to 4 pixels, mirrored in every
other epoch (Jordan 2024), and a square of 8 pixels is blanked out (DeVries and Taylor 2017); the labels are
smoothed by 0.1 (Szegedy et al. 2016). The stem runs in BF16, the capsules in FP32, their votes in TF32. The
last epoch's weights are kept; the test images are not used for any choice.
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
from capsedge.models.checkpoint import save_checkpoint
from capsedge.models.ops.registration import compiled

MODEL = "photos"
BATCH, RATE, WARM = 256, 0.2, 0.15
SHIFT, SIDE, HOLE, SMOOTHING = 4, 32, 8, 0.1


class BFloat16(nn.Module):
    """A part of a network that computes in BF16 where that loses nothing (autocast), and returns FP32."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor) -> Tensor:
        """``[N, C, H, W]`` to the body's output."""
        # With a cached BF16 copy of the weights, the graph would replay those of the first step.
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
            features: Tensor = self.body(images)
        return features.float()


def scores(network: nn.Module, images: Tensor) -> Tensor:
    """The scores ``[N, J]`` of a capsule network or a plain one."""
    found = network(images)
    result: Tensor = found if isinstance(found, Tensor) else found.scores
    return result


def augmented(images: Tensor, mirrored: Tensor) -> Tensor:
    """Shift each image, padding with zeros; mirror those marked in ``mirrored``; and blank out a square.

    Args:
        images: ``[N, 3, 32, 32]``.
        mirrored: which images to mirror, ``[N]``.
    """
    n, device = len(images), images.device
    padded = nn.functional.pad(images, (SHIFT,) * 4)
    start = torch.randint(0, 2 * SHIFT + 1, (2, n, 1), device=device)
    rows, columns = start + torch.arange(SIDE, device=device)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    batch, channels = torch.arange(n, device=device), torch.arange(3, device=device)
    moved = padded[
        batch[:, None, None, None], channels[None, :, None, None],
        rows[:, None, :, None], columns[:, None, None, :],
    ]  # fmt: skip
    centre = torch.randint(0, SIDE, (2, n, 1), device=device)
    near = (torch.arange(SIDE, device=device) - centre + HOLE // 2) // HOLE == 0
    return moved.masked_fill((near[0][:, :, None] & near[1][:, None, :])[:, None], 0)


def rate(done: float) -> float:
    """The share of the peak learning rate after a share of the steps: up, then down."""
    return max(0.0, min(done / WARM, (1 - done) / (1 - WARM)))


class Step:
    """Forward and backward of one batch, recorded as a CUDA graph on a GPU; the optimizer runs after it.

    Args:
        network: the network, in training mode and on the device it is to run on.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        device = next(network.parameters()).device
        images = torch.rand(BATCH, 3, SIDE, SIDE, device=device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.zeros(BATCH, dtype=torch.long, device=device)
        self._network, self._optimizer = network, optimizer
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._record()

    def _record(self) -> None:
        state = {name: tensor.clone() for name, tensor in self._network.state_dict().items()}
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._forward_backward()
                self._optimizer.zero_grad()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.loss = self._forward_backward()
        self._network.load_state_dict(state)  # restores the statistics of batch normalization

    def _forward_backward(self) -> Tensor:
        with compiled():
            found = scores(self._network, self.images)
        loss = nn.functional.cross_entropy(found, self.labels, label_smoothing=SMOOTHING)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        self.images.copy_(images)
        self.labels.copy_(labels)
        if self._graph is None:
            self._optimizer.zero_grad()
            self.loss = self._forward_backward()
        else:
            self._graph.replay()
        return self.loss.detach()


def train(
    network: nn.Module, images: Tensor, labels: Tensor, epochs: int, seed: int
) -> list[dict[str, Any]]:
    """Train a network and print a line every ten epochs.

    Args:
        network: the network, on the device it is to be trained on.
        images: normalized images ``[N, 3, 32, 32]``, on the same device.
        labels: ``[N]``.

    Returns:
        The loss and the seconds since the first step, for every epoch.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    step, steps = Step(network, optimizer), len(images) // BATCH
    torch.manual_seed(seed)
    parity = torch.rand(len(images), device=images.device) < 0.5
    history: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(images), device=images.device)[: steps * BATCH]
        total = torch.zeros((), device=images.device)
        for index, chosen in enumerate(order.view(steps, BATCH)):
            for group in optimizer.param_groups:
                group["lr"] = RATE * rate((epoch * steps + index + 1) / (epochs * steps))
            batch = augmented(images[chosen], parity[chosen] ^ bool(epoch % 2))
            total += step(batch, labels[chosen])
            optimizer.step()
        seconds = round(time.perf_counter() - begin, 1)
        history.append({"loss": round(float(total) / steps, 4), "seconds": seconds})
        if (epoch + 1) % 10 == 0 or epoch + 1 == epochs:
            print(json.dumps({"epoch": epoch + 1, **history[-1]}), file=sys.stderr, flush=True)
    network.eval()
    return history


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of correct answers."""
    found = [scores(network, part).argmax(1) for part in images.split(1000)]
    return float((torch.cat(found) == labels).float().mean())


def load(data: Path, split: str, device: str) -> tuple[Tensor, Tensor]:
    """Load CIFAR-10's images, normalized, and their labels onto a device."""
    rule = get_config(MODEL).preprocessing
    mean, std = (torch.tensor(x, device=device)[:, None, None] for x in (rule.mean, rule.std))
    found = read_split(data, split, rule)
    pixels = torch.from_numpy(found.images).to(device).movedim(3, 1).float()
    return (pixels / 255 - mean) / std, torch.from_numpy(found.classes).long().to(device)


def main() -> None:
    """Write the checkpoint and its history."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    network = build(MODEL)
    body, network.stem = network.stem, BFloat16(network.stem)  # type: ignore[assignment]
    network.to(options.device)
    images, labels = load(options.data, "train", options.device)
    history = train(network, images, labels, options.epochs, options.seed)
    network.stem = body
    found = accuracy(network, *load(options.data, "test", options.device))
    print(f"{100 * found:.2f} % of the test images", file=sys.stderr)
    save_checkpoint(network.cpu(), options.output)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "a processor"
    recipe = {
        "epochs": options.epochs, "seed": options.seed, "device": device,
        "torch": torch.__version__,
    }  # fmt: skip
    document = {"recipe": recipe, "test_accuracy": found, "history": history}
    options.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
