"""What a family of public networks is to ``capsedge import``.

A family is one module with a `Family`, and a line in ``capsedge/families/__init__.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capsedge.errors import UsageError
from capsedge.families.shapes import Fit, Patterns, Shapes, fit
from capsedge.formats.stored import Floats
from capsedge.models.config import ModelConfig
from capsedge.runtime.metadata import Preprocessing

Sizes = Mapping[str, int]
Tensors = dict[str, Floats]


@dataclass(frozen=True)
class Answers:
    """What the user says of the network, and the file does not.

    Attributes:
        iterations: routing iterations, as the author's code counts them.
        variant: a name of the family's variants.
        size: height and width of the input.
        classes: names of the classes.
        mean, std: of the input, per channel, as `Preprocessing` has them.
        span: the values of the darkest and the brightest pixel before mean and std: (0, 1) or (0, 255).
        task: ``single-label`` or ``multi-label``.
        fields: fields of the configuration, from a key map.
    """

    iterations: int | None = None
    variant: str | None = None
    size: tuple[int, int] | None = None
    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    span: tuple[float, float] | None = None
    task: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One of several functions that the same tensors may belong to.

    Attributes:
        name: for ``--variant``.
        words: what it computes.
        fields: of the configuration.
    """

    name: str
    words: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class DataSet:
    """A data set that the author's code reads, and how.

    Attributes:
        name: of the data set.
        channels, side: of its images.
        classes: their names.
        mean, std: applied to pixels in [0, 1].
    """

    name: str
    channels: int
    side: int
    classes: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Family:
    """A family.

    Attributes:
        name: for ``--as``.
        source: repository and file.
        licence: of the source, by its SPDX name; empty if the repository states none.
        dialect: its routing in one sentence.
        differences: from the paper.
        keys: patterns of the tensors that are always there (`capsedge.families.shapes`).
        optional: groups of tensors that may be there.
        configure: the configuration, of the sizes and the answers; the notes that it adds say what was
            assumed.
        convert: the package's tensors, by name, of the file's and the configuration.
        iterations: the number in the author's code, where it is fixed there; None where it is asked for.
        iterations_at: where authors usually state it.
        extra_iterations: weighted sums of the author's code beyond the number that it is given.
        renames: regular expressions and their replacements, for keys that changed their name.
        data_sets: that the author's code reads.
        variants: functions that the file cannot tell apart; empty if there is only one.
        variant: the default; empty if it is asked for.
        variant_at: how a user finds out.
        lambdas: names of Lambda layers (regular expression) that ``configure`` accounts for.
    """

    name: str
    source: str
    licence: str
    dialect: str
    differences: tuple[str, ...]
    keys: Patterns
    configure: Callable[[Family, Sizes, Answers, list[str]], ModelConfig]
    convert: Callable[[Mapping[str, Floats], ModelConfig], Tensors]
    optional: Sequence[Patterns] = ()
    iterations: int | None = None
    iterations_at: str = ""
    extra_iterations: int = 0
    renames: Sequence[tuple[str, str]] = ()
    data_sets: tuple[DataSet, ...] = ()
    variants: tuple[Variant, ...] = ()
    variant: str = ""
    variant_at: str = ""
    lambdas: str = ""

    def renamed(self, name: str) -> str:
        """A key under its present name."""
        for pattern, replacement in self.renames:
            if re.fullmatch(pattern, name):
                return re.sub(pattern, replacement, name)
        return name

    def fit(self, shapes: Shapes) -> Fit:
        """How far a file is of this family."""
        return fit({self.renamed(k): s for k, s in shapes.items()}, self.keys, self.optional)


def sums_of(family: Family, answers: Answers, notes: list[str]) -> int:
    """Routing iterations as this package counts them: weighted sums.

    Raises:
        UsageError: nobody says how many.
    """
    if answers.iterations is None and family.iterations is None:
        raise UsageError(
            "How many routing iterations does the network run?",
            f"The file does not tell; it is {family.iterations_at}.",
            "Give it with --iters N (iterations=N in Python).",
        )
    if answers.iterations is None:
        assert family.iterations is not None
        notes.append(f"{family.iterations} routing iterations, as in the author's code")
        return family.iterations + family.extra_iterations
    if family.extra_iterations:
        count = answers.iterations + family.extra_iterations
        notes.append(
            f"--iters {answers.iterations} makes {count} weighted sums in the author's code"
        )
    return answers.iterations + family.extra_iterations


def variant_of(family: Family, answers: Answers, notes: list[str]) -> Mapping[str, Any]:
    """The fields of the configuration that the variant sets.

    Raises:
        UsageError: it is not known, or has to be named.
    """
    known = {v.name: v for v in family.variants}
    listed = "; ".join(f"{v.name}: {v.words}" for v in family.variants)
    wanted = answers.variant or family.variant
    if answers.variant is not None and answers.variant not in known:
        raise UsageError(
            f"{family.name} has no variant '{answers.variant}'.",
            f"Known: {listed}." if known else "It has no variants.",
            f"Use one of --variant {', '.join(known)}." if known else "Leave out --variant.",
        )
    if not known:
        return {}
    if not wanted:
        raise UsageError(
            f"Which variant of {family.name} is it?",
            f"The file does not tell, and they compute different functions: {listed}. {family.variant_at}",
            f"Give it with --variant {'|'.join(known)} (variant= in Python).",
        )
    if answers.variant is None:
        notes.append(f"variant '{wanted}': {known[wanted].words} (others: --variant)")
    return known[wanted].fields


def preprocessing_of(
    family: Family, size: tuple[int, int], channels: int, answers: Answers, notes: list[str]
) -> Preprocessing:
    """How pixels become the input: as the user says, or as the author's code does for its own data set.

    Raises:
        UsageError: nobody says.
    """
    low, high = answers.span or (0.0, 1.0)
    given = (answers.mean, answers.std, answers.span)
    mean, std = answers.mean or (0.0,), answers.std or (1.0,)
    if given == (None, None, None):
        own = data_set_of(family, size, channels)
        if own is None:
            raise UsageError(
                "Which values does the network expect for a pixel?",
                "The file does not tell; it is in the training code, usually where the data set is "
                "loaded: ToTensor makes 0 to 1, Normalize(mean, std) comes after it.",
                "Give --range 0,1 or --range 0,255, or --mean and --std (span=, mean=, std= in Python).",
            )
        mean, std = own.mean, own.std
        notes.append(
            f"pixels as the author's code reads {own.name}: 0 to 1"
            + (f", mean {list(mean)}, std {list(std)}" if any(mean) or set(std) != {1.0} else "")
            + " (otherwise: --range, --mean, --std)"
        )
    # Preprocessing has a factor and a mean; a darkest value other than 0 becomes part of the mean.
    scale = (high - low) / 255.0
    try:
        return Preprocessing(
            *size, channels, scale=scale, mean=tuple(m - low for m in mean), std=std
        )
    except ValueError as error:
        raise UsageError("The input cannot be described.", f"{error}.") from error


def data_set_of(family: Family, size: tuple[int, int], channels: int) -> DataSet | None:
    """The data set of the author's code whose images have this size."""
    wanted = (channels, *size)
    return next((d for d in family.data_sets if (d.channels, d.side, d.side) == wanted), None)


def classes_of(
    family: Family,
    count: int,
    size: tuple[int, int],
    channels: int,
    answers: Answers,
    notes: list[str],
) -> tuple[str, ...]:
    """Names of the classes.

    Raises:
        UsageError: the user names another number of them.
    """
    if answers.classes is not None:
        if len(answers.classes) != count:
            raise UsageError(
                f"The network has {count} classes.",
                f"--classes names {len(answers.classes)}.",
                f"Name {count}.",
            )
        return answers.classes
    own = data_set_of(family, size, channels)
    if own is not None and len(own.classes) == count:
        notes.append(f"classes as in {own.name} (otherwise: --classes)")
        return own.classes
    notes.append("classes without names (--classes names them)")
    return tuple(f"class {k}" for k in range(count))
