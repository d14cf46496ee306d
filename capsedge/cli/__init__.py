"""The ``capsedge`` command. One file a verb; each is thin and imports what is heavy when it runs."""

from __future__ import annotations

import sys

import typer

from capsedge.cli import (
    _common,
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
from capsedge.errors import CapsedgeError

app = typer.Typer(
    name="capsedge",
    help="Export trained capsule networks, prove them equal, run them at the edge.",
    no_args_is_help=True,
    add_completion=False,
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


app.command("train")(train.command)
app.command("export")(export.command)
app.command("quantize")(quantize.command)
app.command("build")(build.command)
app.command("infer")(infer.command)
app.command("verify")(verify.command)
app.command("profile")(profile.command)
app.command("sweep")(sweep.command)
app.command("inspect")(inspect.command)
app.command("doctor")(doctor.command)
app.command("config")(config.command)


def main() -> None:
    """Entry point: runs the command; known errors become their exit codes, never tracebacks."""
    try:
        app()
    except CapsedgeError as error:
        _common.report(error, "--json" in sys.argv)
        raise SystemExit(int(error.exit_code)) from None
    except KeyboardInterrupt:
        _common.log("interrupted")
        raise SystemExit(130) from None
    except Exception as error:
        _common.report_bug(error)
