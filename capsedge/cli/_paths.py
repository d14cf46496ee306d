"""Check the files that a verb reads and writes before it starts, based on its parameters' annotations.

Every parameter that is a path names its role in its annotation, ``Annotated[Path, Option(...),
WRITES]``; a test enforces this.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import UsageError
from capsedge.runtime.files import reading
from capsedge.runtime.files.writing import check_apart, check_creatable, check_writable
from capsedge.runtime.video.frames import camera_device
from capsedge.spec.vocabularies import DESCRIPTION_FIELDS

Check = Callable[[Path], None]


@dataclass(frozen=True)
class PathRole:
    """How a verb uses a path, or a text that contains one.

    Attributes:
        reads: whether it is read.
        flat: whether a folder is read without its subfolders.
        check: refuses an input that is missing or not of the right kind; by default only a missing one.
        any_of: whether one valid path among several is enough; the verb reports the others.
        written: returns the files to be written for it.
        creates: whether the verb creates the output's folder.
        named: the path in the value; None if it names none.
        resolved: what the verb gets for the value.
    """

    reads: bool = False
    flat: bool = False
    check: Check = lambda path: _check_present(path)
    any_of: bool = False
    written: Callable[[Path], list[Path]] = lambda _: []
    creates: bool = False
    named: Callable[[Any], Path | None] = Path
    resolved: Callable[[Any], Any] = lambda value: value


def _check_present(path: Path) -> None:
    if reading.path_kind(path) is None:
        raise UsageError(f"Cannot read {path}.", "There is no such file.", "Check the path.")


def check_data(path: Path) -> None:
    """Refuse a path to data that does not exist."""
    if reading.path_kind(path) is None:
        raise UsageError(
            f"There is no file or folder {path}.", "", "Pass a folder or a file with images."
        )


def _check_repository(path: Path) -> None:
    if reading.path_kind(path) is None:
        raise UsageError(
            f"There is no folder {path}.", "", "Write one with `capsedge deploy triton`."
        )


def check_model(path: Path) -> None:
    """Refuse a path to what cannot be a model file or an engine, without reading it."""
    from capsedge.runtime.files.formats import is_engine
    from capsedge.runtime.onnx_file.summary import check_model_path

    if is_engine(path):
        _check_present(path)
    else:
        check_model_path(path)


def _check_model_or_folder(path: Path) -> None:
    if reading.path_kind(path) != reading.FOLDER:
        check_model(path)


def _check_image(path: Path) -> None:
    from capsedge.runtime.images.decoding import check_image

    check_image(path)


def file_unless_model_name(text: Any) -> Path | None:
    """The file, unless the text is a model's name."""
    path = Path(text)
    plain = path.name == str(text) and not path.suffix
    return None if plain and reading.path_kind(path) is None else path


def model_file_unless_name(text: Any) -> Path | None:
    """The model's file; None for a bundled model, whatever files the folder has."""
    from capsedge.runtime.zoo import zoo_model

    return file_unless_model_name(text) if zoo_model(str(text)) is None else None


def _code(text: str) -> Path | None:
    """The file in ``file.py:Name``."""
    place = text.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else None


def _arrays(text: str) -> Path | None:
    """The file among values that are otherwise shapes."""
    return Path(text) if text.endswith((".npy", ".npz")) else None


def _list(text: Any) -> Path | None:
    """The file, unless the text is a list, or the name of a single class."""
    return file_unless_model_name(text) if "," not in str(text) or reading.path_kind(text) else None


def description_file(text: str) -> Path | None:
    """The file of a description, unless the text is one of its fields."""
    return None if text.partition("=")[0] in DESCRIPTION_FIELDS and "=" in text else Path(text)


def _image(path: Path) -> Path | None:
    """The file or folder; ``-`` and cameras are left to the verb."""
    return None if str(path) == "-" or camera_device(path) else path


def _file_or_folder(path: Path) -> list[Path]:
    """A file, or pictures in a folder, which is there or has no suffix."""
    folder = not path.suffix or reading.path_kind(path) == reading.FOLDER
    return [path / "000000.png"] if folder else [path]


def _zoo_file(path: Path) -> Path:
    """The file, by its name in the zoo or by its path."""
    from capsedge.runtime.zoo import unknown_model, zoo_model

    file = zoo_model(str(path)) or file_unless_model_name(path)
    if file is None:
        raise unknown_model(str(path))
    return file


def default_output(model: Path, name: str) -> Path:
    """A file or folder beside the model; for a model of the package, in the current folder."""
    from capsedge.runtime.zoo import default_model

    bundled = model.resolve().parent == default_model().resolve().parent
    return Path(name) if bundled else model.with_name(name)


READS = PathRole(reads=True)
READS_FILE_OR_NAME = PathRole(reads=True, resolved=_zoo_file)
READS_MODEL = PathRole(reads=True, check=check_model, resolved=_zoo_file)
READS_MODEL_OR_NAME = PathRole(reads=True, check=check_model, named=model_file_unless_name)
READS_MODEL_OR_FOLDER = PathRole(
    reads=True, check=_check_model_or_folder, named=model_file_unless_name
)
READS_OR_NAME = PathRole(reads=True, named=file_unless_model_name)
READS_DATA = PathRole(reads=True, check=check_data)
READS_IMAGES = PathRole(reads=True, flat=True, check=_check_image, any_of=True, named=_image)
READS_REPOSITORY = PathRole(reads=True, check=_check_repository, named=file_unless_model_name)
READS_CODE = PathRole(reads=True, named=_code)
READS_ARRAYS = PathRole(reads=True, named=_arrays)
READS_LIST = PathRole(reads=True, named=_list)
WRITES = PathRole(written=lambda path: [path])
WRITES_FILE_OR_FOLDER = PathRole(written=_file_or_folder, creates=True)
WRITES_MASKS = PathRole(written=lambda folder: [folder / "mask.png"], creates=True)
# Read if it exists, written at the end.
UPDATES = PathRole(reads=True, check=lambda _: None, written=lambda path: [path])
KEEPS = PathRole(written=lambda folder: [folder / "sweep-state.json"], creates=True)
# By the names used in option dataclasses (`capsedge.options.Option.path`).
ROLES: Mapping[str, PathRole] = {
    "arrays": READS_ARRAYS,
    "code": READS_CODE,
    "data": READS_DATA,
    "description": PathRole(reads=True, named=description_file),
    "keeps": KEEPS,
    "list": READS_LIST,
    "model": READS_MODEL,
    "reads": READS,
    "reads or name": READS_OR_NAME,
    "updates": UPDATES,
    "writes": WRITES,
}


def role_of(annotation: Any) -> PathRole | None:
    """The role named in a parameter's annotation."""
    return next(
        (m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, PathRole)), None
    )


def checked_paths(command: Callable[..., None]) -> Callable[..., None]:
    """The verb, preceded by a check of the paths in its parameters."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        roles = _roles(command)
        for name in roles.keys() & values.keys():
            values[name] = _resolved(roles[name], values[name])
        _check_paths(roles, values, dry=bool(values.get("dry_run")))
        command(**values)

    return run


def _roles(command: Callable[..., None]) -> dict[str, PathRole]:
    # Not typing.get_type_hints: with a default of None, Python 3.10 hides the role in an Optional.
    declared = inspect.signature(command, eval_str=True).parameters
    found = {name: role_of(parameter.annotation) for name, parameter in declared.items()}
    return {name: role for name, role in found.items() if role is not None}


def _resolved(role: PathRole, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(role.resolved, value))
    return role.resolved(value) if value else value


def _check_paths(roles: Mapping[str, PathRole], values: Mapping[str, Any], dry: bool) -> None:
    """Refuse paths that cannot be read or written, before packages are imported.

    Args:
        dry: whether nothing is written.

    Raises:
        UsageError: a path is missing, of the wrong kind, not permitted, or both read and written.
        ArtefactError: a model's file is empty or too large.
    """
    inputs, flat, outputs = _package(), list[Path](), list[Path]()
    for name, role in roles.items():
        value = values.get(name)
        given = value if isinstance(value, (list, tuple)) else [value] if value else []
        paths = [path for path in map(role.named, given) if path is not None]
        if role.reads:
            _check_readable(paths, role)
        for path in paths:
            written = role.written(path)
            if not written:
                (flat if role.flat else inputs).append(path)
            outputs += [] if dry else _writable(written, role.creates)
    if outputs:
        check_apart(outputs, inputs, flat)


def _writable(files: list[Path], creates: bool) -> list[Path]:
    """The files to write whose folder exists; the others are refused, or their folder will be created."""
    found = []
    for file in files:
        if creates and reading.path_kind(file.parent) is None:
            check_creatable(file.parent)
        else:
            check_writable(file)
            found.append(file)
    return found


def _check_readable(paths: list[Path], role: PathRole) -> None:
    """Refuse a path that is missing, unreadable, a pipe, a socket or a device."""
    present = []
    for path in paths:
        kind = reading.path_kind(path)
        if kind not in (None, reading.FILE, reading.FOLDER):
            raise UsageError(
                f"Cannot read {path}.",
                f"It is a {kind}.",
                "Pass a file or, where accepted, a folder.",
            )
        if kind is not None:
            present.append(path)
            if not os.access(path, os.R_OK):
                raise UsageError(
                    f"Cannot read {path}.",
                    "You have no permission to read it.",
                    "Check its permissions.",
                )
    for path in paths:
        if not (role.any_of and present):
            role.check(path)


def _package() -> list[Path]:
    """The files that verbs read by default."""
    from capsedge.runtime.zoo import default_model, zoo_checkpoints

    return [default_model(), *zoo_checkpoints()]
