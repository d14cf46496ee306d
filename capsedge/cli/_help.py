"""The text of ``--help``: what stands in the annotations of a verb, under the headings that they name."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from capsedge.cli._commands import Command, Group

_KINDS = {"text": "TEXT", "path": "PATH", "integer": "N", "number": "X"}


def write_command(command: Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Usage, explanation, arguments and options of a verb."""
    arguments: list[Any] = [p for p in command.params if isinstance(p, click.Argument)]
    usage = [p.shown if p.required else f"[{p.shown}]" for p in arguments]
    formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *usage]))
    _write_help(formatter, command.help or "")
    _write(formatter, "Arguments", [(p.shown, _explained(p)) for p in arguments])
    panels: dict[str, list[tuple[str, str]]] = {"Options": []}
    for option in command.get_params(ctx):
        if not isinstance(option, click.Argument):
            panel = getattr(option, "panel", "Options")
            panels.setdefault(panel, []).append((_names(option), _explained(option)))
    for panel, rows in panels.items():
        _write(formatter, panel, rows)


def write_group(group: Group, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Usage and options of a group, and its verbs by panel."""
    formatter.write_usage(ctx.command_path, "[OPTIONS] COMMAND [ARGS]...")
    _write_help(formatter, group.help or "")
    _write(formatter, "Options", [(_names(p), _explained(p)) for p in group.get_params(ctx)])
    for panel in dict.fromkeys(verb.panel for verb in group.verbs.values()):
        rows = [(name, verb.help) for name, verb in group.verbs.items() if verb.panel == panel]
        _write(formatter, panel, rows)


def _write(formatter: click.HelpFormatter, heading: str, rows: Sequence[tuple[str, str]]) -> None:
    """A heading and two columns."""
    if not rows:
        return
    formatter.write(f"\n{heading}:\n")
    first = 2 + max(len(name) for name, _ in rows)
    for name, text in rows:
        lines = _wrapped(text, formatter.width - first - 2)
        formatter.write(f"  {name:{first}}{lines[0]}\n")
        formatter.write("".join(f"{'':{first + 2}}{line}\n" for line in lines[1:]))


def _write_help(formatter: click.HelpFormatter, text: str) -> None:
    """The paragraphs of a docstring."""
    for paragraph in text.split("\n\n"):
        lines = _wrapped(paragraph, formatter.width - 2)
        formatter.write("\n" + "".join(f"  {line}\n" for line in lines))


def _wrapped(text: str, width: int) -> list[str]:
    """Lines that divide neither names of options nor other words."""
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


def _explained(parameter: Any) -> str:
    """What a parameter is for, with bounds, default, and whether it is required or may be repeated."""
    notes = []
    if getattr(parameter, "multiple", False):
        notes.append("repeatable")
    low, high = (getattr(parameter.type, name, None) for name in ("low", "high"))
    if low is not None or high is not None:
        notes.append(
            ("" if low is None else f"{low:g} <= ")
            + _KINDS[parameter.type.name]
            + ("" if high is None else f" <= {high:g}")
        )
    preset = getattr(parameter, "preset", None)
    if preset not in (None, "", False) and not getattr(parameter, "is_flag", False):
        notes.append(f"default: {preset}")
    if parameter.required:
        notes.append("required")
    return f"{parameter.help}  [{'; '.join(notes)}]" if notes else str(parameter.help)
