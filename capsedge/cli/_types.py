"""The types of parameters: click's, whose errors say what, why and how to fix it, as all others do."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from capsedge.errors import UsageError
from capsedge.options import bounds, comma_separated, parse_number, parse_whole, within

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from capsedge.cli._options import Argument
    from capsedge.options import Option

    _Kind = click.ParamType[Any]
else:
    _Kind = click.ParamType  # has no parameters before click 8.5


class Whole(click.IntRange):
    """Whole numbers within bounds, in digits of ASCII."""

    name = "integer"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number."""
        try:
            return super().convert(parse_whole(value), param, ctx)
        except (ValueError, click.BadParameter):
            _refuse(self, value, param)


class Real(click.FloatRange):
    """Numbers within bounds, in digits of ASCII; neither infinite nor NaN."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number."""
        try:
            return super().convert(parse_number(value), param, ctx)
        except (ValueError, click.BadParameter):
            _refuse(self, value, param)


if TYPE_CHECKING:
    _Choice = click.Choice[str]
    _Path = click.Path[pathlib.Path]
else:
    _Choice, _Path = click.Choice, click.Path


class Word(_Choice):
    """One of some words."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The word."""
        if value not in self.choices:
            raise UsageError(
                f"Invalid {parameter_label(param)} {value!s:.40}.",
                "",
                f"Choose one of: {', '.join(self.choices)}.",
            )
        return str(value)


class Path(_Path):
    """Files and folders; `_paths` checks them."""

    def convert(self, value: Any, param: Any, ctx: Any) -> pathlib.Path:
        """The path; an empty one would be the current folder."""
        return pathlib.Path(_some(value, param))


class ModelPath(Path):
    """Models: files, and names of the zoo."""

    def convert(self, value: Any, param: Any, ctx: Any) -> pathlib.Path:
        """The path, which is absolute if it would otherwise be read as a name, as ``./digits-em`` would."""
        from capsedge.runtime.zoo import zoo_model

        path = super().convert(value, param, ctx)
        named = str(path) == str(value) or zoo_model(str(path)) is None
        return path if named else path.absolute()


class Text(_Kind):
    """Any text that is not empty."""

    name = "text"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The text."""
        return str(_some(value, param))


def _some(value: Any, param: Any) -> Any:
    """The value of a parameter, which must not be the empty text."""
    if value == "":
        raise UsageError(
            f"{parameter_label(param)} is empty.",
            "A variable that is not set is an empty word in a command.",
            "Pass a value, or leave it out.",
        )
    return value


class Parsed(_Kind):
    """What a function makes of a text."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value."""
        try:
            return self._parse(value)
        except UsageError:
            raise
        except (ValueError, TypeError):
            raise UsageError(
                f"Invalid {parameter_label(param)} {value!s:.40}.", param.help
            ) from None


class Several(_Kind):
    """A tuple of values separated by commas.

    Attributes:
        inner: the type of each.
    """

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner, self.name = inner, inner.name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """The values."""
        parts = [value] if isinstance(self.inner, Parsed) else comma_separated(value)
        if not parts:
            raise UsageError(f"{parameter_label(param)} has no value.", param.help, "Leave it out.")
        return tuple(self.inner.convert(part, param, ctx) for part in parts)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The words that are not named yet, behind those that are."""
        before, comma, start = incomplete.rpartition(",")
        found = self.inner.shell_complete(ctx, param, start)
        for item in found:
            item.value = before + comma + item.value
        return [i for i in found if i.value.rpartition(",")[2] not in before.split(",")]


def click_type(kind: type, declared: Option | Argument) -> click.ParamType[Any]:
    """The type of a parameter.

    Args:
        kind: `str`, `pathlib.Path`, `int` or `float`.
        declared: its choices and bounds, or what parses it.
    """
    if parse := getattr(declared, "parse", None):
        return Parsed(parse)
    if declared.choices:
        return Word(declared.choices)
    low, high = getattr(declared, "min", None), getattr(declared, "max", None)
    if kind is int:
        return Whole(low, high)
    if kind is float:
        return Real(low, high)
    if kind is pathlib.Path:
        model = declared.complete == "zoo" or getattr(declared, "path", "") == "model"
        return (ModelPath if model else Path)(path_type=pathlib.Path)
    return Text()


def single_value_type(kind: Any) -> Any:
    """The type of one value."""
    return kind.inner if isinstance(kind, Several) else kind


def parameter_label(param: Any) -> str:
    """A parameter's name on the command line."""
    return str(getattr(param, "shown", "") or max(param.opts, key=len)).removesuffix("...")


def _refuse(kind: Whole | Real, value: object, param: Any) -> NoReturn:
    what = "a whole number" if isinstance(kind, Whole) else "a number"
    low, high = kind.min, kind.max
    of = "of " if None in (low, high) else ""
    limits = "" if low is high is None else f" {of}{bounds(low, high)}"
    example = f"{parameter_label(param)} {_side(kind, value) or _example(kind, param)}"
    raise UsageError(
        f"Invalid {parameter_label(param)} {value!s:.40}.",
        f"It takes {what}{limits}.",
        f"For example: {example}." if isinstance(param, click.Option) else "",
    )


def _side(kind: Whole | Real, value: object) -> str:
    """The side of a square such as ``48x48``, where one number is wanted."""
    side, cross, other = str(value).lower().partition("x")
    fits = cross and side == other and isinstance(kind, Whole)
    fits = fits and side.isascii() and side.isdecimal()
    return side if fits and within(int(side[:9]), kind.min, kind.max) else ""


def _example(kind: Whole | Real, param: Any) -> str:
    if isinstance(param.preset, (int, float)):
        return f"{param.preset:g}"
    least = next((bound for bound in (kind.min, kind.max) if bound is not None), 1)
    return f"{max(least, min(1.0, kind.max or 1.0)):g}"
