"""Declare a verb's parameters in the annotations of its function.

``Annotated[int | None, Option("--top", min=1, help="...")]``. `_commands` makes commands of them; a verb is
imported without the library that parses the command line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, init=False)
class Option:
    """An option of a verb.

    Attributes:
        names: such as ``-o`` and ``--output``; ``--on/--no-on`` for a switch that is on by default.
        help: what it is for.
        min, max: bounds of a number.
        metavar: placeholder of its value in the help; by default the type.
        panel: the heading under which the help lists it.
    """

    names: tuple[str, ...]
    help: str
    min: float | None
    max: float | None
    metavar: str
    panel: str

    def __init__(
        self,
        *names: str,
        help: str,
        min: float | None = None,
        max: float | None = None,
        metavar: str = "",
        panel: str = "Options",
    ) -> None:
        for name, value in locals().items():
            if name != "self":
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Argument:
    """A positional argument of a verb.

    Attributes:
        help: what it is for.
        metavar: its name in the help; by default that of the parameter in capitals.
    """

    help: str
    metavar: str = ""
