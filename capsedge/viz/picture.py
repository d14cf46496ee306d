"""What all pictures have in common: numbers, a drawing of them, and a sentence that describes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.viz.style import check_matplotlib, own_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, kw_only=True)
class Picture(ABC):
    """The numbers of a picture.

    Attributes:
        model: name of the file that computed them.
        notes: what the picture leaves out.
    """

    model: str
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The heading, without the model."""

    @property
    @abstractmethod
    def description(self) -> str:
        """A sentence for those who read or hear the picture instead of seeing it."""

    def draw(self) -> Figure:
        """The picture as a new figure.

        Raises:
            EnvironmentProblem: matplotlib is not installed.
        """
        check_matplotlib()
        with own_style():
            return self._figure()

    @abstractmethod
    def _figure(self) -> Figure:
        """The picture as a new figure."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """The numbers that are drawn, as JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Title, description, notes and numbers as JSON values."""
        return {
            "title": self.title,
            "description": self.description,
            "notes": list(self.notes),
            **self.numbers(),
        }


def rounded(values: NDArray[Any]) -> Any:
    """An array as nested lists of numbers with six digits after the point."""
    return np.round(values.astype(np.float64), 6).tolist()
