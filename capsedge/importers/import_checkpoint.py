"""Import a file of weights as a checkpoint, with a report (``capsedge.import_checkpoint``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.datasets import ImageSet
from capsedge.errors import ParityError, UsageError
from capsedge.importers.build_network import (
    alternatives,
    chosen_by_data,
    network,
    questions,
    read_data,
)
from capsedge.importers.family import ImportChoices, MissingChoice, Weights, combine_missing_choices
from capsedge.importers.identify import Identified, fitting, identify, readable
from capsedge.importers.import_options import ImportOptions
from capsedge.importers.key_map import apply, read_key_map
from capsedge.importers.measure import Measured, measure
from capsedge.importers.reference_check import TOLERANCE, ReferenceCheck, compare_with_author_code
from capsedge.importers.weights_file import read_together
from capsedge.models import CapsuleModel
from capsedge.models.checkpoint import save_checkpoint
from capsedge.models.configs import ModelConfig
from capsedge.options import takes_options
from capsedge.runtime.files.documents import dump
from capsedge.runtime.files.writing import (
    OUTPUT,
    WEIGHTS,
    as_path,
    check_writable,
    sha256,
)
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import NOT_COMPARED, ORIGIN_KEY, Origin
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import Report, shortened_name
from capsedge.runtime.user_metadata import Description, DescriptionLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import ImportKeywords


@dataclass(frozen=True, repr=False)
class ImportReport(Report):
    """The result of an import.

    Attributes:
        output: the checkpoint; None if none was written.
        model: the network, in evaluation mode.
        origin: family, source, licence, assumptions and comparison, as recorded in the checkpoint.
        identified_by: keys and sizes.
        format: format of the file.
        comparison: comparison with the author's code; None without ``reference_code``.
        measured: accuracy or errors on ``data``; None without it.
        warnings: warnings for the user.
    """

    output: Path | None
    model: CapsuleModel
    origin: Origin
    identified_by: str
    format: str
    comparison: ReferenceCheck | None
    measured: Measured | None
    warnings: tuple[str, ...]

    def _lines(self) -> list[str]:
        name = "not written" if self.output is None else self.output.name
        compared = "compared with" if self.comparison is not None else "not compared with"
        return [
            f"{shortened_name(name)}: {shortened_name(self.origin.family)}, {self.parameters:,} parameters",
            f"{compared} the author's code",
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Where the weights come from, the network, and its comparison with the author's code."""
        origin, counted = self.origin, self.model.config.iterations
        return [
            ("file", f"{origin.file}: {self.format}"),
            ("family", f"{origin.family}: {origin.dialect}"),
            ("by", self.identified_by),
            ("source", f"{origin.source}; licence: {origin.licence or 'not stated'}"),
            *(("differs", text) for text in origin.differences),
            *(("note", text) for text in origin.notes),
            ("network", f"{self.parameters:,} parameters, {counted} weighted sums"),
            *([] if self.comparison is None else self.comparison.facts()),
            *([] if self.measured is None else self.measured.facts()),
            ("checkpoint", "not written" if self.output is None else str(self.output)),
        ]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "output": None if self.output is None else str(self.output),
            "identified_by": self.identified_by,
            "format": self.format,
            "parameters": self.parameters,
            "origin": asdict(self.origin),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "measured": None if self.measured is None else asdict(self.measured),
            "warnings": list(self.warnings),
            "config": self.model.config.to_dict(),
        }


@takes_options(ImportOptions)
def import_checkpoint(
    file: Path | str | Sequence[Path | str],
    path: Path | str | None = None,
    options: ImportOptions = ImportOptions(),
    *,
    description: DescriptionLike | None = None,
    progress: Progress = silent,
    **_keywords: Unpack[ImportKeywords],
) -> ImportReport:
    """Convert the trained weights of a public network to a checkpoint.

    The family is identified by keys, shapes and stored configuration. Anything that the file does not
    determine is asked for, never guessed. No code in the file is run.

    ``reference_code``, the author's module, is loaded with the file's weights; for several files it loads its
    own. On ``data``, labelled images, accuracy is measured and compared with that of alternatives; for a
    regression, with values instead of labels, the errors are (docs/reference/data.md).

    Args:
        file: ``.pt``, ``.pth``, ``.safetensors``, ``.npz``, ``.h5``, ``.keras`` and others; several files
            make an ensemble.
        path: the checkpoint to write, ``.safetensors``; none by default.
        description: classes, preprocessing, task and outputs, as for `export`: ``{"size": "28x28"}``.
        progress: called during the comparison with the number of inputs done and the total.

    Returns:
        The network, how it was identified, and what was assumed and measured.

    Raises:
        UsageError: a choice is missing or wrong, or the file fits several families.
        UnsupportedModelError: it does not belong to a known family.
        ArtefactError: it is damaged, or refused.
        ParityError: the author's code computes different results; no file is written.
        EnvironmentProblem: Keras files need h5py; or the disk is full.

    Example:
        >>> report = capsedge.import_checkpoint("epoch_30.pt", "digits.safetensors",
        ...     iterations=3)
        >>> report.origin.family, report.warnings
    """
    together = file if isinstance(file, (list, tuple)) else [file]
    files = [as_path(f, WEIGHTS) for f in together]
    target = None if path is None else as_path(path, OUTPUT)
    answers = _choices(options, Description.of(description))
    if target is not None:
        _check_output(target)
    family, data, limit = options.family, options.data, options.limit
    weights = read_together(files)
    if options.key_map is not None:
        keys = read_key_map(options.key_map)
        weights, answers = apply(keys, weights), replace(answers, fields=keys.model)
        family = family or "textbook"
    else:
        weights = readable(weights, family)
    notes = list(weights.notes)
    if data is None:
        reading = _identified(weights, family, answers)
    else:
        reading, answers = chosen_by_data(weights, family, answers, data, limit, notes)
    model = network(reading.family, weights, answers, notes)
    images = None if data is None else read_data(data, model.config, limit)
    comparison = (
        None
        if options.reference_code is None
        else _compared(model, options.reference_code, files, images, progress)
    )
    measured = None
    if images is not None:
        measured = measure(model, alternatives(model, reading, weights, answers), images)
    origin = _origin(reading, answers.variant, files, notes, comparison)
    model.origin = origin
    if target is not None:
        save_checkpoint(model, target, {ORIGIN_KEY: dump(asdict(origin))})
    return ImportReport(
        target, model, origin, reading.in_words, weights.format, comparison, measured,
        tuple(_warnings(model.config, comparison, measured)),
    )  # fmt: skip


def _choices(options: ImportOptions, description: Description) -> ImportChoices:
    """What the caller decides where the file leaves a question open."""
    if description.typical is not None:
        raise UsageError(
            "A checkpoint does not store what typical images are like.",
            "",
            "Pass typical images when you export it.",
        )
    classes, task = description.class_names, description.task
    return ImportChoices(
        options.iterations,
        options.variant,
        None if classes is None else tuple(classes),
        _fields(description.preprocessing),
        "single-label" if task == "classification" else task,
        description.outputs,
        options.inverse_temperature,
    )


def _identified(weights: Weights, family: str | None, choices: ImportChoices) -> Identified:
    """The family of a file."""
    try:
        return identify(weights, family)
    except MissingChoice as which:
        declared = replace(choices, stored=weights.config)
        asked = [
            {q.option: q for q in questions(r.family, r.fit.sizes, declared)}
            for r in fitting(weights, family)
        ]
        common = [q for o, q in asked[0].items() if all(o in other for other in asked)]
        raise combine_missing_choices([which, *common]) from None


def _fields(preprocessing: Preprocessing | Mapping[str, Any] | None) -> dict[str, Any]:
    """The known fields of the preprocessing."""
    if isinstance(preprocessing, Preprocessing):
        return {f.name: getattr(preprocessing, f.name) for f in dataclasses.fields(preprocessing)}
    fields = dict(preprocessing or {})
    known = {f.name for f in dataclasses.fields(Preprocessing)}
    if unknown := sorted(fields.keys() - known):
        raise UsageError(
            f"Unknown preprocessing setting '{unknown[0]}'.",
            "",
            f"Choose one of: {', '.join(sorted(known))}.",
        )
    if len(fields.keys() & {"height", "width"}) == 1:
        raise UsageError("The size needs a height and a width.", "One is missing.", "Set both.")
    return fields


def _check_output(path: Path) -> None:
    if path.suffix != ".safetensors":
        raise UsageError(
            f"{path} does not have a checkpoint's suffix.",
            "The import writes a safetensors file.",
            "Name it *.safetensors.",
        )
    check_writable(path)


def _compared(
    model: CapsuleModel,
    reference_code: str,
    files: Sequence[Path],
    images: ImageSet | None,
    progress: Progress,
) -> ReferenceCheck:
    weights = files[0] if len(files) == 1 else None
    comparison = compare_with_author_code(model, reference_code, weights, images, progress)
    if not comparison.passed:
        raise ParityError(
            "The author's code computes different results; nothing was written.",
            f"On {comparison.inputs} inputs, the {comparison.output} differ by up to "
            f"{comparison.largest_difference:.2g} of their size (allowed: {TOLERANCE:g}), and "
            f"{comparison.flips} decisions differ.",
            "Check --iters, --variant and --family: different functions can have equal shapes.",
            report=comparison,
        )
    return comparison


def _origin(
    reading: Identified,
    variant: str | None,
    files: Sequence[Path],
    notes: Sequence[str],
    comparison: ReferenceCheck | None,
) -> Origin:
    family = reading.family
    return Origin(
        family.name,
        *family.source_of(variant),
        family.dialect,
        family.differences,
        ", ".join(f.name for f in files),
        ", ".join(map(sha256, files)),
        tuple(notes),
        None if comparison is None else comparison.to_dict(),
    )


def _warnings(
    config: ModelConfig, comparison: ReferenceCheck | None, measured: Measured | None
) -> list[str]:
    warnings = []
    if comparison is None:
        warnings.append(f"{NOT_COMPARED}: --reference-code author.py:build does that")
    elif comparison.nan:
        warnings.append(
            f"the author's code returns NaN on {comparison.nan} of {comparison.inputs} inputs, such "
            f"as {comparison.nan_on}; the imported network returns numbers on "
            f"{comparison.nan_in_code_only} of them"
        )
    if comparison is not None and comparison.unchecked:
        warnings.append(comparison.unchecked)
    if config.fixed_batch is not None:
        warnings.append(
            f"the batch of the export is fixed at {config.fixed_batch}: the author's code averages "
            "over the batch"
        )
    if measured is not None:
        warnings += measured.warnings
    return warnings
