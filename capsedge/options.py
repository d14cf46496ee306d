"""Describe an option once: a field of a frozen dataclass that Python, the command line and the docs share.

    @dataclass(frozen=True)
    class ExportOptions(Options):
        opset: int = option(20, "Opset of the standard operators.", min=18, max=21)

gives ``ExportOptions(opset=18)`` in Python, ``--opset N`` on the command line with its help and completion,
and a row in the reference. Nothing heavy is imported here or by the modules that declare options: a shell
reads them when it completes a word.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from capsedge.errors import UsageError
from capsedge.spec import limits

DEFAULT_PANEL = "Options"

# Bounds that several options share.
LARGEST_COUNT = 2**31 - 1
LARGEST_SEED = 2**32 - 1  # NumPy and PyTorch take it
LONGEST_SECONDS = 86_400  # a day
LARGEST_TOLERANCE = 1e6
LARGEST_BATCH = 65_536  # images of one run
MOST_EPOCHS = 1_000_000
LEAST_RATE, LARGEST_RATE = 1e-12, 1000.0  # of learning


@dataclass(frozen=True, init=False)
class Option:
    """How an option is named, explained and limited.

    Attributes:
        names: on the command line, such as ``-o`` and ``--output``; ``--on/--no-on`` for a switch that is on
            by default; none for an option of Python alone.
        help: what it is for.
        min, max: bounds of a number; every number has both.
        metavar: placeholder of its value in the help; by default the type.
        panel: the heading under which the help lists it.
        path: what the command line checks of a path before it starts: a key of `cli._paths.ROLES`.
        parse: makes the value of the text on the command line; by default by the type.
        choices: of a text, or of each of several; those of a ``Literal`` need not be repeated.
        complete: what a shell offers besides files and choices: words, or a source of `cli._completion`.
    """

    names: tuple[str, ...]
    help: str
    min: float | None
    max: float | None
    metavar: str
    panel: str
    path: str
    parse: Callable[[str], Any] | None
    choices: tuple[str, ...]
    complete: tuple[str, ...] | str

    def __init__(
        self,
        *names: str,
        help: str,
        min: float | None = None,
        max: float | None = None,
        metavar: str = "",
        panel: str = DEFAULT_PANEL,
        path: str = "",
        parse: Callable[[str], Any] | None = None,
        choices: tuple[str, ...] = (),
        complete: tuple[str, ...] | str = (),
    ) -> None:
        for name, value in locals().items():
            if name != "self":
                object.__setattr__(self, name, value)


def option(default: Any, help: str, *names: str, python_only: bool = False, **limits: Any) -> Any:
    """A field of a dataclass of options.

    Args:
        default: its value where it is left out.
        help: what it is for.
        names: on the command line; by default the field's own with dashes.
        python_only: the command line does not have it.
        limits: the other arguments of `Option`.
    """
    declared = (names, python_only, Option(*names, help=help, **limits))
    return dataclasses.field(default=default, metadata={"option": declared})


@dataclass(frozen=True)
class Declared:
    """A field of a dataclass of options.

    Attributes:
        name: name of the field.
        kind: the type of its value, or of each of several.
        optional, several: whether it may be None; whether it is a tuple of values.
        default: where it is left out.
        option: how it is named, explained and limited; without names for Python alone.
    """

    name: str
    kind: Any
    optional: bool
    several: bool
    default: Any
    option: Option


_DECLARED: dict[type, tuple[Declared, ...]] = {}


def declared(kind: type) -> tuple[Declared, ...]:
    """The options that a dataclass declares, in order."""
    if kind not in _DECLARED:
        hints = typing.get_type_hints(kind)
        _DECLARED[kind] = tuple(_declared(f, hints[f.name]) for f in dataclasses.fields(kind))
    return _DECLARED[kind]


def _declared(field: dataclasses.Field[Any], hint: Any) -> Declared:
    names, python_only, stated = field.metadata["option"]
    kinds, optional = [hint], False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [k for k in typing.get_args(hint) if k is not type(None)]
        optional = len(kinds) < len(typing.get_args(hint))
    kind = kinds[0]
    several = typing.get_origin(kind) is tuple and typing.get_args(kind)[-1:] == (...,)
    kind = typing.get_args(kind)[0] if several else kind
    choices = stated.choices
    if typing.get_origin(kind) is typing.Literal:
        kind, choices = str, typing.get_args(kind)
    if not names and not python_only:
        names = (f"--{field.name.replace('_', '-')}",)
    limits = {k: v for k, v in vars(stated).items() if k not in ("names", "choices")}
    found = Option(*names, **limits, choices=choices)
    return Declared(field.name, kind, optional, several, field.default, found)


class Options:
    """Base of the dataclasses of options: refuses values that none of its fields can have."""

    def __init_subclass__(cls) -> None:
        """Complete the documentation that ``help`` shows."""
        lines = [
            f"        {name}: {value.metadata['option'][2].help}"
            for name, value in vars(cls).items()
            if isinstance(value, dataclasses.Field)
        ]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Attributes:", *lines])

    def __post_init__(self) -> None:
        """Check types, choices and bounds; paths and several values may be given as text and lists.

        Raises:
            UsageError: a value is of another type, none of the choices, or outside its bounds.
        """
        for each in declared(type(self)):
            value = getattr(self, each.name)
            if value is None and each.optional:
                continue
            if each.several and (isinstance(value, str) or not isinstance(value, Iterable)):
                raise UsageError(f"Invalid {each.name} {value!r:.40}.", "It must be a tuple.")
            values = tuple(value) if each.several else (value,)
            for one in values:
                check(each, one)
            if each.kind is Path:
                values = tuple(map(Path, values))
            if each.several or each.kind is Path:
                object.__setattr__(self, each.name, values if each.several else values[0])


_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((Integral,), "a whole number"),
    float: ((Real,), "a number"),
    bool: ((bool,), "True or False"),
    str: ((str,), "a text"),
    Path: ((str, os.PathLike), "a path"),
}


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of the types; a truth value is no number."""
    return isinstance(value, kinds) and (kinds == (bool,) or not isinstance(value, bool))


def check(each: Declared, value: Any) -> None:
    """Refuse a value that is of another type, none of the choices, or outside the bounds of an option.

    Raises:
        UsageError: the value is wrong.
    """
    stated = each.option
    if stated.choices and value not in stated.choices:
        raise UsageError(
            f"Invalid {each.name} {value!s:.40}.",
            "",
            f"Choose one of: {', '.join(stated.choices)}.",
        )
    wanted = _TYPES.get(each.kind)
    if wanted is not None and not stated.parse and not _is(value, wanted[0]):
        raise UsageError(f"Invalid {each.name} {value!r:.40}.", f"It must be {wanted[1]}.")
    if not within(value, stated.min, stated.max):
        raise UsageError(
            f"Invalid {each.name} {format_number(value)}.",
            f"It must be {bounds(stated.min, stated.max)}.",
        )


def within(value: Any, low: float | None, high: float | None) -> bool:
    """Whether a number, or anything without bounds, is allowed; NaN is not."""
    if low is None and high is None:
        return True
    return bool(
        (-math.inf if low is None else low) <= value <= (math.inf if high is None else high)
    )


def bounds(low: float | None, high: float | None) -> str:
    """Bounds in words, after "a number" or "it must be"."""
    if low is not None and high is not None:
        return f"from {format_number(low)} to {format_number(high)}"
    return f"at least {format_number(low)}" if low is not None else f"at most {format_number(high)}"


def bound_in_help(high: float | None) -> float | None:
    """An upper bound that a reader of the help wants to know; None for those that only the machine sets."""
    return None if high is None or high >= LARGEST_COUNT else high


def format_number(number: Any) -> str:
    """A number in an error: a whole one with all digits, unless they are too many to read."""
    if isinstance(number, int) and abs(number) < 10**20:
        return str(number)
    try:
        return f"{number:g}"
    except (OverflowError, TypeError, ValueError):
        return "with too many digits"


_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(
    r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(e[+-]?[0-9]{1,4})?", re.IGNORECASE
)


def parse_whole(text: str) -> int:
    """A whole number that a user wrote, in digits of ASCII.

    Raises:
        ValueError: it is none, or far beyond every bound.
    """
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError(f"no whole number: {text:.40}")
    return int(text)


def parse_number(text: str) -> float:
    """A number that a user wrote, in digits of ASCII; neither infinite nor NaN.

    Raises:
        ValueError: it is none.
    """
    found = float(text) if _NUMBER.fullmatch(text.strip()) else math.inf
    if not math.isfinite(found):
        raise ValueError(f"no number: {text:.40}")
    return found


def comma_separated(text: str) -> list[str]:
    """The words of an option that takes several, separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def assigned(
    kind: type[Options], names: Iterable[str], texts: Iterable[str], label: str
) -> dict[str, Any]:
    """The fields of a dataclass of options that texts such as ``batch=8`` set; the last one wins.

    Args:
        kind: the dataclass.
        names: the fields that may be set.
        texts: what was given for an option of the command line.
        label: that option.

    Raises:
        UsageError: there is no such field, or its value is wrong.
    """
    known = {each.name: each for each in declared(kind) if each.name in names}
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            raise UsageError(
                f"Invalid {label} {text:.40}.",
                "It takes one field as NAME=VALUE.",
                f"Its fields: {', '.join(known)}.",
            )
        each = known[name]
        parse = {int: parse_whole, float: parse_number}.get(each.kind, each.kind)
        try:
            parts = [parse(part) for part in (comma_separated(value) if each.several else [value])]
        except ValueError:
            kind_of = "a whole number" if each.kind is int else "a number"
            raise UsageError(f"Invalid {label} {text:.40}.", f"It takes {kind_of}.") from None
        for part in parts:
            check(each, part)
        found[name] = tuple(parts) if each.several else parts[0]
    return found


def parse_tolerance(text: str) -> tuple[float, float]:
    """The two parts of a tolerance such as ``1e-5,1e-4``: absolute and relative.

    Raises:
        UsageError: the text has another form, or a part is negative or too large.
    """
    try:
        absolute, relative = map(parse_number, text.split(","))
    except ValueError:
        absolute = relative = math.nan
    if not (within(absolute, 0, LARGEST_TOLERANCE) and within(relative, 0, LARGEST_TOLERANCE)):
        raise UsageError(
            f"Invalid --tolerance {text:.40}.",
            f"It takes two numbers, ATOL,RTOL, {bounds(0, LARGEST_TOLERANCE)}.",
            "For example: --tolerance 1e-5,1e-4.",
        )
    return absolute, relative


def iteration_counts(text: str) -> tuple[int, ...]:
    """The numbers of routing iterations of an option such as ``1..5`` or ``1,3,5``.

    Raises:
        UsageError: it has another form, or a number is not from 1 to `limits.ITERATIONS`.
    """
    possible = range(1, limits.ITERATIONS + 1)
    try:
        if ".." in text:
            first, last = (parse_whole(v) for v in text.split(".."))
            found = list(range(first, last + 1)) if {first, last} <= {*possible} else []
        else:
            found = list(dict.fromkeys(parse_whole(v) for v in text.split(",")))
    except ValueError:
        found = []
    if not found or not {*found} <= {*possible}:
        raise UsageError(
            f"Invalid --iters {text:.40}.",
            f"It takes whole numbers from 1 to {limits.ITERATIONS}.",
            "For example: 1..5 or 1,3.",
        )
    return tuple(found)


# --- Functions that take the fields of such a dataclass as keyword arguments ---

F = TypeVar("F", bound=Callable[..., Any])


def takes_options(*kinds: type[Options]) -> Callable[[F], F]:
    """Let a function take the fields of dataclasses of options as keyword arguments.

    The function itself gets the dataclasses, each as the parameter that is annotated with it; callers inside
    the package may pass them instead. Its ``**keywords`` are for type checkers (`capsedge.keywords`), and its
    signature and documentation list every option.

    Args:
        kinds: the dataclasses.
    """

    def decorate(function: F) -> F:
        arguments = _Arguments(function, kinds)

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **arguments.bound(args, given))

        call.__signature__ = arguments.signature()  # type: ignore[attr-defined]
        call.__doc__ = arguments.documentation()
        call.__options__ = kinds  # type: ignore[attr-defined]
        return typing.cast(F, call)

    return decorate


def options_of(function: Callable[..., Any]) -> tuple[type[Options], ...]:
    """The dataclasses whose fields a function takes as keyword arguments."""
    return getattr(function, "__options__", ())


class _Arguments:
    """What a function takes: its own parameters, and the fields of the dataclasses in them."""

    def __init__(self, function: Callable[..., Any], kinds: tuple[type[Options], ...]) -> None:
        self._function, self._name = function, function.__name__
        parameters = inspect.signature(function).parameters.values()
        self._parameters = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}
        self._where = {
            kind: next(n for n, p in self._parameters.items() if kind.__name__ in str(p.annotation))
            for kind in kinds
        }
        self.options = kinds
        self._homes = {
            field.name: kind for kind in self.options for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        }  # fmt: skip

    def bound(self, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the function itself.

        Raises:
            TypeError: a keyword is unknown, or belongs to options that are passed as well.
            UsageError: an option's value is wrong.
        """
        kept: dict[str, Any] = {}
        chosen: dict[type, dict[str, Any]] = {}
        for name, value in given.items():
            if name in self._parameters:
                kept[name] = value
            elif name in self._homes:
                chosen.setdefault(self._homes[name], {})[name] = value
            else:
                raise TypeError(self._unknown(name))
        passed = {**dict(zip(self._parameters, args, strict=False)), **kept}
        for kind, name in self._where.items():
            if not isinstance(passed.get(name), (kind, type(None))):
                raise UsageError(
                    f"{name} has the type {type(passed[name]).__name__}.",
                    "Expected: keyword arguments.",
                )
            if name in passed and kind in chosen:
                raise TypeError(f"{self._name}() got both {name} and {', '.join(chosen[kind])}")
        return {**kept, **{self._where[kind]: kind(**values) for kind, values in chosen.items()}}

    def _unknown(self, name: str) -> str:
        """The error for a keyword that the function does not take, with the nearest that it does."""
        from difflib import get_close_matches  # nothing else at import needs its 0.1 s

        near = get_close_matches(name, [*self._parameters, *self._homes], 1)
        hint = f"Did you mean '{near[0]}'?" if near else f"help(capsedge.{self._name}) lists them."
        return f"{self._name}() got an unexpected keyword argument '{name}'. {hint}"

    def signature(self) -> inspect.Signature:
        """The signature with every option in place of the parameters that hold them."""
        hidden = set(self._where.values())
        shown = [p for p in self._parameters.values() if p.name not in hidden]
        for kind in self.options:
            shown += [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=field.type,
                )
                for field in dataclasses.fields(kind)  # type: ignore[arg-type]
            ]
        return inspect.signature(self._function).replace(parameters=shown)

    def documentation(self) -> str:
        """The docstring with the options after the arguments."""
        text = inspect.cleandoc(self._function.__doc__ or "")
        listed = "\n".join([
            "Options:",
            *(
                f"    {field.name}: {field.metadata['option'][2].help}"
                for kind in self.options
                for field in dataclasses.fields(kind)  # type: ignore[arg-type]
            ),
        ])  # fmt: skip
        after = next((s for s in ("Returns:", "Raises:", "Example:") if f"\n{s}\n" in text), "")
        if not after:
            return f"{text}\n\n{listed}\n"
        return text.replace(f"\n{after}\n", f"\n{listed}\n\n{after}\n", 1)
