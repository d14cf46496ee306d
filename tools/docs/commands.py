"""Describe the command line in Markdown, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click

from capsedge.cli import app
from capsedge.cli._commands import shown_default
from capsedge.cli._types import single_value_type
from capsedge.options import bound_in_help, format_number


def markdown() -> str:
    """Write a chapter for each verb: usage, purpose, arguments and options."""
    return "\n\n".join(_verb(name, command) for name, command in verbs(app))


def verbs(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb of a command, with both names for verbs in groups: ``deploy web``."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from verbs(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _verb(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["capsedge", name, "[OPTIONS]", *map(_metavar, arguments)])
    parts = [f"## {name}", f"```text\n{usage}\n```", prose(command.help or "")]
    rows = [(f"`{_metavar(p)}`", p) for p in arguments]
    rows += [(", ".join(f"`{word}`" for word in _words(p)), p) for p in options]
    lines = [f"| {label} | {_value(p)} | {_explanation(p)} |" for label, p in rows]
    parts.append("\n".join(["| | value | |", "|---|---|---|", *lines]))
    return "\n\n".join(parts)


def _metavar(parameter: Any) -> str:
    name = str(parameter.name).upper()
    many = "..." if parameter.nargs != 1 else ""
    return f"{name}{many}" if parameter.required else f"[{name}{many}]"


def _words(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _value(parameter: Any) -> str:
    """The value's placeholder after the option; empty for a switch."""
    if getattr(parameter, "is_flag", False):
        return ""
    kind = single_value_type(parameter.type)
    if choices := getattr(kind, "choices", ()):
        words = ", ".join(f"`{word}`" for word in choices)
        return f"{words}{', several' if parameter.multiple else ''}"
    name = str(parameter.type.name)
    low, high = getattr(kind, "min", None), bound_in_help(getattr(kind, "max", None))
    if low is not None and high is not None:
        name += f", {format_number(low)} to {format_number(high)}"
    elif low is not None:
        name += f" ≥ {format_number(low)}"
    elif high is not None:
        name += f" ≤ {format_number(high)}"
    return f"{name}{', repeatable' if parameter.multiple else ''}"


def _explanation(parameter: Any) -> str:
    text = prose(parameter.help or "")
    if parameter.required:
        return f"{text} **Required.**"
    default = shown_default(parameter)
    return f"{text} Default: `{default}`." if default else text


def prose(text: str) -> str:
    """One line for a table, with names of options and files as code."""
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)", r"`\1`", line)
