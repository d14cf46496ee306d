"""The metrics of an artefact's outputs against the reference's, added up batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError
from capsedge.judging.decisions import Decisions
from capsedge.judging.numeric import ErrorCount, has_columns
from capsedge.judging.outputs import OutputMetrics
from capsedge.judging.regression import RegressionErrors
from capsedge.judging.tolerance import Tolerance
from capsedge.runtime.session import Session
from capsedge.verification.reference import Arrays


@dataclass
class Comparison:
    """Metrics of one set of images."""

    session: Session
    outputs: dict[str, OutputMetrics]
    decisions: Decisions | None
    regression: RegressionErrors | None
    errors: dict[str, ErrorCount]

    @classmethod
    def of(
        cls, session: Session, tolerances: Mapping[str, Tolerance], tie: float = 0.0
    ) -> Comparison:
        """A comparison of no images yet; ``tie`` as for `Decisions`."""
        outputs = {name: OutputMetrics(name, each) for name, each in tolerances.items()}
        errors = {
            port.name: ErrorCount(port.name, has_columns([port.shape], batched=True))
            for port in session.outputs
            if port.name in tolerances
        }
        return cls(
            session, outputs, Decisions.of(session, tie), RegressionErrors.of(session), errors
        )

    def images_over(
        self,
        expected: Arrays,
        found: Arrays,
        noise: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> NDArray[np.intp]:
        """The images of a batch with an output beyond its tolerance; nothing is added."""
        over = [
            m.images_over(expected[n], found[n], 0.0 if noise is None else noise[n])
            for n, m in self.outputs.items()
            if expected[n].shape == found[n].shape and expected[n].ndim
        ]
        return np.flatnonzero(np.any(over, axis=0)) if over else np.zeros(0, np.intp)

    def update(
        self,
        expected: Arrays,
        found: Arrays,
        noise: Mapping[str, NDArray[np.float64]] | None = None,
        labels: NDArray[np.int64] | None = None,
        exact: Arrays | None = None,
        conditioning: Arrays | None = None,
    ) -> None:
        """Add a batch of the reference's and the artefact's outputs; as `OutputMetrics.update`.

        Raises:
            ArtefactError: an output's shape is not that of the reference.
        """
        for name, metrics in self.outputs.items():
            if expected[name].shape != found[name].shape:
                raise ArtefactError(
                    f"Output '{name}' has the shape {list(found[name].shape)}.",
                    f"The reference's has {list(expected[name].shape)}.",
                    "Name the checkpoint that the file was exported from with --checkpoint.",
                )
            metrics.update(
                expected[name],
                found[name],
                0.0 if noise is None else noise[name],
                None if exact is None else exact[name],
                0.0 if conditioning is None else conditioning[name],
            )
            self.errors[name].update(expected[name], found[name])
        scores, poses = self.session.roles.scores, self.session.roles.poses
        if self.decisions is not None and scores is not None:
            self.decisions.update(expected[scores], found[scores], labels)
            if poses is not None and expected[poses].ndim > 2:
                self.decisions.update_poses(expected[poses], found[poses], expected[scores])
        if self.regression is not None:
            self.regression.update(
                self.session.roles.estimates(expected), self.session.roles.estimates(found)
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "outputs": [m.to_dict() for m in self.outputs.values()],
            "decisions": None if self.decisions is None else self.decisions.to_dict(),
            **({} if self.regression is None else {"estimates": self.regression.to_dict()}),
        }
