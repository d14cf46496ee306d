"""The files that a verb reads and writes, declared by its parameters and checked before it starts.

Every parameter that is a path names its role in its annotation, ``Annotated[Path, Option(...),
WRITES]``; a test enforces this.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import UsageError
from capsedge.runtime.files import opening
from capsedge.runtime.files.writing import check_apart, check_writable


@dataclass(frozen=True)
class Role:
    """How a verb uses a path, or a text that names one.

    Attributes:
        reads: whether it is read.
        flat: whether a folder is read without its subfolders.
        written: returns the files that are written for it.
        named: the path in the value; None if it names none.
    """

    reads: bool = False
    flat: bool = False
    written: Callable[[Path], list[Path]] = lambda _: []
    named: Callable[[Any], Path | None] = Path


READS = Role(reads=True)
WRITES = Role(written=lambda path: [path])
READS_FLAT = Role(reads=True, flat=True)


def _code(text: str) -> Path | None:
    """The file in ``file.py:Name``."""
    place = text.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else None


def _arrays(text: str) -> Path | None:
    """The file among values that are shapes otherwise."""
    return Path(text) if text.endswith((".npy", ".npz")) else None


READS_CODE = Role(reads=True, named=_code)
READS_ARRAYS = Role(reads=True, named=_arrays)
UPDATES = Role(reads=True, written=lambda path: [path])  # read if it exists, written at the end


def role_of(annotation: Any) -> Role | None:
    """The role that a parameter's annotation names."""
    return next((m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Role)), None)


def judged(command: Callable[..., None]) -> Callable[..., None]:
    """The verb, preceded by a check of the paths in its parameters."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        if not values.get("dry_run"):
            _judge(_roles(command), values)
        command(**values)

    return run


def _roles(command: Callable[..., None]) -> dict[str, Role]:
    # Not typing.get_type_hints: with a default of None, Python 3.10 hides the role in an Optional.
    declared = inspect.signature(command, eval_str=True).parameters
    found = {name: role_of(parameter.annotation) for name, parameter in declared.items()}
    return {name: role for name, role in found.items() if role is not None}


def _judge(roles: Mapping[str, Role], values: Mapping[str, Any]) -> None:
    inputs, flat, outputs = _package(), list[Path](), list[Path]()
    for name, role in roles.items():
        value = values.get(name)
        given = value if isinstance(value, list) else [value] if value else []
        for path in filter(None, map(role.named, given)):
            written = role.written(path)
            # If the folder does not exist, the verb creates it or reports it.
            outputs += [p for p in written if opening.kind(p.parent) is not None]
            if role.reads:
                _check_readable(path)
                if not written:
                    (flat if role.flat else inputs).append(path)
    for path in outputs:
        check_writable(path)
    if outputs:
        check_apart(outputs, inputs, flat)


def _check_readable(path: Path) -> None:
    """Refuse pipes, sockets and devices; a missing file is left to the verb, which knows how to get it."""
    kind = opening.kind(path)
    if kind not in (None, opening.FILE, opening.FOLDER):
        raise UsageError(
            f"Cannot read {path}.", f"It is a {kind}.", "Name a file or, where accepted, a folder."
        )


def _package() -> list[Path]:
    """The files that verbs read by default."""
    from capsedge.zoo import default_model, zoo_checkpoints

    return [default_model(), *zoo_checkpoints()]
