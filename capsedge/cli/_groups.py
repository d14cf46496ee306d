"""Options that belong together: the fields of a dataclass, which a verb takes as one parameter."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The verb with an option for each field of the parameters that are dataclasses.

    A field is declared as a parameter is: ``name: Annotated[kind, Option(...)] = default``.
    """
    # Not typing.get_type_hints: with a default of None, Python 3.10 hides the option in an Optional.
    declared = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        n: p.annotation for n, p in declared.items() if dataclasses.is_dataclass(p.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in declared.values():
        if parameter.name not in groups:
            parameters.append(parameter)
            continue
        kind = groups[parameter.name]
        options = typing.get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                f.name, parameter.KEYWORD_ONLY, default=f.default, annotation=options[f.name]
            )
            for f in dataclasses.fields(kind)
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: kind(**{f.name: values.pop(f.name) for f in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        command(**values, **made)

    del run.__wrapped__  # its signature is another
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run
