"""Train a network: losses, recipes, schedules, resumable runs."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, relu
from torch.overrides import TorchFunctionMode

from capsedge.datasets import ImageSet
from capsedge.errors import EnvironmentProblem, ParityError, UsageError
from capsedge.models import CapsuleModel, CapsuleOutput, build
from capsedge.models.checkpoint import save_checkpoint
from capsedge.models.configs import ModelConfig
from capsedge.models.ops.registration import compiled
from capsedge.models.training import augment
from capsedge.models.training.device import check_device, on_cpu
from capsedge.models.training.evaluate import (
    centre,
    count_correct,
    normalize,
    to_input,
    typical_input_of_training,
)
from capsedge.models.training.recipe import TRAINING_KEY, Recipe
from capsedge.models.training.run_files import HISTORY, MODEL, STATE, files
from capsedge.models.training.state import fill, read_state
from capsedge.models.training.transfer import shared_weights
from capsedge.runtime.files import reading
from capsedge.runtime.files.json_documents import dump
from capsedge.runtime.files.writing import check_writable, make_folder, write_bytes, write_text
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.training_split import TRAINING_SPLIT_KEY, TrainingSplit
from capsedge.runtime.typical_input import TYPICAL_INPUT_KEY, TypicalInput

# --- Losses of the three papers: scores ``[N, J]``, targets 0 or 1 ``[N, J]`` ---


def margin_loss(lengths: Tensor, targets: Tensor) -> Tensor:
    """Margin loss with m+ = 0.9, m- = 0.1, λ = 0.5, mean over the batch.

    Source: Sabour, Frosst, Hinton 2017, equation 4.
    """
    present = targets * relu(0.9 - lengths).square()
    absent = 0.5 * (1 - targets) * relu(lengths - 0.1).square()
    return (present + absent).sum(1).mean()


def spread_loss(activations: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Spread loss of the one true class against each other class, mean over the batch.

    Args:
        activations: ``[N, J]`` in [0, 1].
        targets: one-hot ``[N, J]``.
        margin: grows from 0.2 to 0.9 in training.

    Source: Hinton, Sabour, Frosst 2018, equation 3.
    """
    true = (activations * targets).sum(1, keepdim=True)
    gap = relu(margin - (true - activations)).square()
    return (gap * (1 - targets)).sum(1).mean()


def cross_entropy_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over the classes for one label, per class for several (Tsai et al. 2020)."""
    if bool((targets.sum(1) == 1).all()):
        return -(log_softmax(logits, 1) * targets).sum(1).mean()
    return binary_cross_entropy_with_logits(logits, targets)


def reconstruction_loss(pictures: Tensor, images: Tensor) -> Tensor:
    """Sum of squared differences per image, mean over the batch, to be scaled by 0.0005.

    Source: Sabour, Frosst, Hinton 2017, section 4.1.
    """
    return torch.square(pictures - images).flatten(1).sum(1).mean()


# --- ``Recipe.fast``: convolutions in BF16, compiled routing ---


class BFloat16Convolutions(TorchFunctionMode):
    """Within this context, ``conv2d`` multiplies in BF16 and sums in FP32; everything else stays in FP32.

    Weights, gradients and the optimizer's state stay in FP32, as with autocast, and so do the capsules:
    lengths and couplings would lose the digits that agreement needs.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See ``TorchFunctionMode``."""
        if function is torch.conv2d or function is torch.nn.functional.conv2d:
            named = {name: _half(value) for name, value in (kwargs or {}).items()}
            return function(*map(_half, args), **named).float()
        return function(*args, **(kwargs or {}))


def _half(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    if x.ndim == 4:  # the CPU's BF16 convolutions take channels-last input without a copy
        return x.to(torch.bfloat16, memory_format=torch.channels_last)
    return x.to(torch.bfloat16)


@contextmanager
def fast_math(on: bool) -> Iterator[None]:
    """Within this context, training steps use the fast arithmetic; nothing changes unless ``on``.

    On a GPU, votes are also computed in TF32.

    Raises:
        EnvironmentProblem: there is no C++ compiler.
    """
    if not on:
        yield
        return
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise EnvironmentProblem(
            "No C++ compiler was found.",
            "--fast compiles the routing for this machine.",
            "Install g++, or leave out --fast.",
        )
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    try:
        with BFloat16Convolutions(), compiled():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# --- The training loop ---


def _loss(model: CapsuleModel, out: CapsuleOutput, targets: Tensor, progress: float) -> Tensor:
    if model.score_name == "logits":
        return cross_entropy_loss(out.scores, targets)
    if model.config.routing == "em":
        return spread_loss(out.scores, targets, min(0.2 + 0.7 * 2 * progress, 0.9))
    return margin_loss(out.scores, targets)


def _optimizer(
    model: nn.Module, recipe: Recipe, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    total = steps * recipe.epochs
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    if recipe.schedule == "multistep":
        optimizer = torch.optim.SGD(
            model.parameters(), recipe.learning_rate, momentum=0.9, weight_decay=5e-4
        )
        scheduler = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, [total * 3 // 7, total * 5 // 7]
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate)
        if recipe.schedule == "exponential":
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.96 ** (1 / 2000))
        else:
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total)
    return optimizer, scheduler


def _moving_average(model: nn.Module, average: nn.Module, decay: float) -> None:
    for theirs, ours in zip(
        average.state_dict().values(), model.state_dict().values(), strict=True
    ):
        if theirs.dtype.is_floating_point:
            theirs.lerp_(ours, 1 - decay)
        else:
            theirs.copy_(ours)


def train(
    config: ModelConfig,
    recipe: Recipe,
    data: ImageSet,
    test: ImageSet | None,
    folder: Path,
    *,
    initial: CapsuleModel | None = None,
    resume: bool = False,
    training_split: TrainingSplit | None = None,
    device: str = "cpu",
    progress: Progress = silent,
    epoch_done: Callable[[dict[str, Any]], None] | None = None,
) -> CapsuleModel:
    """Train a model; after every epoch, ``folder`` holds everything needed to continue.

    Writes ``last.pt`` (for ``resume``), and from it ``model.safetensors`` (the result) and ``history.jsonl``
    (one line per epoch). A resumed run produces the same files as an uninterrupted one, wherever it stopped:
    the order and augmentation of an epoch depend only on the seed and the epoch.

    The result has the weights of the last epoch or, with validation images, of the most accurate one (the
    latest if several are equally accurate).

    Args:
        test: images that are not trained on, for measuring accuracy after every epoch; without them, the
            training images are used. If their split is ``validation``, they choose the epoch that is kept.
        initial: a trained model of the same architecture, whose fitting weights (`shared_weights`) are the
            start; random weights by default.
        training_split: the rule by which images were held out from ``data``, for the checkpoint.
        device: the device for augmentation and the network, ``cpu`` or ``cuda``.

    Raises:
        ParityError: the loss or the weights are not finite.
        UsageError: images or the initial model do not fit, the folder cannot be written, or it holds a run
            and ``resume`` is off.
        ArtefactError: the run to resume is damaged or has another configuration.
        EnvironmentProblem: there is no such device; or the disk is full (earlier epochs are kept).
    """
    check_device(device)
    if data.classes.max(initial=0) >= config.classes:
        raise UsageError(
            f"The data has class {data.classes.max()}.", f"The model has {config.classes} classes."
        )
    begun = reading.path_kind(folder / STATE) is not None
    if begun and not resume:
        raise UsageError(
            f"{folder} already holds a run.",
            "",
            "Add --resume to continue it, or choose another folder.",
        )
    side = min(data.images.shape[1:3])
    if recipe.shift >= side and recipe.pairs == "none":
        raise UsageError(
            f"A shift of {recipe.shift} pixels moves whole images out of sight.",
            f"Their shorter side has {side} pixels.",
            "Use a smaller --shift, such as 2.",
        )
    steps = len(data) // recipe.batch
    if steps == 0:
        raise UsageError(
            f"{len(data)} images are too few for a batch of {recipe.batch}.", "", "Lower --batch."
        )
    measured = recipe.pairs != "none" or config.task == "single-label"
    chooses = measured and test is not None and test.split == "validation"
    run = _Run.new(config, recipe, folder, steps, initial, chooses, device)
    run.images = " ".join(each.digest() for each in (data, test) if each is not None)
    run.typical_input = typical_input_of_training(data, config, recipe.pairs)
    run.training_split = training_split
    make_folder(folder)
    for file in files(folder):
        check_writable(file)
    if begun:
        run.restore()
        run.write_results()  # the run may have ended before writing them
    started = time.monotonic()
    for epoch in range(len(run.history), recipe.epochs):
        if run.exhausted:
            break
        line: dict[str, Any] = {
            "epoch": epoch + 1,
            "loss": run.train_epoch(epoch, data, progress),
            "seconds": round(time.monotonic() - started, 1),
        }
        if measured:
            right = count_correct(run.average, data if test is None else test, recipe.pairs)
            which = "training" if test is None else test.split or "test"
            line[f"{which}_accuracy"] = float(right.float().mean())
            line[f"{which}_images"] = len(right)
        run.history.append(line)
        run.keep_best()
        run.save()
        run.write_results()
        if epoch_done:
            epoch_done(line)
    return run.result.cpu().eval()


@dataclass
class _Run:
    """A run: everything that has a state, and the folder that stores it.

    Attributes:
        steps: steps per epoch.
        average: the moving average of the model's weights; the model itself if there is none.
        best: the average after the epoch that was most accurate on the validation images; None without them.
        history: one line per epoch done.
        images: digest of the training and validation images.
        typical_input: the properties of the training images; None if they are not conclusive.
        training_split: the rule by which images were held out; None if the data states its splits.
    """

    config: ModelConfig
    recipe: Recipe
    folder: Path
    steps: int
    model: CapsuleModel
    average: CapsuleModel
    best: CapsuleModel | None
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    history: list[dict[str, Any]]
    images: str = ""
    typical_input: TypicalInput | None = None
    training_split: TrainingSplit | None = None

    @classmethod
    def new(
        cls,
        config: ModelConfig,
        recipe: Recipe,
        folder: Path,
        steps: int,
        initial: CapsuleModel | None,
        chooses: bool,
        device: str,
    ) -> _Run:
        """A run before its first step; ``chooses`` says whether there are validation images.

        Raises:
            UsageError: the initial model has another architecture.
        """
        torch.manual_seed(recipe.seed)
        model = build(config)
        if initial is not None:
            model.load_state_dict(shared_weights(config, initial), strict=False)
        model.to(device)
        average = copy.deepcopy(model) if recipe.average else model
        best = copy.deepcopy(average) if chooses else None
        optimizer, scheduler = _optimizer(model, recipe, steps)
        return cls(config, recipe, folder, steps, model, average, best, optimizer, scheduler, [])

    @property
    def result(self) -> CapsuleModel:
        """The resulting network of the run."""
        return self.average if self.best is None else self.best

    @property
    def kept(self) -> int:
        """Index of the epoch whose weights become the result."""
        if self.best is None:
            return len(self.history) - 1
        return max(
            range(len(self.history)), key=lambda k: (self.history[k]["validation_accuracy"], k)
        )

    @property
    def exhausted(self) -> bool:
        """Whether the validation images have shown no better epoch for as long as the recipe waits."""
        if self.best is None or not self.recipe.patience or not self.history:
            return False
        accuracies = [line["validation_accuracy"] for line in self.history]
        return len(accuracies) > self.recipe.patience + accuracies.index(max(accuracies))

    def keep_best(self) -> None:
        """After an epoch, keep its weights if it is the best one so far."""
        if self.best is not None and self.kept == len(self.history) - 1:
            self.best.load_state_dict(self.average.state_dict())

    @property
    def identity(self) -> str:
        """The settings that must stay the same when a run continues."""
        recipe = asdict(self.recipe)
        for added in ("fast", "patience"):  # runs from before this setting can continue
            if not recipe[added]:
                del recipe[added]
        return json.dumps([self.config.to_dict(), recipe], sort_keys=True)

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that has a state, by its name in ``last.pt``."""
        return _parts(self.model, self.average, self.best, self.optimizer, self.scheduler)

    def restore(self) -> None:
        """Continue from ``last.pt``.

        Raises:
            ArtefactError: it is damaged or of another configuration.
        """
        like = copy.deepcopy(self.model)
        probe = _optimizer(like, self.recipe, self.steps)
        fill(*probe)
        parts = _parts(like, self.average, self.best, *probe)
        expected = {n: p.state_dict() for n, p in parts.items()}
        state = read_state(
            self.folder / STATE, self.identity, self.images, expected, self.recipe.epochs,
            self.steps,
        )  # fmt: skip
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.history = state["history"]

    def save(self) -> None:
        """Write ``last.pt``."""
        state = {n: on_cpu(p.state_dict()) for n, p in self.parts.items()}
        state |= {
            "identity": self.identity, "images": self.images, "history": json.dumps(self.history),
        }  # fmt: skip
        # Write via memory, because torch reports a full disk as an internal error.
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(self.folder / STATE, buffer.getbuffer())

    def write_results(self) -> None:
        """Write ``model.safetensors`` and ``history.jsonl``."""
        reached = _without_time(self.history[self.kept])
        training = {"recipe": asdict(self.recipe), "last": reached}
        extra = {TRAINING_KEY: dump(training)}
        if self.typical_input is not None:
            extra[TYPICAL_INPUT_KEY] = dump(self.typical_input.to_dict())
        if self.training_split is not None:
            extra[TRAINING_SPLIT_KEY] = dump(self.training_split.to_dict())
        save_checkpoint(self.result, self.folder / MODEL, extra)
        write_text(self.folder / HISTORY, "".join(json.dumps(x) + "\n" for x in self.history))

    def train_epoch(self, epoch: int, data: ImageSet, progress: Progress) -> float:
        """Make one pass over the data; returns the mean loss."""
        recipe, steps = self.recipe, self.steps
        labels = torch.as_tensor(data.classes)
        device = next(self.model.parameters()).device
        rng = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
        order = torch.randperm(len(data), generator=rng)
        self.model.train()
        total = 0.0
        for step in range(steps):
            index = order[step * recipe.batch : (step + 1) * recipe.batch]
            done = epoch * steps + step
            with fast_math(recipe.fast):
                images = torch.from_numpy(data.images[index.numpy()]).to(device)
                loss = batch_loss(
                    self.model,
                    to_input(images, self.config),
                    labels[index],
                    recipe,
                    rng,
                    done / (recipe.epochs * steps),
                )
            if not math.isfinite(loss.item()):
                raise self._diverged(epoch, f"The loss is {loss.item():g} in step {step + 1}.")
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.scheduler.step()
            if recipe.average:
                # Average over few steps at first; otherwise the initial weights would linger.
                decay = min(recipe.average, (1 + done) / (10 + done))
                _moving_average(self.model, self.average, decay)
            total += loss.item()
            progress("training", done + 1, recipe.epochs * steps)
        for name, value in self.average.state_dict().items():
            if not bool(value.isfinite().all()):
                raise self._diverged(epoch, f"Weights of {name} are not finite.")
        return total / steps

    def _diverged(self, epoch: int, why: str) -> ParityError:
        """The error of a run that no further step can save; the epochs before stay on disk."""
        return ParityError(
            f"Training diverged in epoch {epoch + 1}.",
            why,
            f"Use a learning rate below {self.recipe.learning_rate:g} in a new folder, or check the images.",
            command=f"Use an --lr below {self.recipe.learning_rate:g} and a new folder, or check the images.",
        )


def _parts(
    model: nn.Module,
    average: nn.Module,
    best: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
) -> dict[str, Any]:
    parts = {"model": model, "average": average, "optimizer": optimizer, "scheduler": scheduler}
    return parts if best is None else {**parts, "best": best}


def _without_time(line: dict[str, Any]) -> dict[str, Any]:
    """An epoch's line without machine-dependent values, so that equal runs make equal files."""
    return {name: value for name, value in line.items() if name != "seconds"}


def batch_loss(
    model: CapsuleModel,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    rng: torch.Generator,
    progress: float,
) -> Tensor:
    config = model.config
    if recipe.pairs == "none":
        x = centre(images, config)
        if images.shape[2] > x.shape[2] and not (recipe.rotate or recipe.zoom):
            # Crop from a larger image, so that shifts bring in real pixels instead of zeros.
            x = centre(augment.shift(images, recipe.shift, rng), config)
        elif recipe.rotate or recipe.zoom:
            x = augment.affine(
                x,
                (x.shape[2], x.shape[3]),
                rng,
                shift_limit=recipe.shift,
                degrees=recipe.rotate,
                scales=(1 - recipe.zoom, 1 + recipe.zoom),
            )
        else:
            x = augment.shift(x, recipe.shift, rng)
        pictures, owners = x.unsqueeze(1), labels.unsqueeze(1)
    else:
        size = (config.preprocessing.height, config.preprocessing.width)
        x, owners, pictures = augment.overlap(
            images, labels, size, rng, diverse=recipe.pairs == "diverse"
        )
    if recipe.flip:
        x = augment.flip(x, rng)
        pictures = x.unsqueeze(1)
    owners = owners.to(x.device)
    targets = torch.zeros(len(x), config.classes, device=x.device).scatter_(1, owners, 1.0)
    out = model(normalize(x, config))
    loss = _loss(model, out, targets, progress)
    if model.decoder is not None:
        for k in range(owners.shape[1]):
            decoded = model.reconstruct_class(out.poses, owners[:, k])
            loss = loss + 0.0005 * reconstruction_loss(decoded, pictures[:, k])
    return loss
