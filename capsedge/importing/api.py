"""``capsedge.import_checkpoint``: a file of weights in, a checkpoint and a report out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsedge.checkpoint import save_checkpoint
from capsedge.datasets import read_images
from capsedge.datasets.imageset import ImageSet
from capsedge.errors import ArtefactError, CapsedgeError, ParityError, UsageError
from capsedge.families.family import Answers, Family
from capsedge.families.keymap import apply, read_key_map
from capsedge.families.recognition import Recognized, others, recognize
from capsedge.formats.read import read_weights
from capsedge.formats.stored import Weights
from capsedge.importing.against import TOLERANCE, Comparison, compare
from capsedge.importing.measuring import Measured, measure
from capsedge.models import CapsuleModel, build
from capsedge.models.config import ModelConfig
from capsedge.runtime.files.writing import check_writable, sha256
from capsedge.runtime.reading.origin import NOT_COMPARED, ORIGIN_KEY, Origin

IMAGES = 1000  # of a data set, at most


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        output: the checkpoint; None where none was named.
        model: the network, in evaluation mode.
        origin: family, source, licence, assumptions, comparison: what the checkpoint says of itself.
        recognized_by: keys and sizes.
        format: of the file.
        comparison: with the author's code; None without ``against``.
        measured: accuracy on ``data``; None without.
        warnings: what a person should not overlook.
    """

    output: Path | None
    model: CapsuleModel
    origin: Origin
    recognized_by: str
    format: str
    comparison: Comparison | None
    measured: Measured | None
    warnings: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "output": None if self.output is None else str(self.output),
            "recognized_by": self.recognized_by,
            "format": self.format,
            "parameters": self.parameters,
            "origin": asdict(self.origin),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "measured": None if self.measured is None else asdict(self.measured),
            "warnings": list(self.warnings),
            "config": self.model.config.to_dict(),
        }


def import_checkpoint(
    file: Path | str,
    path: Path | str | None = None,
    *,
    family: str | None = None,
    iterations: int | None = None,
    variant: str | None = None,
    size: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    span: tuple[float, float] | None = None,
    task: str | None = None,
    key_map: Path | str | None = None,
    against: str | None = None,
    data: Path | str | None = None,
    limit: int = IMAGES,
) -> ImportReport:
    """Make a checkpoint of the trained weights of a public network.

    The family is recognized by keys, shapes and stored configuration. What the file cannot tell is asked
    for, never guessed. Nothing in the file is run.

    Args:
        file: ``.pt``, ``.pth``, ``.safetensors``, ``.npz``, ``.h5``, ``.keras`` and others.
        path: the checkpoint to write, ``.safetensors``; none by default.
        family: its name, where it is not recognized.
        iterations: routing iterations, as the author's code counts them.
        variant: of the family, where the file fits several.
        size: height and width of the input.
        classes: names of the classes.
        mean, std: of the input, per channel, after ``span``.
        span: values of a black and of a white pixel before mean and std; (0, 1) by default.
        task: ``single-label`` or ``multi-label``.
        key_map: a TOML file that renames the tensors.
        against: ``author.py:build``: the author's module, which is run beside the network. This is code
            that you name, and it runs.
        data: images with labels, on which accuracy is measured and compared with that of alternatives.
        limit: number of images to use of them.

    Returns:
        The network, what it was recognized by, what was assumed, and what was measured.

    Raises:
        UsageError: an answer is missing or wrong, or the file fits several families.
        UnsupportedModelError: it is of no known family.
        ArtefactError: it is damaged, or refused.
        ParityError: the author's code computes something else; nothing is written.
        EnvironmentProblem: Keras files need h5py; or the disk is full.

    Example:
        >>> report = capsedge.import_checkpoint("epoch_30.pt", "digits.safetensors", iterations=3)
        >>> report.origin.family, report.warnings
    """
    if path is not None:
        _check_output(path)
    answers = Answers(
        iterations,
        variant,
        size,
        None if classes is None else tuple(classes),
        None if mean is None else tuple(mean),
        None if std is None else tuple(std),
        span,
        task,
    )
    weights = read_weights(file)
    if key_map is not None:
        keys = read_key_map(key_map)
        weights, answers = apply(keys, weights), replace(answers, fields=keys.model)
        family = family or "textbook"
    found = recognize(weights, family)
    notes = list(weights.notes)
    model = _model(found.family, weights, answers, notes)
    images = None if data is None else read_images(data, model.config.preprocessing, "test", limit)
    comparison = None if against is None else _compared(model, against, Path(file), images)
    measured = None if images is None else _measured(model, found, weights, answers, images)
    origin = _origin(found, Path(file), notes, comparison)
    target = None if path is None else Path(path)
    if target is not None:
        save_checkpoint(model, target, {ORIGIN_KEY: json.dumps(asdict(origin))})
    return ImportReport(
        target, model, origin, found.by, weights.format, comparison, measured,
        tuple(_warnings(model.config, comparison, measured)),
    )  # fmt: skip


def _check_output(path: Path | str) -> None:
    if Path(path).suffix != ".safetensors":
        raise UsageError(
            f"{path} is not named like a checkpoint.",
            "An import writes safetensors.",
            "Name it *.safetensors.",
        )
    check_writable(path)


def _model(family: Family, weights: Weights, answers: Answers, notes: list[str]) -> CapsuleModel:
    """The network with its weights.

    Raises:
        UsageError: an answer is missing or does not fit.
        ArtefactError: the weights are not those of the configuration, or not finite.
    """
    tensors = {family.renamed(name): tensor for name, tensor in weights.tensors.items()}
    config = family.configure(family, family.fit(weights.shapes).sizes, answers, notes)
    made = family.convert(tensors, config)
    broken = [name for name, tensor in made.items() if not np.isfinite(tensor).all()]
    if broken:
        raise ArtefactError(
            "The weights are not all numbers.",
            f"'{broken[0]}' has NaN or infinite values: the training diverged.",
            "Use an earlier checkpoint.",
        )
    with torch.device("meta"):
        wanted = {k: tuple(v.shape) for k, v in build(config).state_dict().items()}
    wrong = [k for k in {**wanted, **made} if wanted.get(k) != getattr(made.get(k), "shape", None)]
    if wrong:
        has = list(made[wrong[0]].shape) if wrong[0] in made else "missing"
        raise ArtefactError(
            f"The weights do not make a network of the family {family.name}.",
            f"'{wrong[0]}' is {has}, wanted {list(wanted.get(wrong[0], ()))}.",
            "Check --size, --map and the file.",
        )
    model = build(config)
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in made.items()})
    return model.eval()


def _compared(model: CapsuleModel, against: str, file: Path, images: ImageSet | None) -> Comparison:
    prepared = None if images is None else np.stack(list(images.inputs()))
    found = compare(model, against, file, prepared)
    if not found.passed:
        raise ParityError(
            "The author's code computes something else; nothing was written.",
            f"Of {found.inputs} inputs the {found.output} differ by up to {found.largest_difference:.2g} of "
            f"their size (allowed: {TOLERANCE:g}), with {found.flips} other decisions.",
            "Check --iters, --variant and --as: equal shapes may belong to different functions.",
            report=found,
        )
    return found


def _measured(
    model: CapsuleModel, found: Recognized, weights: Weights, answers: Answers, images: ImageSet
) -> Measured | None:
    if images.labels is None:
        raise UsageError(
            f"{images.source} has no labels.",
            "Accuracy needs them.",
            "Leave out --data, or add them.",
        )
    inputs = np.stack(list(images.inputs()))
    return measure(model, _alternatives(model, found, weights, answers), inputs, images.labels)


def _alternatives(
    model: CapsuleModel, found: Recognized, weights: Weights, answers: Answers
) -> dict[str, CapsuleModel]:
    """Networks of the same tensors, by the option that makes them."""
    tries: dict[str, Callable[[], CapsuleModel]] = {}
    family = found.family
    stated = model.config.iterations - family.extra_iterations

    def with_answers(**changes: Any) -> Callable[[], CapsuleModel]:
        return lambda: _model(family, weights, replace(answers, **changes), [])

    for count in (stated - 1, stated + 1):
        if count + family.extra_iterations >= 1:
            tries[f"--iters {count}"] = with_answers(iterations=count)
    chosen = answers.variant or family.variant
    for variant in family.variants:
        if variant.name != chosen:
            tries[f"--variant {variant.name}"] = with_answers(variant=variant.name)
    for other in others(weights, family):
        tries[f"--as {other.name}"] = lambda other=other: _model(other, weights, answers, [])  # type: ignore[misc]
    made = {}
    for words, make in tries.items():
        try:
            made[words] = make()
        except CapsedgeError:  # it needs answers that were not given
            continue
    return made


def _origin(
    found: Recognized, file: Path, notes: Sequence[str], comparison: Comparison | None
) -> Origin:
    family = found.family
    return Origin(
        family.name,
        family.source,
        family.licence,
        family.dialect,
        family.differences,
        file.name,
        sha256(file),
        tuple(notes),
        None if comparison is None else comparison.to_dict(),
    )


def _warnings(
    config: ModelConfig, comparison: Comparison | None, measured: Measured | None
) -> list[str]:
    said = []
    if comparison is None:
        said.append(f"{NOT_COMPARED}: --against author.py:build does that")
    elif comparison.nan:
        said.append(
            f"the author's code gives NaN on {comparison.nan} of {comparison.inputs} inputs"
        )
    if config.fixed_batch is not None:
        said.append(
            f"the export has the batch fixed to {config.fixed_batch}: the author's code averages over "
            "the batch"
        )
    if measured is not None:
        said += [
            f"{words} is clearly better on the data: {100 * accuracy:.2f} % instead of "
            f"{100 * measured.accuracy:.2f} %"
            for words, accuracy in measured.better.items()
        ]
    return said
