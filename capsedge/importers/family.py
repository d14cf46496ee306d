"""Define a family of public networks: patterns, weights, variants, image sizes, open choices.

A family is a `Family` in a module of ``capsedge/importers/families``, and a line in its ``__init__.py``.
Its tensors are patterns of keys and shapes (`capsedge.importers.key_patterns`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.importers.key_patterns import Fit, Patterns, Shapes, fit
from capsedge.models.configs import ModelConfig
from capsedge.runtime.metadata.metadata import Outputs, Preprocessing

# --- Choices that a file of weights leaves to the user ---


class MissingChoice(UsageError):
    """One question that the file leaves open.

    Args:
        what: the question.
        why: why the file does not record it, and where it can usually be found.
        option: makes the choice on the command line.
        argument: makes the choice in Python.
        assumed: fields of `ImportChoices` with which the configuration can continue, so that further
            questions are found; empty if it cannot.
        fix, command: as for `CapsedgeError`; by default built from option and argument.
    """

    def __init__(
        self,
        what: str,
        why: str,
        option: str,
        argument: str,
        assumed: Mapping[str, Any],
        fix: str = "",
        command: str = "",
    ) -> None:
        fix = fix or f"Give it with {option} ({argument} in Python)."
        super().__init__(what, why, fix, command=command)
        self.option, self.argument, self.assumed = option, argument, assumed


def combine_missing_choices(questions: Sequence[MissingChoice]) -> UsageError:
    """One error for all questions; there must be at least one."""
    if len(questions) == 1:
        return questions[0]
    return UsageError(
        f"The file leaves {len(questions)} questions open.",
        "",
        "Give " + "; ".join(f"{q.option} ({q.argument} in Python)" for q in questions) + ".",
        command="Give " + "; ".join(q.option for q in questions) + ".",
        details=[f"{q.what} {q.why}" for q in questions],
    )


# --- What every reader returns ---

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """The content of a file of weights, in the form that families are fitted to.

    Attributes:
        tensors: FP32 tensors, by name.
        format: format of the file, in words.
        config: the model's configuration that the file stores (Keras); None if it has none.
        lambdas: names of the configuration's Lambda layers, whose code is never run.
        notes: remarks on what was omitted or unwrapped.
        readings: other ways to read the file, for one that fits no family as it is.
    """

    tensors: Mapping[str, Floats]
    format: str
    config: Mapping[str, Any] | None = None
    lambdas: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    readings: tuple[Weights, ...] = field(default=())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}


# --- Families ---

Sizes = Mapping[str, int]
Tensors = dict[str, Floats]


@dataclass(frozen=True)
class ImportChoices:
    """The user's statements about what the file does not record.

    Attributes:
        iterations: routing iterations, as the author's code counts them.
        variant: name of one of the family's variants.
        classes: names of the classes.
        preprocessing: the known fields of `Preprocessing`.
        task: ``single-label``, ``multi-label`` or ``regression``.
        outputs: names and units of a regression's values.
        inverse_temperature: λ of EM routing, if the author's code takes it as an argument.
        fields: fields of the configuration, from a key map.
        stored: the configuration that the file stores.
    """

    iterations: int | None = None
    variant: str | None = None
    classes: tuple[str, ...] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = None
    outputs: Outputs | None = None
    inverse_temperature: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    stored: Mapping[str, Any] | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the input; None if they are not known."""
        known = [self.preprocessing.get(name) for name in ("height", "width")]
        return None if None in known else (int(str(known[0])), int(str(known[1])))

    @property
    def pixels(self) -> dict[str, Any]:
        """The known fields of `Preprocessing`, except the size."""
        size = ("height", "width", "channels")
        return {name: v for name, v in self.preprocessing.items() if name not in size}


@dataclass(frozen=True)
class Variant:
    """One of several functions to which the same tensors may belong.

    Attributes:
        name: for ``--variant``.
        words: what it computes.
        fields: fields of the configuration.
        source: the repository, if not the family's, whose licence then does not cover it.
        licence: licence of that source; empty if it states none.
    """

    name: str
    words: str
    fields: Mapping[str, Any]
    source: str = ""
    licence: str = ""


@dataclass(frozen=True)
class DataSet:
    """A data set that the author's code reads, and how it does so.

    Attributes:
        name: name of the data set.
        channels, side: number of channels and side length of its images.
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
        name: for ``--family``.
        source: repository and file.
        licence: licence of the source, by its SPDX name; empty if the repository states none.
        dialect: its routing in one sentence.
        differences: how it differs from the paper.
        keys: patterns of the tensors that are always present (`capsedge.importers.family`); or, for networks
            with a varying number of layers, a function that returns the patterns for a file's shapes.
        optional: groups of tensors that may be present.
        configure: builds the configuration from the sizes and the choices; notes what it assumes.
        convert: returns the package's tensors by name, from the file's tensors and the configuration.
        iterations: the number, if the author's code fixes it; None if the user is asked.
        iterations_at: where authors usually state it.
        extra_iterations: weighted sums that the author's code computes beyond the number passed to it.
        renames: regular expressions and their replacements, for keys whose names changed; or a function that
            returns the names of all keys, if these follow from their order (Keras numbers its layers).
        counted: regular expression of layers whose numbers start anywhere, depending on the session, with the
            groups ``name`` and ``number``; here they are renumbered from 0.
        data_sets: those that the author's code reads.
        variants: functions that the file does not distinguish; empty if there is only one.
        variant: the default; empty if the user is asked.
        variant_at: how a user can find out.
        by_configuration: identifies files by the configuration that they store, instead of by ``keys``.
        signature: regular expression of a key that shows that a file without a configuration belongs to such
            a family; the file is then refused.
        lambdas: names of Lambda layers (regular expression) that ``configure`` accounts for.
    """

    name: str
    source: str
    licence: str
    dialect: str
    differences: tuple[str, ...]
    keys: Patterns | Callable[[Shapes], Patterns]
    configure: Callable[[Family, Sizes, ImportChoices, list[str]], ModelConfig]
    convert: Callable[[Mapping[str, Floats], ModelConfig], Tensors]
    optional: Sequence[Patterns] = ()
    iterations: int | None = None
    iterations_at: str = ""
    extra_iterations: int = 0
    renames: Sequence[tuple[str, str]] | Callable[[Iterable[str]], Mapping[str, str]] = ()
    counted: str = ""
    data_sets: tuple[DataSet, ...] = ()
    variants: tuple[Variant, ...] = ()
    variant: str = ""
    variant_at: str = ""
    by_configuration: Callable[[Mapping[str, Any], Shapes], Fit] | None = None
    signature: str = ""
    lambdas: str = ""

    def source_of(self, variant: str | None) -> tuple[str, str]:
        """Source and licence of a variant; of the default with None."""
        for known in self.variants:
            if known.name == (variant or self.variant) and known.source:
                return known.source, known.licence
        return self.source, self.licence

    def names(self, keys: Iterable[str]) -> dict[str, str]:
        """The name by which the family knows each key of a file."""
        keys = list(keys)
        if callable(self.renames):
            return dict(self.renames(keys))
        named = {}
        for key in keys:
            fitting = [(p, r) for p, r in self.renames if re.fullmatch(p, key)]
            named[key] = re.sub(*fitting[0], key) if fitting else key
        counted = {
            k: m for k, n in named.items() if self.counted and (m := re.match(self.counted, n))
        }
        for key, m in counted.items():
            same = {int(o["number"] or 0) for o in counted.values() if o["name"] == m["name"]}
            at = sorted(same).index(int(m["number"] or 0))
            named[key] = f"{m['name']}_{at}{named[key][m.end() :]}"
        return named

    def has_signature(self, keys: Iterable[str]) -> bool:
        """Whether keys belong to this family, whose identifying configuration the file may lack."""
        return bool(self.signature) and any(re.fullmatch(self.signature, key) for key in keys)

    def fit(self, weights: Weights) -> Fit:
        """How well a file fits this family."""
        shapes = weights.shapes
        if self.by_configuration is not None and weights.config is not None:
            return self.by_configuration(weights.config, shapes)
        named = {name: shapes[key] for key, name in self.names(shapes).items()}
        return fit(named, self.keys(named) if callable(self.keys) else self.keys, self.optional)


def weighted_sums_of(family: Family, choices: ImportChoices, notes: list[str]) -> int:
    """Routing iterations as this package counts them: weighted sums."""
    if choices.iterations is None and family.iterations is None:
        raise MissingChoice(
            "How many routing iterations does the network run?",
            f"The file does not record it; it is {family.iterations_at}.",
            "--iters N",
            "iterations=N",
            {"iterations": 3},
        )
    if choices.iterations is None:
        assert family.iterations is not None
        notes.append(f"{family.iterations} routing iterations, as in the author's code")
        return family.iterations + family.extra_iterations
    if family.extra_iterations:
        count = choices.iterations + family.extra_iterations
        notes.append(
            f"--iters {choices.iterations} makes {count} weighted sums in the author's code"
        )
    return choices.iterations + family.extra_iterations


def variant_of(family: Family, choices: ImportChoices, notes: list[str]) -> Mapping[str, Any]:
    """The fields of the configuration that the variant sets."""
    known = {v.name: v for v in family.variants}
    listed = "; ".join(f"{v.name}: {v.words}" for v in family.variants)
    wanted = choices.variant or family.variant
    if choices.variant is not None and choices.variant not in known:
        raise UsageError(
            f"{family.name} has no variant '{choices.variant}'.",
            f"Its variants: {listed}." if known else "It has no variants.",
            f"Use one of --variant {', '.join(known)}." if known else "Leave out --variant.",
        )
    if not known:
        return {}
    if not wanted:
        raise MissingChoice(
            f"Which variant of {family.name} is it?",
            f"The file does not record it, and the variants compute different functions: {listed}. "
            f"{family.variant_at}",
            f"--variant {'|'.join(known)}",
            "variant=",
            {"variant": family.variants[0].name},
        )
    if choices.variant is None:
        notes.append(f"variant '{wanted}': {known[wanted].words} (change with --variant)")
    return known[wanted].fields


def image_size_question(why: str, assumed: int | None = 64) -> MissingChoice:
    """The question about the size of the images.

    Args:
        assumed: a side that the network may have; None if no side is known to fit.
    """
    side = {"preprocessing": {"height": assumed, "width": assumed}}
    return MissingChoice(
        "How large are the network's images?",
        why,
        "--size HEIGHTxWIDTH",
        "preprocessing={'height': ..., 'width': ...}",
        {} if assumed is None else side,
        "Set the size of the training images: preprocessing={'height': ..., 'width': ...}.",
        "Set the size of the training images: --size HEIGHTxWIDTH.",
    )


def size_of(
    family: Family, classes: int, channels: int, choices: ImportChoices, notes: list[str]
) -> tuple[int, int]:
    """Height and width, chosen or as in the author's data set with these classes and channels."""
    if choices.size is not None:
        return choices.size
    own = [d for d in family.data_sets if (d.channels, len(d.classes)) == (channels, classes)]
    if len(own) != 1:
        raise image_size_question(
            "The file does not record it: the same weights fit images of many sizes."
        )
    side = own[0].side
    notes.append(
        f"images of {side}x{side} pixels, as the author's code reads {own[0].name} (change with --size)"
    )
    return side, side


def with_fields(config: ModelConfig, fields: Mapping[str, Any]) -> ModelConfig:
    """A configuration with the fields of a variant or a key map set."""
    known = {f.name for f in dataclasses.fields(config)}
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise UsageError(
            f"A network of the architecture {config.architecture} has no '{unknown[0]}'.",
            "",
            f"Choose one of: {', '.join(sorted(known))}.",
        )
    return config.replace(**fields)


def _preprocessing_of(
    family: Family, size: tuple[int, int], channels: int, choices: ImportChoices, notes: list[str]
) -> Preprocessing:
    """How pixels become the input: as the user states, or as in the author's code for its own data set."""
    values: dict[str, Any] = {}
    if not choices.pixels.keys() & {"scale", "mean", "std", "per_image"}:
        own = data_set_of(family, size, channels)
        if own is None:
            raise MissingChoice(
                "Which pixel values does the network expect?",
                "The file does not record it. Look in the training code, usually where the data set is "
                "loaded: ToTensor scales to 0..1, and Normalize(mean, std) follows it.",
                "--range 0-1|0-255|-1-1, with --mean and --std as in training",
                "preprocessing={'scale': ..., 'mean': ..., 'std': ...}",
                {"preprocessing": {"scale": 1 / 255}},
                "Set preprocessing={'scale': 1 / 255}, or 1, with 'mean' and 'std' as in training.",
                "Set --range 0-1, 0-255 or -1-1, with --mean and --std as in training.",
            )
        mean, std = own.mean, own.std
        values = {"mean": mean, "std": std}
        notes.append(
            f"pixels as the author's code reads {own.name}: 0 to 1"
            + (f", mean {list(mean)}, std {list(std)}" if any(mean) or set(std) != {1.0} else "")
            + " (change with --range, --mean, --std)"
        )
    declared = choices.preprocessing.get("channels", channels)
    if declared != channels:
        raise UsageError(
            f"The network takes images with {channels} channels.",
            f"The preprocessing states {declared}.",
            f"Set the channels to {channels}, or leave them out.",
        )
    try:
        return Preprocessing(*size, channels, **{**values, **choices.pixels})
    except (TypeError, ValueError) as error:
        raise UsageError(
            "The input cannot be described.",
            f"{error}.",
            "Use the fields listed in docs/reference/metadata.md; mean and std are tuples of one "
            "number, or of one per channel.",
        ) from error


def data_set_of(family: Family, size: tuple[int, int], channels: int) -> DataSet | None:
    """The data set of the author's code whose images have this size."""
    wanted = (channels, *size)
    return next((d for d in family.data_sets if (d.channels, d.side, d.side) == wanted), None)


def _classes_of(
    family: Family,
    count: int,
    size: tuple[int, int],
    channels: int,
    choices: ImportChoices,
    notes: list[str],
) -> tuple[str, ...]:
    """Names of the classes."""
    if choices.outputs is not None or choices.task == "regression":
        raise UsageError(
            f"The networks of the family {family.name} are classifiers.",
            "The given outputs belong to a regression, or have other names.",
            "Leave out `outputs` and the task.",
            command="Leave out --task regression, and outputs, units, values, scores and poses.",
        )
    if choices.classes is not None:
        if len(choices.classes) != count:
            raise UsageError(
                f"The network has {count} classes.",
                f"--classes names {len(choices.classes)}.",
                f"Name {count}.",
            )
        return choices.classes
    own = data_set_of(family, size, channels)
    if own is not None and len(own.classes) == count:
        notes.append(f"classes as in {own.name} (change with --classes)")
        return own.classes
    notes.append("the classes have no names (add them with --classes)")
    return tuple(f"class {k}" for k in range(count))


def images_and_classes(
    family: Family,
    count: int,
    channels: int,
    choices: ImportChoices,
    notes: list[str],
    size: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Class names and preprocessing, as fields of a configuration.

    Args:
        size: height and width, if the weights determine them.
    """
    size = size or size_of(family, count, channels, choices, notes)
    return {
        "class_names": _classes_of(family, count, size, channels, choices, notes),
        "preprocessing": _preprocessing_of(family, size, channels, choices, notes),
    }
