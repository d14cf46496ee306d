"""Declare the parameters of verbs, and the options that several share.

A verb's parameters are in the annotations of its function, ``Annotated[int | None, Option("--top", min=1,
help="...")]``, so that it can be imported without click; `_commands` turns them into commands. Options that
the Python interface also has are fields of a dataclass (`capsedge.options`), which a verb takes as one
parameter.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from capsedge.cli._paths import READS_DATA, READS_OR_NAME, ROLES, PathRole, description_file
from capsedge.errors import UsageError
from capsedge.options import (
    LARGEST_BATCH,
    LARGEST_COUNT,
    Declared,
    Option,
    Options,
    declared,
    option,
)
from capsedge.runtime.files import reading
from capsedge.spec.vocabularies import DESCRIPTION_FIELDS, PIXEL_RANGES, TASK_CHOICES

if TYPE_CHECKING:
    from capsedge.models.user.module import UserModuleSpec
    from capsedge.runtime.user_metadata import Description


@dataclass(frozen=True)
class Argument:
    """A positional argument of a verb, in the annotation of a parameter.

    Attributes:
        help: its purpose.
        metavar: its name in the help; by default the parameter's name in capitals.
        choices: the allowed words; any by default.
        complete: as of `Option`.
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    complete: tuple[str, ...] | str = ()


# --- Single options ---

Json = Annotated[bool, Option("--json", help="Print one JSON document instead of text.")]
Checkpoint = Annotated[
    Path | None,
    Option(
        "--checkpoint",
        metavar="NAME|FILE",
        help="Checkpoint, .safetensors or .pt, or the name of a model, such as digits-em (an unknown name "
        "lists all models); the zoo's digit model by default.",
        panel="Network",
        complete="models",
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
    groups = {name: fields for name, p in given.items() if (fields := _fields(p.annotation))}
    parameters: list[inspect.Parameter] = []
    for parameter in given.values():
        own = [_parameter(each) for each in groups.get(parameter.name, ())]
        parameters += own or [parameter.replace(kind=parameter.KEYWORD_ONLY)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: _dataclass(given[name].annotation)(
                **{each.name: values.pop(each.name) for each in group}
            )
            for name, group in groups.items()
        }
        command(**values, **made)

    del run.__wrapped__  # its signature differs
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


@dataclass(frozen=True)
class Only:
    """The fields of an option dataclass that a verb has, as in ``Annotated[RuntimeOptions, Only("ops")]``."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


def _dataclass(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _fields(annotation: Any) -> list[Declared]:
    """The options of a parameter that is an option dataclass; none of any other."""
    kind = _dataclass(annotation)
    if not (isinstance(kind, type) and issubclass(kind, Options)):
        return []
    only = next(
        (m.names for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Only)), ()
    )
    return [e for e in declared(kind) if e.option.names and (not only or e.name in only)]


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
        from capsedge.models.user.module import UserModuleSpec

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


def _description(text: str) -> str:
    """A file, or a field.

    Raises:
        UsageError: it is neither.
    """
    name, equals, _ = text.partition("=")
    if equals and name not in DESCRIPTION_FIELDS and reading.path_kind(text) is None:
        raise UsageError(
            f"Invalid --describe {text:.40}.",
            f"There is no such file, and no field {name:.40}.",
            f"Its fields: {', '.join(DESCRIPTION_FIELDS)}.",
        )
    return text


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
        "classification (or single-label), multi-label, regression or segmentation.",
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
    describe: tuple[str, ...] = option(
        (),
        "A TOML file of these and further fields, or one field as NAME=VALUE: "
        f"{', '.join(DESCRIPTION_FIELDS[6:])}. The options above override it. Repeatable.",
        metavar="FILE|NAME=VALUE",
        parse=_description,
        path="description",
        panel=_METADATA_PANEL,
        complete=tuple(f"{name}=" for name in DESCRIPTION_FIELDS[6:]),
    )

    def description(self, typical: Path | None = None) -> Description:
        """What the options and the files say of a network.

        Args:
            typical: the value of ``--typical-data``.

        Raises:
            UsageError: an option has a wrong value, or contradicts another.
        """
        from capsedge.runtime.user_metadata import Description

        own = {
            "classes": self.classes, "task": self.task, "size": self.size,
            "range": self.pixel_range, "mean": self.mean, "std": self.std,
        }  # fmt: skip
        own = {name: value for name, value in own.items() if value is not None}
        if not (own or self.describe or typical):
            return Description()
        from capsedge.runtime.description_fields import described, read_fields, read_file

        fields: dict[str, Any] = {}
        for text in self.describe:
            name, _, value = text.partition("=")
            given = {name: value} if description_file(text) is None else None
            fields |= read_file(Path(text)) if given is None else read_fields(given)
        fields |= read_fields(own, prefix="--")
        return described(fields | ({} if typical is None else {"typical_data": typical}))
