"""Declare a verb's parameters in the annotations of its function.

``Annotated[int | None, Option("--top", min=1, help="...")]``. `_commands` makes commands of them; a verb is
imported without the library that parses the command line. Options that Python has too are the fields of a
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
        help: what it is for.
        metavar: its name in the help; by default that of the parameter in capitals.
        choices: the words that it can be; any by default.
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
