"""Train a network for the epochs of a recipe, in a run that can be resumed."""

from __future__ import annotations

import copy
import io
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsedge.datasets import ImageSet
from capsedge.errors import EnvironmentProblem, ParityError, UsageError
from capsedge.models import CapsuleModel, build
from capsedge.models.checkpoint import save_checkpoint
from capsedge.models.configs import ModelConfig
from capsedge.models.training import mask_training
from capsedge.models.training.evaluate import count_correct, to_input, typical_input_of_training
from capsedge.models.training.losses import batch_loss, fast_math
from capsedge.models.training.recipe import HISTORY, MODEL, STATE, TRAINING_KEY, Recipe, run_files
from capsedge.models.training.state import fill, read_state, transferable_weights
from capsedge.runtime.files import reading
from capsedge.runtime.files.documents import dump
from capsedge.runtime.files.writing import check_writable, make_folder, write_bytes, write_text
from capsedge.runtime.metadata.origin import TRAINING_SPLIT_KEY, TrainingSplit
from capsedge.runtime.metadata.typical_input import TYPICAL_INPUT_KEY, TypicalInput
from capsedge.runtime.progress import Progress, silent
from capsedge.spec.vocabularies import SEGMENTATION

# --- The training loop ---


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
        initial: a trained model of the same architecture; its weights that fit (`transferable_weights`) are
            the start; random weights by default.
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
    job = _EpochsJob(config, recipe, data, test, folder, training_split)
    begun = _check(job, resume)
    run = _TrainingRun.new(job, initial, device)
    make_folder(folder)
    for file in run_files(folder):
        check_writable(file)
    if begun:
        run.restore()
        run.write_results()  # the run may have ended before writing them
    started = time.monotonic()
    for epoch in range(len(run.history), recipe.epochs):
        if run.exhausted:
            break
        line = {
            "epoch": epoch + 1,
            "loss": run.train_epoch(epoch, progress),
            "seconds": round(time.monotonic() - started, 1),
            **_measured(job, run.average),
        }
        run.history.append(line)
        run.keep_best()
        run.save()
        run.write_results()
        if epoch_done:
            epoch_done(line)
    return run.result.cpu().eval()


@dataclass(frozen=True)
class _EpochsJob:
    """The arguments of `train` that stay the same while a run continues."""

    config: ModelConfig
    recipe: Recipe
    data: ImageSet
    test: ImageSet | None
    folder: Path
    training_split: TrainingSplit | None

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return len(self.data) // self.recipe.batch

    @property
    def measures(self) -> bool:
        """Whether the accuracy is measured after every epoch."""
        return self.recipe.pairs != "none" or self.config.task in ("single-label", SEGMENTATION)

    @property
    def measure(self) -> str:
        """What is measured: ``accuracy``, or ``dice`` of masks."""
        return "dice" if self.config.task == SEGMENTATION else "accuracy"

    @property
    def chooses(self) -> bool:
        """Whether validation images choose the epoch that is kept."""
        return self.measures and self.test is not None and self.test.split == "validation"

    @property
    def images(self) -> str:
        """Digest of the training and validation images."""
        sets = [each for each in (self.data, self.test) if each is not None]
        return " ".join(each.digest() for each in sets)


def _check(job: _EpochsJob, resume: bool) -> bool:
    """Refuse a job that cannot be done; returns whether its run has already begun.

    Raises:
        UsageError: images, recipe and model do not fit, or there is a run that is not to be resumed.
    """
    data, recipe, config = job.data, job.recipe, job.config
    mask_training.check(config, recipe)
    if data.masks is None and data.classes.max(initial=0) >= config.classes:
        raise UsageError(
            f"The data has class {data.classes.max()}.", f"The model has {config.classes} classes."
        )
    begun = reading.path_kind(job.folder / STATE) is not None
    if begun and not resume:
        raise UsageError(
            f"{job.folder} already holds a run.",
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
    if job.steps == 0:
        raise UsageError(
            f"{len(data)} images are too few for a batch of {recipe.batch}.", "", "Lower --batch."
        )
    return begun


def _measured(job: _EpochsJob, model: CapsuleModel) -> dict[str, Any]:
    """The accuracy after an epoch, on the images that are not trained on if there are any."""
    if not job.measures:
        return {}
    measured = job.data if job.test is None else job.test
    which = "training" if job.test is None else job.test.split or "test"
    if job.measure == "dice":
        dice = mask_training.overlap_of(model, measured).mean_dice
        return {f"{which}_dice": dice, f"{which}_images": len(measured)}
    right = count_correct(model, measured, job.recipe.pairs)
    return {f"{which}_accuracy": float(right.float().mean()), f"{which}_images": len(right)}


@dataclass
class _TrainingRun:
    """A run: everything that has a state, and the folder that stores it.

    Attributes:
        average: the moving average of the model's weights; the model itself if there is none.
        best: the average after the epoch that was most accurate on the validation images; None without them.
        typical_input: the properties of the training images; None if they are not conclusive.
        history: one line per epoch done.
    """

    job: _EpochsJob
    model: CapsuleModel
    average: CapsuleModel
    best: CapsuleModel | None
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    images: str
    typical_input: TypicalInput | None
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def new(cls, job: _EpochsJob, initial: CapsuleModel | None, device: str) -> _TrainingRun:
        """A run before its first step.

        Raises:
            UsageError: the initial model has another architecture.
        """
        config, recipe = job.config, job.recipe
        torch.manual_seed(recipe.seed)
        model = build(config)
        if initial is not None:
            model.load_state_dict(transferable_weights(config, initial), strict=False)
        model.to(device)
        average = copy.deepcopy(model) if recipe.average else model
        best = copy.deepcopy(average) if job.chooses else None
        typical = typical_input_of_training(job.data, config, recipe.pairs)
        optimizer = _optimizer(model, recipe, job.steps)
        return cls(job, model, average, best, *optimizer, job.images, typical)

    @property
    def result(self) -> CapsuleModel:
        """The resulting network of the run."""
        return self.average if self.best is None else self.best

    @property
    def kept(self) -> int:
        """Index of the epoch whose weights become the result."""
        if self.best is None:
            return len(self.history) - 1
        return max(range(len(self.history)), key=lambda k: (self.history[k][self._validated], k))

    @property
    def _validated(self) -> str:
        """The member of a line of the history that chooses the epoch."""
        return f"validation_{self.job.measure}"

    @property
    def exhausted(self) -> bool:
        """Whether the validation images have shown no better epoch for as long as the recipe waits."""
        if self.best is None or not self.job.recipe.patience or not self.history:
            return False
        accuracies = [line[self._validated] for line in self.history]
        return len(accuracies) > self.job.recipe.patience + accuracies.index(max(accuracies))

    def keep_best(self) -> None:
        """After an epoch, keep its weights if it is the best one so far."""
        if self.best is not None and self.kept == len(self.history) - 1:
            self.best.load_state_dict(self.average.state_dict())

    @property
    def identity(self) -> str:
        """The settings that must stay the same when a run continues."""
        recipe = asdict(self.job.recipe)
        for added in ("fast", "patience"):  # runs from before this setting can continue
            if not recipe[added]:
                del recipe[added]
        return json.dumps([self.job.config.to_dict(), recipe], sort_keys=True)

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
        probe = _optimizer(like, self.job.recipe, self.job.steps)
        fill(*probe)
        parts = _parts(like, self.average, self.best, *probe)
        expected = {n: p.state_dict() for n, p in parts.items()}
        state = read_state(
            self.job.folder / STATE, self.identity, self.images, expected, self.job.recipe.epochs,
            self.job.steps,
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
        write_bytes(self.job.folder / STATE, buffer.getbuffer())

    def write_results(self) -> None:
        """Write ``model.safetensors`` and ``history.jsonl``."""
        reached = _without_time(self.history[self.kept])
        training = {"recipe": asdict(self.job.recipe), "last": reached}
        extra = {TRAINING_KEY: dump(training)}
        if self.typical_input is not None:
            extra[TYPICAL_INPUT_KEY] = dump(self.typical_input.to_dict())
        if self.job.training_split is not None:
            extra[TRAINING_SPLIT_KEY] = dump(self.job.training_split.to_dict())
        save_checkpoint(self.result, self.job.folder / MODEL, extra)
        write_text(self.job.folder / HISTORY, "".join(json.dumps(x) + "\n" for x in self.history))

    def train_epoch(self, epoch: int, progress: Progress) -> float:
        """Make one pass over the data; returns the mean loss."""
        data, recipe, steps = self.job.data, self.job.recipe, self.job.steps
        labels = torch.as_tensor(mask_training.targets_of(data))
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
                x = to_input(images, self.job.config)
                if data.masks is not None:
                    loss = mask_training.mask_loss(self.model, x, labels[index], recipe, rng)
                else:
                    part = done / (recipe.epochs * steps)
                    loss = batch_loss(self.model, x, labels[index], recipe, rng, part)
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
        rate = self.job.recipe.learning_rate
        return ParityError(
            f"Training diverged in epoch {epoch + 1}.",
            why,
            f"Use a learning rate below {rate:g} in a new folder, or check the images.",
            command=f"Use an --lr below {rate:g} and a new folder, or check the images.",
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


# --- Devices ---


def check_device(device: str) -> None:
    """Raise unless the device exists.

    Raises:
        UsageError: the name is unknown.
        EnvironmentProblem: PyTorch finds no GPU.
    """
    if device not in ("cpu", "cuda"):
        raise UsageError(f"Unknown device '{device}'.", "", "Choose one of: cpu, cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentProblem(
            "PyTorch finds no GPU.",
            "It is not built for CUDA, or there is none.",
            "Leave out --device, or install PyTorch for CUDA.",
        )


def on_cpu(value: Any) -> Any:
    """A state with its tensors in main memory, so that it can be read without the device."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: on_cpu(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(each) for each in value)
    return value
