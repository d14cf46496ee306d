"""The interface that a session needs from the backend that runs its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from capsedge.runtime.backends.onnxruntime_backend import Port


class Backend(Protocol):
    """A loaded model. Several threads may run it.

    Attributes:
        inputs, outputs: name, shape and type of each.
        smallest_batch: of one call.
        largest_batch: of one call; None for any.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def smallest_batch(self) -> int: ...

    @property
    def largest_batch(self) -> int | None: ...

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """The named outputs, for inputs that have been checked."""
