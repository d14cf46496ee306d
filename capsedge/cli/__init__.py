"""The ``capsedge`` command: one thin module per verb.

Verbs, like heavy packages, are imported when they are run.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # importing typing for it would take longer than `capsedge --version`
if TYPE_CHECKING:
    from capsedge.cli._commands import CommandLine

    app: CommandLine


def __getattr__(name: str) -> object:
    """The command line's parser, ``app``, imported when it is first used (PEP 562)."""
    if name != "app":
        raise AttributeError(f"module 'capsedge.cli' has no attribute '{name}'")
    from capsedge.cli import _commands

    globals()["app"] = _commands.app
    return _commands.app


# New objects between two garbage collections; with Python's 700, imports alone cause 75 collections.
_OBJECTS = 50_000


def main() -> None:
    """Entry point: run the command; known errors end with their exit codes, never with tracebacks."""
    from capsedge.cli import _process

    _process.prepare()
    gc.set_threshold(_OBJECTS)
    with _process.raising():
        code = _run()
    # Python would search all objects for cycles before it exits, which takes a tenth of a short command's
    # time.
    gc.freeze()
    try:
        sys.stdout.flush()
    except OSError as error:
        _process.silence()
        if _process.reader_gone(error):
            code = _process.READER_GONE
        elif code == 0:
            code = _failed(_process.readable_error(error) or error)
    raise SystemExit(code)


def _run() -> int:
    from capsedge.cli import _process

    try:
        if sys.argv[1:] == ["--version"]:  # before anything unneeded is imported
            from capsedge.cli._output import say
            from capsedge.spec.version import VERSION

            say(VERSION)
        else:
            from capsedge.cli._commands import app

            app.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        return _process.exit_code() or code
    except BaseException as error:
        _process.note_arrival(error)
        if isinstance(error, OSError) and _process.reader_gone(error):
            return _process.READER_GONE
        # A signal during an import may surface as another error.
        return _process.exit_code() or _failed(error)
    return 0


def _failed(error: BaseException) -> int:
    """Print an error; returns its exit code."""
    from capsedge.cli import _memory, _output, _process
    from capsedge.errors import CapsedgeError, EnvironmentProblem, ExitCode

    if not isinstance(error, CapsedgeError) and _memory.is_cause(error):
        error = EnvironmentProblem(*_memory.EXPLANATION)
    elif isinstance(error, (OSError, ImportError)):
        error = _process.readable_error(error) or error
    if not isinstance(error, CapsedgeError):
        _output.report_bug(error)
        return int(ExitCode.BUG)
    _output.report(error, "--json" in sys.argv)
    return int(error.exit_code)
