"""What describes a network, field by field: from a TOML file, a mapping, or options of the command line.

    classes = ["zero", "one"]       # or a text file with one name per line
    size = "28x28"
    range = "0-1"

`FIELDS` lists all. Paths in a file are relative to its folder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from capsedge.errors import UsageError
from capsedge.options import bounds, comma_separated, parse_number, parse_whole, within
from capsedge.runtime.files import reading
from capsedge.runtime.files.documents import MalformedJson, read_toml
from capsedge.runtime.metadata.metadata import Outputs
from capsedge.runtime.user_metadata import Description
from capsedge.spec import limits
from capsedge.spec.vocabularies import (
    ORDERS,
    PER_IMAGE,
    PIXEL_RANGES,
    RESIZE_RULES,
    SCORE_KINDS,
    TASK_CHOICES,
)

# Reads a value that is named in errors by the first argument; paths are relative to the folder.
_Reader = Callable[[str, Any, Path], Any]


def read_file(path: Path) -> dict[str, Any]:
    """The fields in a TOML file.

    Raises:
        UsageError: it cannot be read, or a field is unknown or wrong.
        EnvironmentProblem: Python is older than 3.11 and tomli is not installed.
    """
    fix = f"It is a TOML file with fields such as {', '.join(list(FIELDS)[:3])} (docs/reference/metadata.md)."
    try:
        fields = read_toml(path, fix)
        if not fields:
            raise UsageError("It has no field.", "An empty file describes nothing.", fix)
        return read_fields(fields, path.parent)
    except MalformedJson as error:
        raise UsageError(f"{path} is not TOML.", f"{error}.", fix) from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", error.why, error.fix) from error


def read_fields(
    given: Mapping[str, Any], folder: Path = Path(), prefix: str = ""
) -> dict[str, Any]:
    """The values of some fields, checked one by one.

    Args:
        given: as in a file, or as text.
        folder: paths are relative to it.
        prefix: of a field's name in errors: ``--`` for an option.

    Raises:
        UsageError: a field is unknown or wrong.
    """
    found = {}
    for name, value in given.items():
        if name not in FIELDS:
            raise UsageError(
                f"A description has no field {name!s:.40}.", "", f"Its fields: {', '.join(FIELDS)}."
            )
        found[name] = FIELDS[name](f"{prefix}{name}", value, folder)
    return found


def described(fields: Mapping[str, Any]) -> Description:
    """The description that the fields make together.

    Raises:
        UsageError: fields contradict each other.
    """
    get = fields.get
    outputs = Outputs(
        get("scores", ""), get("score_kind", ""), get("poses", ""),
        get("values", ()), get("outputs", ()), get("units", ()),
    )  # fmt: skip
    return Description(
        class_names=get("classes"),
        preprocessing=_preprocessing(fields) or None,
        task=get("task"),
        outputs=outputs if outputs != Outputs() else None,
        typical=get("typical_data"),
    )


def _preprocessing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of the preprocessing."""
    changes: dict[str, Any] = {}
    if "size" in fields:
        changes["height"], changes["width"] = fields["size"]
    of_all = [name for name in ("range", "mean", "std") if name in fields]
    if of_all:
        scale, offset = PIXEL_RANGES[fields.get("range", "0-1")]
        mean, std = fields.get("mean", (0.0,)), fields.get("std", (1.0,))
        changes |= {"scale": scale, "mean": tuple(offset + m for m in mean), "std": std}
    changes |= {name: fields[name] for name in ("per_image", "order", "resize") if name in fields}
    if fields.get("per_image") == "standardize":
        if of_all:
            raise UsageError(
                f"per_image standardize and {of_all[0]} cannot be used together.",
                "Standardization uses the mean and standard deviation of each image instead.",
                "Use one of them.",
            )
        changes |= {"mean": (0.0,), "std": (1.0,)}
    return changes


# --- The fields ---


def _text(name: str, value: Any, _: Path) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"Invalid {name} {value!s:.40}.", "It is a text.")
    return value


def _word(choices: Iterable[str], name: str, value: Any, _: Path) -> str:
    if value not in tuple(choices):
        raise UsageError(
            f"Invalid {name} {value!s:.40}.", "", f"Choose one of: {', '.join(choices)}."
        )
    return str(value)


def _path(name: str, value: Any, folder: Path) -> Path:
    if not isinstance(value, (str, Path)) or not str(value):
        raise UsageError(f"Invalid {name} {value!s:.40}.", "It is a path.")
    return folder / value


def _list(name: str, value: Any, _: Path) -> tuple[str, ...]:
    """Names, some of which may be empty only for units."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"Invalid {name} {value!s:.40}.", "It is a list of texts.")
    if not value or (not all(value) and not name.endswith("units")):
        raise UsageError(
            f"Invalid {name} {value!s:.40}.", "A name is empty.", "For example: a,b,c."
        )
    return tuple(value)


def _numbers(name: str, value: Any, _: Path) -> tuple[float, ...]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = [value]
    try:
        parts = comma_separated(value) if isinstance(value, str) else map(repr, map(float, value))
        found = tuple(parse_number(part) for part in parts)
    except (TypeError, ValueError):
        found = ()
    if not found or any(abs(each) > limits.INPUT_MAGNITUDE for each in found):
        raise UsageError(
            f"Invalid {name} '{value!s:.40}'.",
            f"It takes one number, or one per channel, separated by commas, "
            f"{bounds(-limits.INPUT_MAGNITUDE, limits.INPUT_MAGNITUDE)}.",
            "For example: 0.485,0.456,0.406.",
        )
    return found


def _divisors(name: str, value: Any, folder: Path) -> tuple[float, ...]:
    found = _numbers(name, value, folder)
    if 0.0 in found:
        raise UsageError(
            f"Invalid {name} 0.", "Pixels are divided by this value.", "Use another number."
        )
    return found


def _size(name: str, value: Any, _: Path) -> tuple[int, int]:
    """Height and width, as ``28x28`` or a list of both."""
    sides = value.lower().split("x") if isinstance(value, str) else value
    try:
        height, width = (parse_whole(str(side)) for side in sides)
    except (TypeError, ValueError):
        height = width = 0
    if within(height, 1, limits.IMAGE_SIDE) and within(width, 1, limits.IMAGE_SIDE):
        return height, width
    raise UsageError(
        f"Invalid {name} '{value!s:.40}'.",
        f"The format is HEIGHTxWIDTH, in pixels {bounds(1, limits.IMAGE_SIDE)}.",
        f"For example: {name} 28x28.",
    )


def _classes(name: str, value: Any, folder: Path) -> list[str]:
    if isinstance(value, (str, Path)):
        return class_names(Path(value), name, folder)
    return _named(list(_list(name, value, folder)), name, "name")


def class_names(source: Path, name: str = "classes", folder: Path = Path()) -> list[str]:
    """Read names from a text file with one per line, or from a comma-separated list.

    A single word that names no file is the name of the only class, unless it looks like a file's.

    Raises:
        UsageError: there is no such file, or the text is not such a list.
    """
    text, source = str(source), folder / source
    if reading.path_kind(source) is None:
        if "," not in text and (source.suffix or Path(text).name != text):
            raise UsageError(
                f"There is no file {source}.",
                f"{name} takes a text file with one class per line, or a list of classes.",
                "Check the path, or list the classes: a,b,c.",
            )
        return _named(text.split(","), name, "name")
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


def _one_of(*choices: str) -> _Reader:
    return functools.partial(_word, choices)


FIELDS: Mapping[str, _Reader] = {
    "classes": _classes,
    "task": _one_of(*TASK_CHOICES),
    "size": _size,
    "range": _one_of(*PIXEL_RANGES),
    "mean": _numbers,
    "std": _divisors,
    "per_image": _one_of(*PER_IMAGE[1:]),
    "order": _one_of(*ORDERS),
    "resize": _one_of(*RESIZE_RULES),
    "scores": _text,
    "score_kind": _one_of(*SCORE_KINDS),
    "poses": _text,
    "values": _list,
    "outputs": _list,
    "units": _list,
    "typical_data": _path,
}
