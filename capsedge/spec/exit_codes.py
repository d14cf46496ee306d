"""Define how commands end: their exit codes, which are also the codes of statuses in C.

``python -m tools.spec`` writes them into ``capsedge.h`` and docs/reference/cli.md.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``capsedge`` command (documented in docs/reference/cli.md)."""

    OK = 0
    BUG = 1
    USAGE = 2
    ENVIRONMENT = 3
    PARITY = 4
    UNSUPPORTED = 5
    ARTEFACT = 6


# Rows of docs/reference/cli.md, in Markdown: code, meaning, examples.
MEANINGS: tuple[tuple[ExitCode | str, str, str], ...] = (
    (ExitCode.OK, "done", ""),
    (
        ExitCode.BUG,
        "a bug in capsedge",
        "please report it; `CAPSEDGE_DEBUG=1` shows the traceback",
    ),
    (
        ExitCode.USAGE,
        "wrong usage",
        "unknown option or model, unreadable image (`infer` and `batch` first process the others), a video "
        "that is damaged (`infer` first processes the frames before), no such camera, "
        "`--iters 0`, a path that cannot be written",
    ),
    (
        ExitCode.ENVIRONMENT,
        "environment",
        "a missing package, a full disk (including the one that standard output is redirected to), a camera "
        "that is busy or was unplugged",
    ),
    (
        ExitCode.PARITY,
        "parity or accuracy",
        "a comparison beyond its tolerance; nothing is written (`prune` and `quantize` keep the file aside "
        "as `.rejected`); training whose loss is not finite, which keeps the epochs before; "
        "[what raises in Python](python.md#gates-what-raises-and-what-returns-a-verdict)",
    ),
    (
        ExitCode.UNSUPPORTED,
        "unsupported model",
        "readable, but capsedge cannot export or run it",
    ),
    (
        ExitCode.ARTEFACT,
        "artefact",
        "a file that is damaged, foreign, or built for another machine",
    ),
    (
        "129, 130, 143",
        "ended by SIGHUP, SIGINT (Ctrl-C) or SIGTERM",
        "no unfinished file is left; `train` and `prune` keep the finished epochs, `batch` the finished "
        "parts, and `--resume` continues from them; `infer` finishes what it writes of moving pictures",
    ),
    (
        "141",
        "no reader",
        "the program that the output is piped into has ended, as in "
        "`capsedge inspect model.onnx \\| head -1`",
    ),
)

# Those that the C library gives: the name there, and what it means.
C_CODES = {
    ExitCode.OK: ("OK", ""),
    ExitCode.BUG: ("INTERNAL", "a bug in capsedge"),
    ExitCode.USAGE: ("USAGE", "the call is wrong, or the file is not there"),
    ExitCode.ENVIRONMENT: (
        "ENVIRONMENT",
        "ONNX Runtime or TensorRT is missing or too old, or memory ran out",
    ),
    ExitCode.UNSUPPORTED: (
        "UNSUPPORTED",
        "the model is intact, but this library cannot run it",
    ),
    ExitCode.ARTEFACT: (
        "ARTEFACT",
        "the model file is damaged, foreign, for another machine, or gives NaN or infinite values",
    ),
}
