"""Make click commands from the annotations of the verbs, and write their help.

A verb is imported when it is run, when its help is requested, or when a shell completes its options.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from capsedge.cli import _memory, _paths, _process
from capsedge.cli._output import say
from capsedge.cli._types import Several, click_type, parameter_label, single_value_type
from capsedge.cli._verbs import FIRST_COMMANDS, GROUPS, VERBS, Verb
from capsedge.errors import ExitCode, UsageError
from capsedge.options import DEFAULT_PANEL, Option, bound_in_help, format_number
from capsedge.spec.vocabularies import DESCRIPTION_FIELDS

NAME = "capsedge"
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from capsedge.cli._options import Argument


class VerbOption(click.Option):
    """An option of a verb; `preset` is its default as the verb declares it."""

    takes_path = False

    def __init__(self, declared: Option, name: str, preset: Any, **settings: Any) -> None:
        super().__init__([*declared.names, name], help=declared.help, **settings)
        self.preset, self.panel, self.declared = preset, declared.panel, declared


class VerbArgument(click.Argument):
    """A positional argument of a verb, explained in its help."""

    takes_path = False

    def __init__(self, declared: Argument, name: str, preset: Any, **settings: Any) -> None:
        super().__init__([name], metavar=declared.metavar or None, **settings)
        self.preset, self.declared, self.help = preset, declared, declared.help

    @property
    def shown(self) -> str:
        """Its name in help and errors."""
        several = "..." if self.nargs != 1 else ""
        return self.declared.metavar or f"{str(self.name).upper()}{several}"


class Command(click.Command):
    """A verb.

    Attributes:
        example: a command line that its help shows.
    """

    def __init__(self, *args: Any, example: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; refuse any that are left over, and options that are given again."""
        try:
            if not ctx.resilient_parsing:
                _, _, given = self.make_parser(ctx).parse_args(list(args))
                _refuse_repeated(given)
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _explained(error, ctx) from None
        if ctx.args and not ctx.resilient_parsing:
            takes = any(isinstance(p, VerbArgument) for p in self.params)
            raise UsageError(
                f"Unexpected argument {ctx.args[0]}.",
                f"{ctx.command_path} takes {'fewer arguments' if takes else 'only options'}.",
                _see(ctx),
            )
        return rest

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Usage, explanation, an example, arguments and options."""
        write_command(self, ctx, formatter)


class CommandGroup(click.Group):
    """A group of verbs that are imported when needed."""

    def __init__(self, verbs: Mapping[str, Verb], path: str = "", **settings: Any) -> None:
        super().__init__(no_args_is_help=False, context_settings=dict(_SETTINGS), **settings)
        self.verbs, self._path = verbs, path

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb, imported."""
        if cmd_name not in self.verbs:
            return None
        if cmd_name not in self.commands:
            verb, path = self.verbs[cmd_name], f"{self._path}{cmd_name}"
            self.commands[cmd_name] = (
                _command(path, verb)
                if verb.module
                else CommandGroup(GROUPS[path], f"{path} ", name=cmd_name, help=verb.help)
            )
        return self.commands[cmd_name]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse its own options; print the help if there are no arguments."""
        if not args and not ctx.resilient_parsing:
            say(*ctx.get_help().splitlines())
            ctx.exit(int(ExitCode.USAGE))
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _explained(error, ctx) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The verb named by the first word.

        Raises:
            UsageError: there is none.
        """
        if args[0] not in self.verbs and not ctx.resilient_parsing:
            raise UsageError(
                f"{ctx.command_path} has no command {args[0]}.",
                _close(args[0], self.verbs),
                _see(ctx, "commands"),
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Its verbs, without importing them; after a dash, its options."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=verb.help)
            for name, verb in self.verbs.items()
            if name.startswith(incomplete)
        ]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Usage, options and verbs, by panel."""

        write_group(self, ctx, formatter)


class CommandLine(CommandGroup):
    """The ``capsedge`` command."""

    def main(  # type: ignore[override]
        self, args: Any = None, prog_name: str | None = None, **_: Any
    ) -> NoReturn:
        """Run the command line.

        Raises:
            UsageError: it cannot be parsed.
            SystemExit: the command has ended.
        """
        code = super().main(args, prog_name or NAME, standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Read the command line; without a reader of the help, click would end with 1, which is a bug's."""
        try:
            return super().make_context(*args, **settings)
        except OSError as error:
            if _process.reader_gone(error):
                raise SystemExit(_process.READER_GONE) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; an interrupt is reported here, because click would exit silently."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as signal:
            from capsedge.cli import _output

            _process.note_arrival(signal)
            end = "terminated" if isinstance(signal, _process.Terminated) else "interrupted"
            _output.log(f"{end}: no unfinished file is left behind")
            raise SystemExit(_process.exit_code() or _process.INTERRUPTED) from None
        except OSError as error:
            if _process.reader_gone(error):
                raise SystemExit(_process.READER_GONE) from None
            raise


def _command(path: str, verb: Verb) -> Command:
    """The command for a verb's function, as declared by the annotations of its parameters."""
    module, _, function = verb.module.partition(":")
    declared: Callable[..., None] = getattr(import_module(f"capsedge.cli.{module}"), function)
    # Not typing.get_type_hints: with a default of None, Python 3.10 hides the option in an Optional.
    signature = inspect.signature(declared, eval_str=True)
    parameters = [_parameter(parameter) for parameter in signature.parameters.values()]
    judged = _paths.checked_paths(declared)
    by_name = {p.name: p for p in parameters}

    @functools.wraps(declared)
    def run(**values: Any) -> None:
        _memory.check()
        judged(**{name: _value(value, by_name[name]) for name, value in values.items()})

    return Command(
        path.rpartition(" ")[2],
        params=list(parameters),
        callback=run,
        help=inspect.getdoc(declared),
        context_settings={**_SETTINGS, "allow_extra_args": True},
        example=verb.example,
    )


def _value(value: Any, parameter: VerbOption | VerbArgument) -> Any:
    """The value passed to a verb: a list or tuple for several values, the default for none."""
    if value is None or value == ():
        return parameter.preset
    if isinstance(parameter.type, Several):
        return tuple(itertools.chain.from_iterable(value))
    return list(value) if isinstance(value, tuple) and _repeated(parameter) else value


def _repeated(parameter: VerbOption | VerbArgument) -> bool:
    return parameter.nargs != 1 or bool(getattr(parameter, "multiple", False))


def _parameter(parameter: inspect.Parameter) -> VerbOption | VerbArgument:
    """The parameter of a command, as the annotation of a verb's parameter declares it."""
    from capsedge.cli._options import Argument  # which `capsedge --help` does not need

    kind, *marks = typing.get_args(parameter.annotation)
    (declared,) = (mark for mark in marks if isinstance(mark, (Option, Argument)))
    required = parameter.default is parameter.empty
    preset = None if required else parameter.default
    kinds = [k for k in typing.get_args(kind) if k is not type(None)]
    if kinds and typing.get_origin(kind) not in (list, tuple):
        (kind,) = kinds  # of `X | None`
    origin = typing.get_origin(kind)
    kind = typing.get_args(kind)[0] if origin in (list, tuple) else kind
    settings: dict[str, Any] = {"required": required, "shell_complete": _complete}
    if isinstance(declared, Argument):
        settings |= {"type": click_type(kind, declared), "nargs": -1 if origin is list else 1}
        made: VerbOption | VerbArgument = VerbArgument(declared, parameter.name, preset, **settings)
    elif kind is bool:
        made = VerbOption(
            declared, parameter.name, preset, is_flag=True, default=preset, **settings
        )
    else:
        one = click_type(kind, declared)
        settings |= {"type": Several(one) if origin is tuple else one}
        many = origin in (list, tuple)
        made = VerbOption(declared, parameter.name, preset, multiple=many, **settings)
    made.takes_path = _paths.role_of(parameter.annotation) is not None
    return made


def _complete(ctx: click.Context, param: click.Parameter, start: str) -> list[CompletionItem]:
    """What a shell offers for a parameter."""
    from capsedge.cli._completion import offered

    return offered(param, ctx, start)


def _see(ctx: click.Context, what: str = "options") -> str:
    return f"Run `{ctx.command_path} --help` for the {what}."


def _close(word: str, known: Iterable[str]) -> str:
    """The nearest word; the dashes that all options share do not make them alike."""
    from difflib import get_close_matches

    plain = {name.lstrip("-"): name for name in known}
    found = get_close_matches(word.lstrip("-"), plain, n=1)
    return f"Did you mean {plain[found[0]]}?" if found else ""


def _refuse_repeated(given: Sequence[click.Parameter]) -> None:
    """Refuse an option that is given twice, of which click would take the last.

    Args:
        given: the parameters as they were typed.

    Raises:
        UsageError: one that takes a single value is among them twice.
    """
    seen = set()
    for param in given:
        if isinstance(param, VerbOption) and not param.multiple and param.name in seen:
            name = parameter_label(param)
            if param.is_flag:
                name = "/".join((name, *param.secondary_opts))
            why = "It is a switch." if param.is_flag else f"It takes one value. {param.help}"
            raise UsageError(f"{name} is given twice.", why, "Give it once.")
        seen.add(param.name)


def _explained(error: click.UsageError, ctx: click.Context) -> UsageError:
    """A click usage error, converted to one of this package."""
    if isinstance(error, click.NoSuchOption):
        options = (p for p in ctx.command.get_params(ctx) if isinstance(p, click.Option))
        known = [name for p in options for name in (*p.opts, *p.secondary_opts)]
        field = error.option_name.lstrip("-").replace("-", "_")
        described = "--describe" in known and field in DESCRIPTION_FIELDS
        return UsageError(
            f"{ctx.command_path} has no option {error.option_name}.",
            f"It is a field: --describe {field}=VALUE."
            if described
            else _close(error.option_name, known),
            _see(ctx),
        )
    if isinstance(error, click.MissingParameter) and error.param is not None:
        needed = parameter_label(error.param)
        explanation = getattr(error.param, "help", None) or ""
        return UsageError(f"{ctx.command_path} needs {needed}.", explanation, _see(ctx))
    if isinstance(error, click.BadOptionUsage):
        named = error.option_name
        option = next(
            p for p in ctx.command.get_params(ctx) if named in (*p.opts, *p.secondary_opts)
        )
        wanted = "takes no value" if getattr(option, "is_flag", False) else "needs a value"
        explanation = getattr(option, "help", None) or ""
        return UsageError(f"{error.option_name} {wanted}.", explanation, _see(ctx))
    return UsageError(error.format_message(), "", _see(ctx))


def _version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        from capsedge.spec.version import VERSION

        say(VERSION)
        ctx.exit()


def _shell(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        from capsedge.cli import _completion

        act = _completion.install if param.name == "install_completion" else _completion.show
        act(ctx.command)
        ctx.exit()


def _switch(name: str, help: str, callback: Callable[..., None]) -> click.Option:
    return click.Option(
        [name], is_flag=True, is_eager=True, expose_value=False, callback=callback, help=help
    )


app = CommandLine(
    VERBS,
    name=NAME,
    help="Export trained capsule networks, verify them, and run them on any device.",
    params=[
        _switch("--version", "Print the version.", _version),
        _switch("--install-completion", "Install completion for the current shell.", _shell),
        _switch("--show-completion", "Show what --install-completion installs.", _shell),
    ],
)


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
    kind = single_value_type(parameter.type)
    low, high = getattr(kind, "min", None), bound_in_help(getattr(kind, "max", None))
    if words := _unmentioned(parameter):
        notes.append(", ".join(words))
    if low is not None or high is not None:
        notes.append(
            ("" if low is None else f"{format_number(low)} <= ")
            + _KINDS[parameter.type.name]
            + ("" if high is None else f" <= {format_number(high)}")
        )
    if preset := shown_default(parameter):
        notes.append(f"default: {preset}")
    if parameter.required:
        notes.append("required")
    return f"{parameter.help}  [{'; '.join(notes)}]" if notes else str(parameter.help)


def _unmentioned(parameter: Any) -> tuple[str, ...]:
    """The choices of a parameter, unless its help explains them one by one."""
    choices = tuple(getattr(single_value_type(parameter.type), "choices", ()))
    return () if set(choices) <= set(re.findall(r"[\w-]+", parameter.help or "")) else choices


def _default(part: Any) -> str:
    return part if isinstance(part, str) else f"{part:g}"


def shown_default(parameter: Any) -> str:
    """The default as typed on the command line; empty if there is none."""
    preset = getattr(parameter, "preset", None)
    if preset in (None, "", False, ()) or getattr(parameter, "is_flag", False):
        return ""
    return ",".join(map(_default, preset)) if isinstance(preset, tuple) else str(preset)
