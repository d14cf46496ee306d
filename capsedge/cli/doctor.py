"""``capsedge doctor``: shows what is installed, what works, and how to fix the rest."""

from __future__ import annotations

from typing import Annotated

from capsedge.cli import _options, _output
from capsedge.errors import ExitCode
from capsedge.options import Option

Report = Annotated[
    bool,
    Option(
        "--report",
        help="Run the operators and the bundled models at every SIMD level, compare the results with bundled "
        "ones, and print one text to paste into an issue.",
    ),
]


def command(report: Report = False, as_json: _options.Json = False) -> None:
    """Show what is installed, what is missing, and how to fix it.

    The exit code is 0 if images can be classified on this machine (with --report: and every result is right),
    otherwise 3.
    """
    if report:
        from capsedge.runtime.machine_report import make_report

        made = make_report()
        _output.print_report(made, as_json)
        passed = made.passed
    else:
        from capsedge.runtime.doctor import diagnose

        diagnosis = diagnose()
        _output.print_report(diagnosis, as_json)
        passed = diagnosis.ready
    if not passed:
        raise SystemExit(int(ExitCode.ENVIRONMENT))
