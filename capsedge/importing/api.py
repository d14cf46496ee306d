"""``capsedge.import_checkpoint``: a file of weights in, a checkpoint and a report out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capsedge.checkpoint import save_checkpoint
from capsedge.datasets import read_images
from capsedge.datasets.imageset import ImageSet
from capsedge.errors import ArtefactError, CapsedgeError, ParityError, UsageError
from capsedge.families.family import Answers, Family
from capsedge.families.keymap import apply, read_key_map
from capsedge.families.recognition import Recognized, fitting, others, recognize
from capsedge.formats.read import read_together
from capsedge.formats.stored import Weights, without_counters
from capsedge.importing.against import TOLERANCE, Comparison, compare
from capsedge.importing.measuring import Measured, clearly_best, measure
from capsedge.models import CapsuleModel, build
from capsedge.models.config import ModelConfig
from capsedge.runtime.files.given import DATA, FILE, OUTPUT, WEIGHTS, as_path
from capsedge.runtime.files.writing import check_writable, sha256
from capsedge.runtime.metadata import Outputs, Preprocessing
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
    file: Path | str | Sequence[Path | str],
    path: Path | str | None = None,
    *,
    family: str | None = None,
    iterations: int | None = None,
    variant: str | None = None,
    inverse_temperature: float | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    task: str | None = None,
    outputs: Outputs | None = None,
    key_map: Path | str | None = None,
    against: str | None = None,
    data: Path | str | None = None,
    limit: int = IMAGES,
) -> ImportReport:
    """Make a checkpoint of the trained weights of a public network.

    The family is recognized by keys, shapes and stored configuration. What the file cannot tell is asked
    for, never guessed. Nothing in the file is run.

    Args:
        file: ``.pt``, ``.pth``, ``.safetensors``, ``.npz``, ``.h5``, ``.keras`` and others; several
            are the networks of an ensemble.
        path: the checkpoint to write, ``.safetensors``; none by default.
        family: its name, where it is not recognized.
        iterations: routing iterations, as the author's code counts them.
        variant: of the family, where the file fits several.
        inverse_temperature: λ of EM routing, where the author's code is given it at each call.
        class_names: names of the classes.
        preprocessing: of the input, or those of its fields that are known, such as
            ``{"height": 28, "width": 28}``.
        task: ``classification``, ``multi-label`` or ``regression``.
        outputs: names and units of a regression's values.
        key_map: a TOML file that renames the tensors.
        against: ``author.py:build``: the author's module, which is run beside the network. This is code
            that you name, and it runs. It is given the file's weights; of several files it reads its own.
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
    together = file if isinstance(file, (list, tuple)) else [file]
    files = [as_path(f, WEIGHTS) for f in together]
    target = None if path is None else as_path(path, OUTPUT)
    data = None if data is None else as_path(data, DATA)
    if target is not None:
        _check_output(target)
    answers = Answers(
        iterations,
        variant,
        None if class_names is None else tuple(class_names),
        _fields(preprocessing),
        "single-label" if task == "classification" else task,
        outputs,
        inverse_temperature,
    )
    weights = read_together(files)
    if key_map is not None:
        keys = read_key_map(as_path(key_map, FILE))
        weights, answers = apply(keys, weights), replace(answers, fields=keys.model)
        family = family or "textbook"
    notes = list(weights.notes)
    if data is None:
        found = recognize(weights, family)
    else:
        found, answers = _chosen_by_data(weights, family, answers, data, limit, notes)
    model = _model(found.family, weights, answers, notes)
    images = None if data is None else read_images(data, model.config.preprocessing, "test", limit)
    comparison = None if against is None else _compared(model, against, files, images)
    measured = None if images is None else _measured(model, found, weights, answers, images)
    origin = _origin(found, files, notes, comparison)
    model.origin = origin
    if target is not None:
        save_checkpoint(model, target, {ORIGIN_KEY: json.dumps(asdict(origin))})
    return ImportReport(
        target, model, origin, found.by, weights.format, comparison, measured,
        tuple(_warnings(model.config, comparison, measured)),
    )  # fmt: skip


def _fields(given: Preprocessing | Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of the preprocessing that are known."""
    if isinstance(given, Preprocessing):
        return {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
    fields = dict(given or {})
    known = {f.name for f in dataclasses.fields(Preprocessing)}
    if unknown := sorted(fields.keys() - known):
        raise UsageError(
            f"There is no preprocessing '{unknown[0]}'.", "", f"Known: {', '.join(sorted(known))}."
        )
    if len(fields.keys() & {"height", "width"}) == 1:
        raise UsageError("The size needs height and width.", "One is missing.", "Give both.")
    return fields


def _chosen_by_data(
    weights: Weights,
    family: str | None,
    answers: Answers,
    data: Path | str,
    limit: int,
    notes: list[str],
) -> tuple[Recognized, Answers]:
    """Family and answers; where the file leaves several functions, the one that is clearly best on data.

    Raises:
        UsageError: none is.
    """
    choices: dict[str, tuple[Recognized, Answers]] = {}
    whole = fitting(weights, family)
    for found in whole:
        f = found.family
        name = f"family '{f.name}'" if len(whole) > 1 else ""
        if answers.variant or f.variant or not f.variants:
            choices[name] = found, answers
            continue
        for variant in f.variants:
            words = ", ".join(w for w in (name, f"variant '{variant.name}'") if w)
            choices[words] = found, replace(answers, variant=variant.name)
    if len(choices) == 1:
        return next(iter(choices.values()))
    models = {words: _model(r.family, weights, a, []) for words, (r, a) in choices.items()}
    prep = next(iter(models.values())).config.preprocessing
    images = read_images(data, prep, "test", limit)
    best, accuracies = clearly_best(models, np.stack(list(images.inputs())), _labels(images))
    said = "; ".join(f"{words}: {100 * a:.2f} %" for words, a in accuracies.items())
    if best is None:
        raise UsageError(
            "The data does not tell which function the network computes.",
            f"Accuracy on {len(images)} images: {said}.",
            "Give --as and --variant (family=, variant= in Python), or more images.",
        )
    notes.append(f"{best} by the data: {said}")
    return choices[best]


def _labels(images: ImageSet) -> NDArray[np.int64]:
    if images.labels is None:
        raise UsageError(
            f"{images.source} has no labels.",
            "Accuracy needs them.",
            "Leave out --data, or add them.",
        )
    return images.labels


def _check_output(path: Path) -> None:
    if path.suffix != ".safetensors":
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
    names = family.names(weights.tensors)
    tensors = {names[name]: tensor for name, tensor in weights.tensors.items()}
    answers = replace(answers, stored=weights.config)
    config = family.configure(family, family.fit(weights).sizes, answers, notes)
    given = answers.inverse_temperature
    if given is not None and getattr(config, "inverse_temperature", None) != given:
        raise UsageError(
            f"The family {family.name} has no inverse temperature to give.",
            "The author's code fixes it, or has none.",
            "Leave out inverse_temperature.",
            command="Leave out --inverse-temperature.",
        )
    try:
        made = family.convert(tensors, config)
    except ValueError as error:  # shapes that no pattern speaks of
        raise ArtefactError(
            f"The weights do not make a network of the family {family.name}.",
            f"{str(error)[:1].upper()}{str(error)[1:]}.",
            "Check --size, --map and the file.",
        ) from error
    broken = [name for name, tensor in made.items() if not np.isfinite(tensor).all()]
    if broken:
        raise ArtefactError(
            "The weights are not all numbers.",
            f"'{broken[0]}' has NaN or infinite values: the training diverged.",
            "Use an earlier checkpoint.",
        )
    with torch.device("meta"):
        state = build(config).state_dict()
    wanted = {k: tuple(v.shape) for k, v in without_counters(state).items()}
    wrong = [k for k in {**wanted, **made} if wanted.get(k) != getattr(made.get(k), "shape", None)]
    if wrong:
        has = list(made[wrong[0]].shape) if wrong[0] in made else "missing"
        raise ArtefactError(
            f"The weights do not make a network of the family {family.name}.",
            f"'{wrong[0]}' is {has}, wanted {list(wanted.get(wrong[0], ()))}.",
            "Check --size, --map and the file.",
        )
    model = build(config)
    ready = {k: torch.from_numpy(np.array(v, order="C")) for k, v in made.items()}
    model.load_state_dict(ready, strict=False)  # all but counters of batches are there
    return model.eval()


def _compared(
    model: CapsuleModel, against: str, files: Sequence[Path], images: ImageSet | None
) -> Comparison:
    prepared = None if images is None else np.stack(list(images.inputs()))
    found = compare(model, against, files[0] if len(files) == 1 else None, prepared)
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
    inputs = np.stack(list(images.inputs()))
    return measure(model, _alternatives(model, found, weights, answers), inputs, _labels(images))


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
    found: Recognized, files: Sequence[Path], notes: Sequence[str], comparison: Comparison | None
) -> Origin:
    family = found.family
    return Origin(
        family.name,
        family.source,
        family.licence,
        family.dialect,
        family.differences,
        ", ".join(f.name for f in files),
        ", ".join(map(sha256, files)),
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
