"""What a file of weights does not tell, and the user is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capsedge.errors import UsageError


class MissingAnswer(UsageError):
    """One question that the file leaves open.

    Args:
        what: the question.
        why: why the file does not tell, and where the answer usually stands.
        option: that gives the answer on the command line.
        argument: that gives it in Python.
        assumed: fields of `Answers` that let the configuration go on, so that further questions are found;
            empty if it cannot.
        fix, command: as for `CapsedgeError`; by default made of option and argument.
    """

    def __init__(
        self,
        what: str,
        why: str,
        option: str,
        argument: str,
        assumed: Mapping[str, Any],
        fix: str = "",
        command: str = "",
    ) -> None:
        fix = fix or f"Give it with {option} ({argument} in Python)."
        super().__init__(what, why, fix, command=command)
        self.option, self.argument, self.assumed = option, argument, assumed


def together(questions: Sequence[MissingAnswer]) -> UsageError:
    """One error for all questions, of which there is at least one."""
    if len(questions) == 1:
        return questions[0]
    return UsageError(
        f"The file leaves {len(questions)} questions open.",
        "",
        "Give " + "; ".join(f"{q.option} ({q.argument} in Python)" for q in questions) + ".",
        command="Give " + "; ".join(q.option for q in questions) + ".",
        details=[f"{q.what} {q.why}" for q in questions],
    )
