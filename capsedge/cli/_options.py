"""Define options that several verbs share, and parse their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli._parameters import Option
from capsedge.cli._paths import READS_DATA, READS_OR_NAME, ROLES, PathRole
from capsedge.errors import UsageError
from capsedge.options import (
    LARGEST_BATCH,
    LARGEST_COUNT,
    Declared,
    Options,
    bounds,
    declared,
    number,
    option,
    whole,
    within,
    words,
)
from capsedge.runtime.files import reading
from capsedge.spec import limits
from capsedge.spec.vocabularies import (
    ORDERS,
    PER_IMAGE,
    PIXEL_RANGES,
    RESIZE_RULES,
    SCORE_KINDS,
    TASK_CHOICES,
)

if TYPE_CHECKING:
    from capsedge.models.user_module import UserModuleSpec


# --- Single options ---

Json = Annotated[bool, Option("--json", help="Print one JSON document instead of text.")]
Checkpoint = Annotated[
    Path | None,
    Option(
        "--checkpoint",
        metavar="NAME|FILE",
        help="Checkpoint, .safetensors or .pt, or the name of a model, such as digits-em (an unknown name "
        "lists all models); the zoo's digit model by default.",
    ),
    READS_OR_NAME,
]
Device = Annotated[
    str | None,
    Option("--device", help="cpu, cuda or cuda:1; by default the CPU, or the GPU for an engine."),
]
BatchSizes = Annotated[
    tuple[int, ...],
    Option("--batch", help="Batch sizes, for example 1,8.", min=1, max=LARGEST_BATCH),
]
DeployedFolder = Annotated[
    Path,
    Option("-o", "--output", help="The folder; that of an earlier run is replaced."),
    PathRole(written=lambda folder: [folder / "capsedge.json"], creates=True),
]
Limit = Annotated[
    int | None,
    Option(
        "--limit", min=1, max=LARGEST_COUNT, help="Use only N evaluation images, chosen at random."
    ),
]


def exclude(**options: object) -> None:
    """Refuse options that cannot be used together.

    Raises:
        UsageError: more than one of them is given.
    """
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value not in (None, False)
    ]
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} cannot be used together.", "", "Use one of them."
        )


# --- Option dataclasses, each of which a verb takes as one parameter ---


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The verb, with an option for each field of its parameters that are option dataclasses."""
    # Not typing.get_type_hints: with a default of None, Python 3.10 hides the option in an Optional.
    given = inspect.signature(command, eval_str=True).parameters
    groups = {
        name: [each for each in declared(p.annotation) if each.option.names]
        for name, p in given.items()
        if isinstance(p.annotation, type) and issubclass(p.annotation, Options)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in given.values():
        own = [_parameter(each) for each in groups.get(parameter.name, ())]
        parameters += own or [parameter.replace(kind=parameter.KEYWORD_ONLY)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: given[name].annotation(**{each.name: values.pop(each.name) for each in group})
            for name, group in groups.items()
        }
        command(**values, **made)

    del run.__wrapped__  # its signature differs
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


def _parameter(each: Declared) -> inspect.Parameter:
    """A field of an option dataclass as a parameter of a verb."""
    kind: Any = str if each.option.parse else each.kind
    kind = tuple[kind, ...] if each.several else kind
    roles = [ROLES[each.option.path]] if each.option.path else []
    annotation = Annotated[(kind, each.option, *roles)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(each.name, keyword, default=each.default, annotation=annotation)


# --- Options that name the user's own network, for the verbs that run PyTorch ---

_PANEL = "Your own network"


@dataclass(frozen=True)
class UserModuleOptions(Options):
    """``--module`` and its companion options."""

    module: str | None = option(
        None,
        "Your own PyTorch code, which is run: capsnet.py:CapsNet or package.module:CapsNet. The name is a "
        "class, or a function that returns a module.",
        panel=_PANEL,
        path="code",
    )
    weights: Path | None = option(
        None,
        "Weights for --module: .pt, .pth, .tar, .chkpt, .ckpt, .bin or .safetensors.",
        panel=_PANEL,
        path="reads",
    )
    args: str = option(
        "",
        "Arguments of --module as JSON: an object of named arguments, or an array.",
        panel=_PANEL,
    )

    def spec(self, **others: object) -> UserModuleSpec | None:
        """The user's module; None without ``--module``.

        Args:
            others: options that also name a model, and so exclude ``--module``.

        Raises:
            UsageError: options contradict each other.
        """
        if self.module is None:
            for name, value in (("--weights", self.weights), ("--args", self.args)):
                if value:
                    raise UsageError(
                        f"{name} needs --module.",
                        "It applies only to your own network.",
                        "Name the network's code with --module capsnet.py:CapsNet, or use "
                        "--checkpoint for a checkpoint of this package.",
                    )
            return None
        for name, other in others.items():
            if other not in (None, False, ""):
                raise UsageError(
                    f"--module and --{name} cannot be used together.",
                    "Both select the network.",
                    f"Leave --{name} out; pass the weights of --module with --weights.",
                )
        from capsedge.models.user_module import UserModuleSpec

        return UserModuleSpec(self.module, str(self.weights or ""), self.args)


# --- Options that declare metadata, the same for every verb that writes ONNX files ---

_METADATA_PANEL = "Metadata of the file"


Typical = Annotated[
    Path | None,
    Option(
        "--typical-data",
        help="Images like those of training: a data set folder, npz, idx or images. The file then "
        "recognizes images with nothing to see.",
        panel=_METADATA_PANEL,
    ),
    READS_DATA,
]


@dataclass(frozen=True)
class MetadataOptions(Options):
    """The metadata of a file."""

    classes: Path | None = option(
        None,
        "Names of the classes: a text file with one per line, or a,b,c.",
        path="list",
        panel=_METADATA_PANEL,
    )
    task: str | None = option(
        None,
        "classification (or single-label), multi-label or regression.",
        choices=TASK_CHOICES,
        panel=_METADATA_PANEL,
    )
    size: str | None = option(
        None,
        "Input height and width, such as 28x28; by default those that the graph fixes.",
        panel=_METADATA_PANEL,
    )
    pixel_range: str | None = option(
        None,
        "Pixels in training: 0-1 (the default), 0-255 or -1-1.",
        "--range",
        choices=tuple(PIXEL_RANGES),
        panel=_METADATA_PANEL,
    )
    mean: str | None = option(
        None,
        "Mean to subtract, on the scale of --range: one number, or one per channel.",
        panel=_METADATA_PANEL,
    )
    std: str | None = option(
        None, "Standard deviation to divide by, after --mean.", panel=_METADATA_PANEL
    )
    per_image: str | None = option(
        None,
        "Normalize each image by itself: standardize, or min-max (stretch to the full range).",
        choices=PER_IMAGE[1:],
        panel=_METADATA_PANEL,
    )
    order: str | None = option(
        None,
        "Order of the input's channels: RGB, or BGR as in OpenCV.",
        choices=ORDERS,
        panel=_METADATA_PANEL,
    )
    resize: str | None = option(
        None,
        "How images are brought to the input size: stretch, pad, crop or center.",
        choices=RESIZE_RULES,
        panel=_METADATA_PANEL,
    )
    scores: str | None = option(
        None,
        "Output that decides the class, if it is not called lengths or logits.",
        panel=_METADATA_PANEL,
    )
    score_kind: str | None = option(
        None,
        "What that output holds: length, logits or probability; by default inferred from its values.",
        choices=SCORE_KINDS,
        panel=_METADATA_PANEL,
    )
    poses: str | None = option(
        None, "Output with a pose for each class, if it is not called poses.", panel=_METADATA_PANEL
    )
    values: str | None = option(
        None, "Outputs that hold a regression's values; all by default.", panel=_METADATA_PANEL
    )
    outputs: str | None = option(
        None, "Names of a regression's values, such as yaw,pitch,roll.", panel=_METADATA_PANEL
    )
    units: str | None = option(
        None, "Their units: one for all, such as degrees, or one for each.", panel=_METADATA_PANEL
    )

    def keywords(self) -> dict[str, Any]:
        """The keywords ``class_names``, ``preprocessing``, ``task`` and ``outputs`` of `capsedge.export`.

        Raises:
            UsageError: an option has a wrong value, or contradicts another.
        """
        return _keywords(**vars(self))


def _keywords(**options: Any) -> dict[str, Any]:
    from capsedge.runtime.metadata import Outputs

    lists = {name: _list(name, options[name]) for name in ("values", "outputs", "units")}
    outputs = Outputs(
        options["scores"] or "", options["score_kind"] or "", options["poses"] or "",
        lists["values"], lists["outputs"], lists["units"],
    )  # fmt: skip
    declared = {
        "class_names": None if options["classes"] is None else class_names(options["classes"]),
        "preprocessing": _preprocessing(options) or None,
        "task": options["task"],
        "outputs": outputs if outputs != Outputs() else None,
    }
    return {name: value for name, value in declared.items() if value is not None}


def _list(option: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) and option != "units":
        raise UsageError(f"Invalid --{option} '{text}'.", "A name is empty.", "For example: a,b,c.")
    return found


def class_names(source: Path) -> list[str]:
    """Read names from a text file with one per line, or from a comma-separated list.

    A single word that names no file is the name of the only class, unless it looks like a file's.

    Raises:
        UsageError: there is no such file, or the text is not such a list.
    """
    text = str(source)
    if reading.path_kind(source) is None:
        if "," not in text and (source.suffix or source.name != text):
            raise UsageError(
                f"There is no file {source}.",
                "--classes takes a text file with one class per line, or a list of classes.",
                "Check the path, or list the classes: --classes a,b,c.",
            )
        return _named(text.split(","), "--classes", "name")
    with reading.open_regular_file(source, "Pass a text file with one class per line.") as file:
        data = file.read(limits.METADATA_BYTES + 1)
    if len(data) > limits.METADATA_BYTES:
        raise UsageError(
            f"{source} is too large to be a list of classes.",
            "",
            "Pass a text file with one class per line.",
        )
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text.", f"{error}.", "Save it as UTF-8.") from None
    while lines and not lines[-1].strip():
        lines.pop()
    return _named(lines, str(source), "line")


def _named(parts: list[str], source: str, what: str) -> list[str]:
    names = [part.strip() for part in parts]
    for count, name in enumerate(names, start=1):
        if not name or not name.isprintable():
            problem = "is empty" if not name else "has characters that cannot be printed"
            raise UsageError(
                f"{source}: {what} {count} {problem}.",
                "It names a class.",
                "Give every class a name.",
            )
    if not names:
        raise UsageError(f"{source} contains no class names.", "", "Write one class name per line.")
    return names


def _preprocessing(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of the preprocessing that the options state."""
    changes: dict[str, Any] = {}
    if options["size"] is not None:
        changes["height"], changes["width"] = _size(options["size"])
    if any(options[name] is not None for name in ("pixel_range", "mean", "std")):
        chosen = "0-1" if options["pixel_range"] is None else options["pixel_range"]
        scale, offset = PIXEL_RANGES[chosen]
        mean = _numbers("mean", "0" if options["mean"] is None else options["mean"])
        std = _numbers("std", "1" if options["std"] is None else options["std"])
        if 0.0 in std:
            raise UsageError(
                "Invalid --std 0.", "Pixels are divided by this value.", "Use another number."
            )
        changes |= {"scale": scale, "mean": tuple(offset + m for m in mean), "std": std}
    for name in ("per_image", "order", "resize"):
        if options[name] is not None:
            changes[name] = options[name]
    if options["per_image"] == "standardize":
        for name in ("pixel_range", "mean", "std"):
            if options[name] is not None:
                raise UsageError(
                    f"--per-image standardize and --{name.removeprefix('pixel_')} cannot be used together.",
                    "Standardization uses the mean and standard deviation of each image instead.",
                    "Use one of them.",
                )
        changes |= {"mean": (0.0,), "std": (1.0,)}
    return changes


def _size(text: str) -> tuple[int, int]:
    height, cross, width = text.lower().partition("x")
    try:
        found = whole(height), whole(width if cross else "")
    except ValueError:
        found = (0, 0)
    if all(within(side, 1, limits.IMAGE_SIDE) for side in found):
        return found
    raise UsageError(
        f"Invalid --size '{text:.40}'.",
        f"The format is HEIGHTxWIDTH, in pixels {bounds(1, limits.IMAGE_SIDE)}.",
        "For example: --size 28x28.",
    )


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(number(part) for part in words(text))
    except ValueError:
        found = ()
    if not found or any(abs(each) > limits.INPUT_MAGNITUDE for each in found):
        raise UsageError(
            f"Invalid --{option} '{text:.40}'.",
            f"It takes one number, or one per channel, separated by commas, "
            f"{bounds(-limits.INPUT_MAGNITUDE, limits.INPUT_MAGNITUDE)}.",
            "For example: 0.485,0.456,0.406.",
        )
    return found
