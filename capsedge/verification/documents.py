"""What the dictionaries of a certificate hold: the keys of its JSON document, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from capsedge.metrics import DecisionsDocument, EstimatesDocument
from capsedge.runtime.session.mask_overlap import OverlapDocument

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class OutputDocument(TypedDict):
    """The differences of one output; ``worst_over_tolerance`` is None if it is infinite."""

    name: str
    atol: float
    rtol: float
    elements: int
    max_abs: float
    mean_abs: float
    relative: float
    nmse: float
    worst_over_tolerance: float | None
    worst_image: int | None
    over: int
    not_finite: int
    passed: bool


class ComparisonDocument(TypedDict):
    """The comparison of one set of inputs; ``estimates`` are those of a regression, ``masks`` of a
    segmentation."""

    outputs: list[OutputDocument]
    decisions: DecisionsDocument | None
    estimates: NotRequired[EstimatesDocument]
    masks: NotRequired[OverlapDocument]


class SamplesDocument(ComparisonDocument):
    """The samples; ``ignored`` names what of them was not used."""

    source: str
    split: str
    measured_on: str
    images: int
    sha256: str
    ignored: NotRequired[str]
    warnings: NotRequired[list[str]]


class HardCasesDocument(ComparisonDocument):
    """The hard cases."""

    names: list[str]
    noise_factor: float


class CellDocument(TypedDict):
    """The error of one kind of value of routing, None if it is not finite, and the allowed error."""

    error: float | None
    budget: float
    over: bool


class RoutingRowDocument(TypedDict):
    """One layer and iteration; None for values that the file does not show."""

    layer: str
    iteration: int
    couplings: CellDocument | None
    pose: CellDocument | None
    length: CellDocument | None


class RoutingErrorsDocument(TypedDict):
    """Where routing first deviates."""

    verdict: str
    note: str
    first: dict[str, Any] | None
    rows: list[RoutingRowDocument]


class MemberDocument(TypedDict):
    """A member beside the ensemble; without the agreement for a regression."""

    file: str
    agreement_with_ensemble: NotRequired[float]
    accuracy: NotRequired[float | None]


class LinkFacts(TypedDict, total=False):
    """What identifies a link of the chain besides its checksum."""

    architecture: str
    calibration: dict[str, Any]
    cascade: dict[str, Any]
    checkpoint_sha256: str
    claimed_origin: dict[str, str]
    claimed_parent: dict[str, str]
    code: str
    code_sha256: str
    compiler: str
    device: str
    gpu: str
    iterations: int | None
    ops: str
    parameters: int
    parity: dict[str, Any]
    precision: str
    routing: str
    tensorrt: str
    typical_input: str
    user_module: bool
    weights: str
