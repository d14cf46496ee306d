"""Declare a verb's parameters in the annotations of its function.

``Annotated[int | None, Option("--top", min=1, help="...")]``. `_commands` turns them into commands, so a verb
can be imported without the command-line library. Options that the Python interface also has are fields of a
dataclass (`capsedge.options`), which a verb takes as one parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.options import Option

__all__ = ["Argument", "Option"]


@dataclass(frozen=True)
class Argument:
    """A positional argument of a verb.

    Attributes:
        help: its purpose.
        metavar: its name in the help; by default the parameter's name in capitals.
        choices: the allowed words; any by default.
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
