"""``capsedge doctor``: shows what is installed, what works, and how to fix the rest."""

from __future__ import annotations

from capsedge.cli import _options, _output
from capsedge.cli._output import print_table
from capsedge.errors import ExitCode

JOBS = {
    "infer": "Classify images here",
    "faster": "Fused kernels",
    "export": "Export, verify and train (workstation)",
    "gpu": "NVIDIA GPU",
    "compare": "Comparisons",
}


def command(as_json: _options.Json = False) -> None:
    """Show what is installed, what is missing, and how to fix it.

    The exit code is 0 if images can be classified on this machine, otherwise 3.
    """
    from capsedge.runtime.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        _output.print_json(diagnosis.to_dict())
    else:
        print_table("This machine", ("", ""), list(diagnosis.machine.items()))
        for job, title in JOBS.items():
            lines = [c for c in diagnosis.checks if c.job == job]
            print_table(title, ("", "", ""), [(c.name, c.status, c.found) for c in lines])
        faulty = [c for c in diagnosis.checks if c.status != "ok"]
        if faulty:
            _output.say("Missing")
            for check in faulty:
                _output.say(f"  {check.name}: {check.cost}.", f"    -> {check.fix}")
            _output.say()
        _output.say(
            "PASSED: images can be classified here"
            if diagnosis.ready
            else "FAILED: images cannot be classified here"
        )
    if not diagnosis.ready:
        raise SystemExit(int(ExitCode.ENVIRONMENT))
