"""Errors that a person can act on: each states what failed, why, and how to fix it."""

from __future__ import annotations

from capsedge.spec.exit_codes import ExitCode as ExitCode

TYPE_CHECKING = False  # typing's own takes time to import, and a device needs only the errors
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class CapsedgeError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what failed, in one sentence.
        why: the cause, with the numbers or names involved.
        fix: how to fix it, for a caller in Python.
        command: the same for the command line, if it differs.
        details: further lines on the cause, such as lines of the user's code.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(
        self,
        what: str,
        why: str = "",
        fix: str = "",
        *,
        command: str = "",
        details: Sequence[str] = (),
    ) -> None:
        self.what, self.why, self.fix, self.details = what, why, fix, tuple(details)
        self.command = command or fix
        super().__init__("\n".join(part for part in (what, why, *details, fix) if part))


class UsageError(CapsedgeError, ValueError):
    """The caller's input is wrong: an option, a file, an image, an array or a shape."""

    exit_code = ExitCode.USAGE


class ShapeError(UsageError):
    """An operator or a session received a tensor of the wrong shape or type."""


class EnvironmentProblem(CapsedgeError):
    """Something is missing or broken on this machine: a package, a library, disk space."""

    exit_code = ExitCode.ENVIRONMENT


class ParityError(CapsedgeError):
    """A comparison ended outside its tolerance, or accuracy dropped too far.

    Attributes:
        report: the `ExportReport`, `QuantizationReport` or `Certificate` with the numbers; None if the
            failure came before the report.
    """

    exit_code = ExitCode.PARITY

    def __init__(
        self,
        what: str,
        why: str = "",
        fix: str = "",
        report: Any = None,
        *,
        command: str = "",
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(what, why, fix, command=command, details=details)
        self.report = report


class UnsupportedModelError(CapsedgeError):
    """A model that can be read but not exported or run by capsedge."""

    exit_code = ExitCode.UNSUPPORTED


class ArtefactError(CapsedgeError):
    """An artefact is damaged, not from capsedge, or does not fit this machine."""

    exit_code = ExitCode.ARTEFACT
