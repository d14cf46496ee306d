"""``capsedge doctor``: shows what is installed, what works, and how to fix the rest."""

from __future__ import annotations

from capsedge.cli import _options, _output
from capsedge.errors import ExitCode


def command(as_json: _options.Json = False) -> None:
    """Show what is installed, what is missing, and how to fix it.

    The exit code is 0 if images can be classified on this machine, otherwise 3.
    """
    from capsedge.runtime.doctor import diagnose

    diagnosis = diagnose()
    _output.print_report(diagnosis, as_json)
    if not diagnosis.ready:
        raise SystemExit(int(ExitCode.ENVIRONMENT))
