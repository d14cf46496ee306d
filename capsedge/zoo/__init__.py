"""The trained models that come with the package: small networks for digits, one a routing."""

from __future__ import annotations

from pathlib import Path

from capsedge.errors import UsageError

ROUTINGS = ("dynamic", "em", "attention")
_HERE = Path(__file__).parent


def zoo_checkpoint(routing: str) -> Path:
    """The trained checkpoint of a routing, ``digits-<routing>.safetensors``.

    Raises:
        UsageError: there is no such routing.
    """
    if routing not in ROUTINGS:
        raise UsageError(f"There is no routing '{routing}'.", "", f"Known: {', '.join(ROUTINGS)}.")
    return _HERE / f"digits-{routing}.safetensors"


def default_model() -> Path:
    """The ONNX file that ``capsedge infer`` uses when none is named."""
    return _HERE / "digits-dynamic.onnx"
