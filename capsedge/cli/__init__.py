"""The ``capsedge`` command. One file a verb; each is thin and imports what is heavy when it runs."""

from __future__ import annotations

import errno
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from capsedge.cli import (
    _common,
    _streams,
    build,
    config,
    doctor,
    export,
    infer,
    inspect,
    profile,
    quantize,
    sweep,
    train,
    verify,
)
from capsedge.errors import CapsedgeError, ExitCode


class Verbs(TyperGroup):
    """Ends interrupts and closed pipes here; typer would in silence, by its version with exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _common.log("interrupted: no unfinished file is left behind")
            raise SystemExit(_streams.INTERRUPTED) from None
        except BrokenPipeError:
            raise SystemExit(_streams.READER_GONE) from None


app = typer.Typer(
    name="capsedge",
    cls=Verbs,
    help="Export trained capsule networks, prove them equal, run them at the edge.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import capsedge

        print(capsedge.__version__)
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
LOOK = "What there is"

app.command("train", rich_help_panel=MODELS)(train.command)
app.command("export", rich_help_panel=MODELS)(export.command)
app.command("verify", rich_help_panel=MODELS)(verify.command)
app.command("quantize", rich_help_panel=SMALLER)(quantize.command)
app.command("sweep", rich_help_panel=SMALLER)(sweep.command)
app.command("build", rich_help_panel=SMALLER)(build.command)
app.command("infer", rich_help_panel=DEVICE)(infer.command)
app.command("profile", rich_help_panel=DEVICE)(profile.command)
app.command("inspect", rich_help_panel=LOOK)(inspect.command)
app.command("config", rich_help_panel=LOOK)(config.command)
app.command("doctor", rich_help_panel=LOOK)(doctor.command)


def main() -> None:
    """Entry point: runs the command; known errors become their exit codes, never tracebacks."""
    _streams.prepare()
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _streams.READER_GONE
        _streams.silence()
    except OSError as error:
        _streams.silence()
        if code == 0:
            problem = _streams.unwritable(error)
            _common.log(f"error: {problem}")
            code = int(problem.exit_code)
    raise SystemExit(code)


def _run() -> int:
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except CapsedgeError as error:
        _common.report(error, "--json" in sys.argv)
        return int(error.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            _common.report_bug(error)
        problem = _streams.unwritable(error)
        _common.log(f"error: {problem}")
        return int(problem.exit_code)
    except Exception as error:
        _common.report_bug(error)
    return int(ExitCode.OK)
