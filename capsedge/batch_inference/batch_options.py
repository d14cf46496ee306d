"""Declare the options of ``batch``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capsedge.errors import UsageError
from capsedge.options import Options, option


@dataclass(frozen=True)
class BatchOptions(Options):
    """How `capsedge.batch` reads images and writes a table."""

    column: str = option(
        "", "The column (in an npz file, the array) with the images; required if several qualify."
    )
    outputs: tuple[Literal["scores", "poses"], ...] = option(
        (), "Additional columns: scores, poses or both."
    )
    invert: bool = option(False, "Dark ink on a light background, as on paper.", "--invert")
    resume: bool = option(
        False, "Continue an interrupted run with the same model and source.", "--resume"
    )
    force: bool = option(False, "Replace the table of an earlier run, finished or not.", "--force")
    cluster: str | None = option(
        None,
        "Address of a Ray cluster, such as 10.0.0.1:6379, or auto. All machines must reach the source by the "
        "same path.",
        panel="Execution",
        complete=("auto",),
    )

    def __post_init__(self) -> None:
        """Name each column once.

        Raises:
            UsageError: a value is wrong, or options contradict each other.
        """
        super().__post_init__()
        object.__setattr__(self, "outputs", tuple(dict.fromkeys(self.outputs)))
        if self.resume and self.force:
            raise UsageError(
                "resume and force cannot be used together.", "", "Use either resume or force.",
                command="Use either --resume or --force.",
            )  # fmt: skip
