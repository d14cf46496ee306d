"""Write the text of ``--help``: usage, an example, arguments, and options in groups."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from capsedge.cli._types import inner
from capsedge.cli._verbs import FIRST_COMMANDS
from capsedge.options import DEFAULT_PANEL, shown, telling

if TYPE_CHECKING:
    from capsedge.cli._commands import Command, CommandGroup

_KINDS = {"text": "TEXT", "choice": "TEXT", "path": "PATH", "integer": "N", "number": "X"}
_WIDEST = 40  # width of names; the explanation of a longer one begins on the next line

_METADATA = "Metadata of the file"  # long, so it is listed last


def write_command(command: Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Usage, explanation, an example, arguments and options of a verb."""
    arguments: list[Any] = [p for p in command.params if isinstance(p, click.Argument)]
    usage = [p.shown if p.required else f"[{p.shown}]" for p in arguments]
    formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *usage]))
    _write_text(formatter, command.help or "")
    formatter.write(f"\nExample:\n  {command.example}\n")
    _write(formatter, "Arguments", [(p.shown, _explained_parameter(p)) for p in arguments])
    groups: dict[str, list[tuple[str, str]]] = {DEFAULT_PANEL: []}
    for option in command.get_params(ctx):
        if not isinstance(option, click.Argument):
            row = (_names(option), _explained_parameter(option))
            groups.setdefault(getattr(option, "panel", DEFAULT_PANEL), []).append(row)
    for group, rows in sorted(groups.items(), key=lambda item: item[0] == _METADATA):
        _write(formatter, group, rows)


def write_group(group: CommandGroup, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """The usage of a group, the first commands to run, its verbs by panel, and its options."""
    formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] ...")
    _write_text(formatter, group.help or "")
    if ctx.parent is None:
        _write(formatter, "Five commands to start with", FIRST_COMMANDS)
    width = max(map(len, group.verbs))
    for panel in dict.fromkeys(verb.panel for verb in group.verbs.values()):
        rows = [(f"{n:{width}}", v.help) for n, v in group.verbs.items() if v.panel == panel]
        _write(formatter, panel, rows)
    _write(
        formatter, "Options", [(_names(p), _explained_parameter(p)) for p in group.get_params(ctx)]
    )
    formatter.write(f"\n`{ctx.command_path} COMMAND --help` explains a command.\n")


def _write(formatter: click.HelpFormatter, heading: str, rows: Sequence[tuple[str, str]]) -> None:
    """A heading and two columns."""
    if not rows:
        return
    formatter.write(f"\n{heading}:\n")
    first = 2 + max((len(name) for name, _ in rows if len(name) <= _WIDEST), default=_WIDEST)
    for name, text in rows:
        lines = _wrapped(text, formatter.width - first - 2)
        if len(name) > first - 2:
            formatter.write(f"  {name}\n")
        else:
            formatter.write(f"  {name:{first}}{lines.pop(0)}\n")
        formatter.write("".join(f"{'':{first + 2}}{line}\n" for line in lines))


def _write_text(formatter: click.HelpFormatter, text: str) -> None:
    """The paragraphs of a docstring."""
    for paragraph in text.split("\n\n"):
        lines = _wrapped(paragraph, formatter.width - 2)
        formatter.write("\n" + "".join(f"  {line}\n" for line in lines))


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap lines without breaking option names or other words."""
    return textwrap.wrap(
        " ".join(text.split()), max(width, 20), break_long_words=False, break_on_hyphens=False
    )


def _names(option: Any) -> str:
    """``-o, --output PATH``."""
    names = sorted(option.opts, key=len)
    shown = ", ".join([*names, *option.secondary_opts])
    if option.is_flag:
        return shown
    return f"{shown} {option.declared.metavar or _KINDS[option.type.name]}"


def _explained_parameter(parameter: Any) -> str:
    """The purpose of a parameter, with bounds, default, and whether it is required or may be repeated."""
    notes = []
    if getattr(parameter, "multiple", False):
        notes.append("repeatable")
    kind = inner(parameter.type)
    low, high = getattr(kind, "min", None), telling(getattr(kind, "max", None))
    if words := _unmentioned(parameter):
        notes.append(", ".join(words))
    if low is not None or high is not None:
        notes.append(
            ("" if low is None else f"{shown(low)} <= ")
            + _KINDS[parameter.type.name]
            + ("" if high is None else f" <= {shown(high)}")
        )
    if preset := shown_default(parameter):
        notes.append(f"default: {preset}")
    if parameter.required:
        notes.append("required")
    return f"{parameter.help}  [{'; '.join(notes)}]" if notes else str(parameter.help)


def _unmentioned(parameter: Any) -> tuple[str, ...]:
    """The choices of a parameter, unless its help explains them one by one."""
    choices = tuple(getattr(inner(parameter.type), "choices", ()))
    return () if set(choices) <= set(re.findall(r"[\w-]+", parameter.help or "")) else choices


def _default(part: Any) -> str:
    return part if isinstance(part, str) else f"{part:g}"


def shown_default(parameter: Any) -> str:
    """The default as typed on the command line; empty if there is none."""
    preset = getattr(parameter, "preset", None)
    if preset in (None, "", False, ()) or getattr(parameter, "is_flag", False):
        return ""
    return ",".join(map(_default, preset)) if isinstance(preset, tuple) else str(preset)
