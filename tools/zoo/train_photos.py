"""Train the network for photographs on a processor, one process per core.

    python -m tools.zoo.train_photos CIFAR10_FOLDER photos.safetensors --minutes 100

SGD with Nesterov momentum 0.9 and weight decay 5e-4. The learning rate rises over the first 15 % of the time
and falls to zero after them (Smith and Topin 2018); it follows the clock, so that a run ends when it should,
however busy the machine is. Images are shifted by up to 4 pixels, mirrored in every other epoch (Jordan
2024), and a square of 8 pixels is blanked out (DeVries and Taylor 2017); the labels are smoothed by 0.1
(Szegedy et al. 2016). The stem runs in BF16, the capsules in FP32. The last epoch's weights are kept; the
test images choose nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing, nn

from capsedge.datasets import read_split
from capsedge.models import build, get_config
from capsedge.models.base import CapsuleModel
from capsedge.models.checkpoint import load_checkpoint, save_checkpoint
from capsedge.models.training.train import compiled

MODEL = "photos"
BATCH, RATE, WARM = 128, 0.2, 0.15  # images per process, and the peak for two processes
SHIFT, SIDE, HOLE, SMOOTHING = 4, 32, 8, 0.1
SAVED = 5  # epochs from one checkpoint to the next


class BFloat16Stem(nn.Module):
    """A stem that computes in BF16 where that loses nothing (autocast), and gives FP32."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, C', H', W']``."""
        with torch.autocast("cpu", torch.bfloat16):
            features: Tensor = self.body(images)
        return features.float()


def augmented(images: Tensor, mirrored: Tensor) -> Tensor:
    """Each image shifted, zeros coming in, ``mirrored`` where that says so, and with a square of zeros.

    Args:
        images: ``[N, 3, 32, 32]``.
        mirrored: ``[N]``.
    """
    n = len(images)
    padded = nn.functional.pad(images, (SHIFT,) * 4)
    start = torch.randint(0, 2 * SHIFT + 1, (2, n, 1))
    rows, columns = start + torch.arange(SIDE)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    batch, channels = torch.arange(n), torch.arange(3)
    moved = padded[
        batch[:, None, None, None], channels[None, :, None, None],
        rows[:, None, :, None], columns[:, None, None, :],
    ]  # fmt: skip
    centre = torch.randint(0, SIDE, (2, n, 1))
    near = (torch.arange(SIDE) - centre + HOLE // 2) // HOLE == 0
    return moved.masked_fill((near[0][:, :, None] & near[1][:, None, :])[:, None], 0)


def rate(done: float) -> float:
    """The share of the peak learning rate after a share of the time: up, then down."""
    return max(0.0, min(done / WARM, (1 - done) / (1 - WARM)))


@torch.no_grad()
def accuracy(network: CapsuleModel, images: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    found = [network(part).scores.argmax(1) for part in images.split(500)]
    return float((torch.cat(found) == labels).float().mean())


def save(network: CapsuleModel, output: Path) -> None:
    """Write the weights under the names that the network has without training's wrappers."""
    plain = build(network.config)
    plain.load_state_dict(
        {name.replace("stem.body.", "stem."): value for name, value in network.state_dict().items()}
    )
    save_checkpoint(plain.eval(), output)


def train(rank: int, processes: int, data: Path, output: Path, minutes: float, seed: int) -> None:
    """One of the processes; the first prints a line per epoch, and writes checkpoint and history."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    distributed.init_process_group("gloo", rank=rank, world_size=processes)
    config = get_config(MODEL)
    rule = config.preprocessing
    mean, std = (torch.tensor(value)[:, None, None] for value in (rule.mean, rule.std))

    def load(split: str) -> tuple[Tensor, Tensor]:
        found = read_split(data, split, rule)
        pixels = torch.from_numpy(found.images).movedim(3, 1).float()
        return (pixels / 255 - mean) / std, torch.from_numpy(found.classes).long()

    images, labels = load("train")
    test = load("test")
    torch.manual_seed(seed)
    network = build(config).train()
    network.stem = BFloat16Stem(network.stem)
    parallel = nn.parallel.DistributedDataParallel(network.to(memory_format=torch.channels_last))
    peak = RATE * processes * BATCH / 256
    optimizer = torch.optim.SGD(
        network.parameters(), peak, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    order = torch.Generator().manual_seed(seed)  # the same in every process
    torch.manual_seed(seed * 1000 + rank)  # augmentation: another in each
    parity = torch.rand(len(images), generator=order) < 0.5
    steps = len(images) // (BATCH * processes)
    history: list[dict[str, Any]] = []
    begin = time.monotonic()
    clock = torch.zeros(1)  # the share of the time that has passed, as the first process sees it
    while clock < 1:
        indices = torch.randperm(len(images), generator=order)[: steps * BATCH * processes]
        losses: list[float] = []
        for chosen in indices.view(steps, processes, BATCH)[:, rank]:
            clock[0] = (time.monotonic() - begin) / (60 * minutes)
            distributed.broadcast(clock, 0)
            for group in optimizer.param_groups:
                group["lr"] = peak * rate(float(clock))
            batch = augmented(images[chosen], parity[chosen] ^ bool(len(history) % 2))
            with compiled():
                scores = parallel(batch.contiguous(memory_format=torch.channels_last)).scores
            loss = nn.functional.cross_entropy(scores, labels[chosen], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if clock >= 1:
                break
        loss_of_epoch = round(sum(losses) / len(losses), 4)
        history.append({"loss": loss_of_epoch, "minutes": round(float(clock) * minutes, 1)})
        if rank == 0:
            print(json.dumps({"epoch": len(history), **history[-1]}), file=sys.stderr, flush=True)
            if len(history) % SAVED == 0 or clock >= 1:
                save(network, output)
    if rank == 0:
        found = accuracy(load_checkpoint(output), *test)
        print(f"{100 * found:.2f} % of the test images in FP32", file=sys.stderr)
        recipe = {"epochs": len(history), "minutes": minutes, "processes": processes, "seed": seed}
        document = {"recipe": recipe, "test_accuracy": found, "history": history}
        output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    distributed.destroy_process_group()


def main() -> None:
    """Print a line per epoch; write the checkpoint and its history."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    arguments = (options.processes, options.data, options.output, options.minutes, options.seed)
    multiprocessing.spawn(train, arguments, options.processes)


if __name__ == "__main__":
    main()
