"""Prune a trained checkpoint: fewer channels, capsules and units, subject to a gate."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from capsedge.calibration.accuracy import ACCURACY, DEFAULT_MAX_DROP, DICE, Gate, Outcome
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, ParityError, UsageError
from capsedge.models import CapsuleModel
from capsedge.models.checkpoint import load_checkpoint, save_checkpoint
from capsedge.models.training.evaluate import to_input
from capsedge.models.training.losses import batch_loss
from capsedge.models.training.mask_training import mask_loss, targets_of
from capsedge.models.training.recipe import MODEL, TRAINING_KEY, Recipe, recipe_of, training_of
from capsedge.models.training.train import train
from capsedge.optimization import prune_criteria
from capsedge.optimization.prune_criteria import choose, multiply_adds, trainable_parameters
from capsedge.optimization.prune_data import Evaluator, PruningImages, read, read_test
from capsedge.optimization.prune_exact import remove_exactly
from capsedge.optimization.prune_groups import groups, keep_units
from capsedge.optimization.prune_options import PruneOptions
from capsedge.optimization.prune_report import PruningReport, Round, Size
from capsedge.options import takes_options
from capsedge.runtime.files import documents
from capsedge.runtime.files.documents import MalformedJson, changed_settings, dump
from capsedge.runtime.files.reading import path_kind
from capsedge.runtime.files.writing import (
    REJECTED,
    WEIGHTS,
    as_path,
    check_apart,
    check_writable,
    make_folder,
    sha256,
    with_suffix_appended,
    write_text,
)
from capsedge.runtime.metadata.origin import PRUNING_KEY, TRAINING_SPLIT_KEY, Pruned, pruned_of
from capsedge.runtime.metadata.typical_input import TYPICAL_INPUT_KEY
from capsedge.runtime.progress import Progress, silent
from capsedge.spec.vocabularies import SEGMENTATION

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import PruneKeywords

# --- The work folder: one training run per round, so that a run can be resumed ---

WORK = ".pruning"  # suffix after the name of the output
START = "pruned.safetensors"  # checkpoint of a round, before fine-tuning
_SETTINGS = "settings.json"


def open_work(folder: Path, settings: str, resume: bool) -> None:
    """Begin or continue a run in the folder."""
    place = folder / _SETTINGS
    if path_kind(place) is None:
        make_folder(folder)
        write_text(place, settings)
        return
    if not resume:
        raise UsageError(
            f"{folder} holds an unfinished pruning run.",
            "",
            "Add --resume to continue it, or remove the folder.",
        )
    try:
        changed = changed_settings(documents.read(place), json.loads(settings))
    except MalformedJson as error:
        raise ArtefactError(f"{place} is damaged.", f"{error}.", "Remove the folder.") from error
    if changed:
        raise ArtefactError(
            f"{folder} belongs to another checkpoint or other settings.",
            f"Different from this run: {changed}.",
            "Use the original settings, or remove the folder.",
        )


# --- ``capsedge.prune`` ---

EXACT = "exact"
_LARGEST_STEP = 2.0  # reduction of the multiply-adds per round
_SEARCH_STEP = 1.4  # the same if no speedup is requested
_MOST_ROUNDS = 16
_MEASURED = 2048  # images used by the Taylor criterion
_GENTLER = 0.3  # share of the learning rate with which the parent was trained


RoundDone = Callable[[int, Round], None]


@takes_options(PruneOptions)
def prune(
    checkpoint: Path | str,
    output: Path | str,
    options: PruneOptions = PruneOptions(),
    *,
    data: Path | str | None = None,
    progress: Progress = silent,
    round_done: RoundDone | None = None,
    **_keywords: Unpack[PruneKeywords],
) -> PruningReport:
    """Remove channels, capsules and units from a trained network, and fine-tune the rest.

    Without ``data``, only units that do not affect any output are removed: channels that are unread or always
    zero, duplicates, and capsules whose votes are zero. With ``data``, the units with the least importance
    per multiply-add are removed in rounds, each followed by fine-tuning on training images. The validation
    images that the checkpoint's training held out, or else a twelfth of the training images, are for the
    search; test images are read once, for the accuracy that the gate judges. Of a segmentation, the mean Dice
    of its masks takes the place of the accuracy.

    Args:
        checkpoint: a checkpoint from ``capsedge train`` or ``capsedge import``.
        output: the ``.safetensors`` file to write.
        data: data set folder with labels; of a segmentation, with ``images`` and ``masks``.
        progress: as `capsedge.models.training.train.train` takes it, for each round.
        round_done: called after every round with its number and figures.

    Returns:
        A report on what was removed and the loss of accuracy.

    Raises:
        UsageError: an argument or the data is wrong.
        UnsupportedModelError: the family's structure is not supported.
        ArtefactError: the checkpoint is damaged, or the rounds belong to other settings.
        ParityError: too much accuracy is lost; its attribute ``report`` is the `PruningReport`, and the
            checkpoint is kept as ``OUTPUT.rejected``.

    Example:
        >>> report = capsedge.prune("capsnet.pt", "small.safetensors",
        ...     target_speedup=4, data="mnist")
        >>> report.speedup, report.outcome.drop
    """
    run = _Pruning(as_path(checkpoint, WEIGHTS), Path(output), options, progress, round_done)
    if data is None:
        if options.target_speedup is not None:
            raise UsageError(
                "A target speedup needs data.",
                "Without data, only units that do not change any output are removed.",
                "Pass a data set folder as `data`.",
                command="Pass a data set folder with --data.",
            )
        return run.finish(run.smaller, EXACT, (), None, {})
    return run.by_data(Path(data))


class _Pruning:
    """A pruning run: the parent without units that affect no output, and the place of the result."""

    def __init__(
        self,
        checkpoint: Path,
        output: Path,
        options: PruneOptions,
        progress: Progress,
        round_done: RoundDone | None,
    ) -> None:
        self.checkpoint, self.output, self.options = checkpoint, output, options
        self.progress, self.round_done = progress, round_done
        rejected = with_suffix_appended(output, REJECTED)
        if output.suffix == ".onnx":
            raise UsageError(
                f"{output} would be a checkpoint, not an ONNX file.",
                "Pruning writes a checkpoint.",
                "Name it *.safetensors, and export it: `capsedge export --checkpoint FILE`.",
            )
        check_apart([output, rejected], [checkpoint])
        for file in (output, rejected):
            check_writable(file)
        self.parent = load_checkpoint(checkpoint)
        self.smaller, _ = remove_exactly(self.parent)
        self.warnings: list[str] = []
        self._tuned: Path | None = None  # by the last accepted round

    def by_data(self, data: Path) -> PruningReport:
        """Rounds of pruning and fine-tuning, and the gate."""
        limit = self.options.limit
        images = read(data, self.parent, limit, self.options.seed)
        self.warnings += images.warnings
        recipe = self._recipe()
        evaluator = Evaluator(self.parent, images.held_out)
        self.warnings += evaluator.check_parent()  # before anything is written
        work = with_suffix_appended(self.output, WORK)
        options = asdict(replace(self.options, resume=False))
        settings = [sha256(self.checkpoint), options, asdict(recipe)]
        open_work(work, json.dumps(settings, sort_keys=True), self.options.resume)
        best, rounds = self._rounds(images, evaluator, recipe, work)
        test = read_test(data, self.parent, limit, images)
        judged = images.held_out if test is None else test
        outcome = Evaluator(self.parent, judged).outcome(best)
        counts: dict[str, int | str] = {
            "fine_tuning": len(images.training),
            "held_out": len(images.held_out),
            "evaluation": outcome.images,
            "searched_on": images.held_out.described,
            "evaluated_on": judged.described,
        }
        report = self.finish(best, self.options.criterion, tuple(rounds), outcome, counts)
        shutil.rmtree(work)
        if not report.passed:
            raise ParityError(
                f"{' '.join(report.gate.failures(outcome))}",
                f"The checkpoint is kept as {report.output}.",
                "Lower the target speedup, fine-tune for more epochs, or allow a larger drop.",
                report=report,
            )
        return report

    @property
    def _gate(self) -> Gate:
        """The loss that is allowed."""
        masks = self.parent.config.task == SEGMENTATION
        usual = DEFAULT_MAX_DROP[DICE if masks else ACCURACY]
        return Gate(usual if self.options.max_drop is None else self.options.max_drop)

    def _recipe(self) -> Recipe:
        """A gentler form of the parent's recipe, or of the default one if it states none."""
        known = recipe_of(self.checkpoint)
        if known is None:
            self.warnings.append(
                "the checkpoint records no recipe, so fine-tuning used the defaults of `capsedge train`"
            )
            known = Recipe(average=0.999)
        rate = self.options.learning_rate or _GENTLER * known.learning_rate
        return replace(known, learning_rate=rate, fast=self.options.fast, seed=self.options.seed)

    def _rounds(
        self, images: PruningImages, evaluator: Evaluator, recipe: Recipe, work: Path
    ) -> tuple[CapsuleModel, list[Round]]:
        """The smallest network that keeps its accuracy on the held-out images, or the requested one."""
        best, rounds = self.smaller, list[Round]()
        goals = list(self._goals())
        for number, goal in enumerate(goals, 1):
            last = number == len(goals) or self.options.target_speedup is None
            epochs = self.options.epochs if last else max(1, self.options.epochs // 10)
            model = self._round(
                best, goal, images, replace(recipe, epochs=epochs), work / f"round-{number}"
            )
            if model is None:
                break
            outcome = evaluator.outcome(model)
            assert outcome.accuracy is not None
            done = Round(
                multiply_adds(model.config), self._units(model), outcome.accuracy, outcome.drop,
                outcome.metric,
            )  # fmt: skip
            rounds.append(done)
            if self.round_done is not None:
                self.round_done(number, done)
            if self.options.target_speedup is None and not self._gate.passes(outcome):
                break
            best, self._tuned = model, work / f"round-{number}" / MODEL
        return best, rounds

    def _goals(self) -> Iterator[float]:
        """Multiply-adds to reach in each round."""
        whole, target = multiply_adds(self.parent.config), self.options.target_speedup
        if target is None:
            yield from (whole / _SEARCH_STEP**k for k in range(1, _MOST_ROUNDS + 1))
            return
        count = max(1, math.ceil(math.log(target, _LARGEST_STEP)))
        yield from (whole / target ** (k / count) for k in range(1, count + 1))

    def _round(
        self, model: CapsuleModel, goal: float, images: PruningImages, recipe: Recipe, folder: Path
    ) -> CapsuleModel | None:
        """A smaller, fine-tuned network; None if nothing more can be removed."""
        make_folder(folder)
        start = folder / START
        if start.is_file():
            pruned = load_checkpoint(start)
        else:
            removable = groups(model)
            kept = choose(model.config, removable, self._importance(model, images, recipe), goal)
            if not kept:
                return None
            pruned = keep_units(model, kept)
            save_checkpoint(pruned, start)
        train(
            pruned.config, recipe, images.training, None, folder, initial=pruned, resume=True,
            progress=self.progress,
        )  # fmt: skip
        return load_checkpoint(folder / MODEL)

    def _importance(
        self, model: CapsuleModel, images: PruningImages, recipe: Recipe
    ) -> prune_criteria.Importance:
        removable = groups(model)
        if self.options.criterion == "look-ahead":
            return prune_criteria.look_ahead(model, removable)
        drawn = images.training.draw(_MEASURED, self.options.seed)
        return prune_criteria.taylor(model, removable, _losses(model, drawn, recipe))

    def _units(self, model: CapsuleModel) -> dict[str, str]:
        before = {g.name: g.units for g in groups(self.parent)}
        after = {g.name: g.units for g in groups(model)}
        return {n: f"{after[n]} of {count}" for n, count in before.items() if after[n] < count}

    def finish(
        self,
        model: CapsuleModel,
        criterion: str,
        rounds: tuple[Round, ...],
        outcome: Outcome | None,
        counts: dict[str, int | str],
    ) -> PruningReport:
        """Write the checkpoint, or its rejected form, and report."""
        gate = self._gate
        passed = outcome is None or gate.passes(outcome)
        place = self.output if passed else with_suffix_appended(self.output, REJECTED)
        before, after = multiply_adds(self.parent.config), multiply_adds(model.config)
        older = pruned_of(self.checkpoint)
        lineage = Pruned(
            self.checkpoint.name,
            sha256(self.checkpoint),
            criterion,
            self._units(model),
            (before, after),
            None if older is None else older.summary,
        )
        extra = {PRUNING_KEY: dump(lineage.to_dict())}
        if self.parent.typical_input is not None:
            extra[TYPICAL_INPUT_KEY] = dump(self.parent.typical_input.to_dict())
        if self.parent.training_split is not None:
            extra[TRAINING_SPLIT_KEY] = dump(self.parent.training_split.to_dict())
        if self._tuned is not None and (training := training_of(self._tuned)) is not None:
            extra[TRAINING_KEY] = dump(asdict(training))
        save_checkpoint(model, place, extra)
        return PruningReport(
            place,
            self.checkpoint,
            criterion,
            Size(trainable_parameters(self.parent), before, self.checkpoint.stat().st_size),
            Size(trainable_parameters(model), after, place.stat().st_size),
            self._units(model),
            rounds,
            outcome,
            gate,
            counts,
            tuple(self.warnings),
        )


def _losses(model: CapsuleModel, data: ImageSet, recipe: Recipe) -> Iterator[Callable[[], Tensor]]:
    """The training loss of each batch, without augmentation."""
    plain = replace(recipe, shift=0, rotate=0.0, zoom=0.0, flip=False, fast=False)
    generator = torch.Generator().manual_seed(recipe.seed)
    targets = torch.as_tensor(targets_of(data))
    for start in range(0, len(data), 64):
        index = np.arange(start, min(start + 64, len(data)))
        images, wanted = to_input(data.images[index], model.config), targets[index]
        if data.masks is not None:
            yield partial(mask_loss, model, images, wanted, plain, generator)
        else:
            yield partial(batch_loss, model, images, wanted, plain, generator, 1.0)
