"""What a verb reads and writes, as its parameters declare it; judged before the verb starts.

Every parameter that is a path names its role in its annotation, ``Annotated[Path, typer.Option(...),
WRITES]``; a test holds them to it.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import UsageError
from capsedge.runtime.files import opening
from capsedge.runtime.files.writing import check_apart, check_writable


@dataclass(frozen=True)
class Role:
    """What a path is for.

    Attributes:
        reads: whether it is read.
        flat: whether folders inside a folder are left alone.
        written: the files that are written for it.
    """

    reads: bool = False
    flat: bool = False
    written: Callable[[Path], list[Path]] = lambda _: []


READS = Role(reads=True)
WRITES = Role(written=lambda path: [path])
READS_FLAT = Role(reads=True, flat=True)
UPDATES = Role(reads=True, written=lambda path: [path])  # read if it is there, written in the end


def role_of(annotation: Any) -> Role | None:
    """The role that a parameter's annotation names."""
    return next((m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Role)), None)


def judged(command: Callable[..., None]) -> Callable[..., None]:
    """The verb, which begins with a judgement of the places that its parameters name."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        if not values.get("dry_run"):
            _judge(_roles(command), values)
        command(**values)

    return run


def _roles(command: Callable[..., None]) -> dict[str, Role]:
    hints = typing.get_type_hints(command, include_extras=True)
    return {name: role for name, hint in hints.items() if (role := role_of(hint)) is not None}


def _judge(roles: Mapping[str, Role], values: Mapping[str, Any]) -> None:
    inputs, flat, outputs = _package(), list[Path](), list[Path]()
    for name, role in roles.items():
        found = values.get(name)
        paths: list[Path] = found if isinstance(found, list) else [found] if found else []
        for path in paths:
            written = role.written(path)
            # Where there is no folder, the verb makes it or says what it misses.
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
    """Refuse what no verb reads; what is missing the verb itself knows best how to get."""
    found = opening.kind(path)
    if found not in (None, opening.FILE, opening.FOLDER):
        raise UsageError(
            f"Cannot read {path}.", f"It is a {found}.", "Name a file, or a folder where it is one."
        )


def _package() -> list[Path]:
    """The files that verbs take by default."""
    from capsedge.zoo import ROUTINGS, default_model, zoo_checkpoint

    return [default_model(), *map(zoo_checkpoint, ROUTINGS)]
