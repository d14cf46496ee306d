"""The ``capsedge`` command. One thin file per verb; heavy packages are imported when the verb runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from capsedge.cli import (
    _common,
    _completion,
    _places,
    _signals,
    _streams,
    batch,
    build,
    cascade,
    config,
    deploy,
    doctor,
    export,
    import_,
    infer,
    inspect,
    optimize,
    profile,
    prune,
    quantize,
    see,
    serve,
    sweep,
    train,
    verify,
)
from capsedge.errors import CapsedgeError, EnvironmentProblem, ExitCode
from capsedge.runtime.files.text import printable


class Verbs(TyperGroup):
    """Handles interrupts and closed pipes, which typer ends silently, in some versions with exit code 1."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _printable_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _printable_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt as signal:
            end = "terminated" if isinstance(signal, _signals.Terminated) else "interrupted"
            _common.log(f"{end}: no unfinished file is left behind")
            raise SystemExit(_signals.exit_code() or _signals.INTERRUPTED) from None
        except OSError as error:
            if _streams.reader_gone(error):
                raise SystemExit(_streams.READER_GONE) from None
            raise


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Make typer's own errors, which repeat arguments, safe to print."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):
            for name, value in vars(error).items():
                if isinstance(value, str):
                    setattr(error, name, printable(value))
        raise


app = typer.Typer(
    name="capsedge",
    cls=Verbs,
    help="Export trained capsule networks, prove them equal, run them at the edge.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        import capsedge

        _common.say(capsedge.__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Export trained capsule networks, prove them equal, run them at the edge."""


MODELS = "From a checkpoint to a file"
SMALLER = "Smaller and faster"
DEVICE = "On the device"
ELSEWHERE = "Elsewhere"
LOOK = "Information"

for panel, verbs in {
    MODELS: (train, import_, export, optimize, verify),
    SMALLER: (prune, quantize, sweep, cascade, build),
    DEVICE: (infer, batch, see, profile),
    ELSEWHERE: (serve,),
    LOOK: (inspect, config, doctor),
}.items():
    for verb in verbs:
        name = verb.__name__.rpartition(".")[2].rstrip("_")  # `import` is a word of Python
        command = _completion.completing(name, verb.command)
        app.command(name, rich_help_panel=panel)(_places.judged(command))


targets = typer.Typer(help=deploy.HELP, no_args_is_help=True)
for target, function in deploy.TARGETS.items():
    command = _completion.completing(f"deploy {target}", function)
    targets.command(target)(_places.judged(command))
app.add_typer(targets, name="deploy", rich_help_panel=ELSEWHERE)


def main() -> None:
    """Entry point: runs the command; known errors end with their exit codes, never with tracebacks."""
    _streams.prepare()
    with _signals.raising():
        code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        _streams.silence()
        if _streams.reader_gone(error):
            code = _streams.READER_GONE
        elif code == 0:
            code = _failed(_streams.problem_of(error) or error)
    raise SystemExit(code)


def _run() -> int:
    try:
        app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        return _signals.exit_code() or code
    except BaseException as error:
        # A signal during an import may surface as another error.
        return _signals.exit_code() or _failed(error)
    return int(ExitCode.OK)


def _failed(error: BaseException) -> int:
    """Print an error; returns its exit code."""
    if isinstance(error, OSError):
        error = _streams.problem_of(error) or error
    elif isinstance(error, MemoryError):
        error = EnvironmentProblem(
            "There is not enough memory.",
            f"{error}",
            "Free some memory, or process less at a time.",
        )
    if not isinstance(error, CapsedgeError):
        _common.report_bug(error)
        return int(ExitCode.BUG)
    _common.report(error, "--json" in sys.argv)
    return int(error.exit_code)
