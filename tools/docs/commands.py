"""The command line as Markdown, from the commands themselves."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from capsedge.cli import app

_KINDS = {str: "text", Path: "path", int: "integer", float: "number"}


def markdown() -> str:
    """A chapter for each verb: its usage, what it does, its arguments and options."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_verb(name, command) for name, command in verbs(group))


def verbs(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb of a command, those of its groups under both names: ``deploy web``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _verb(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["capsedge", name, "[OPTIONS]", *map(_metavar, arguments)])
    parts = [f"## {name}", f"```text\n{usage}\n```", _prose(command.help or "")]
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
    """What stands after the option; nothing for a switch."""
    if getattr(parameter, "is_flag", False):
        return ""
    kind = parameter.type_descriptor.annotation
    several = typing.get_origin(kind) is list
    name = _KINDS[typing.get_args(kind)[0] if several else kind]
    low, high = parameter.min, parameter.max
    if low is not None and high is not None:
        name += f", {low:g} to {high:g}"
    elif low is not None:
        name += f" ≥ {low:g}"
    elif high is not None:
        name += f" ≤ {high:g}"
    return f"{name}{', repeatable' if parameter.multiple else ''}"


def _explanation(parameter: Any) -> str:
    text = _prose(parameter.help or "")
    if parameter.required:
        return f"{text} **Required.**"
    default = parameter.default
    shown = default is not None and default != () and not callable(default)
    if shown and not getattr(parameter, "is_flag", False) and str(default):
        return f"{text} Default: `{default}`."
    return text


def _prose(text: str) -> str:
    """One line that a table takes, with names of options and files as code."""
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)", r"`\1`", line)
