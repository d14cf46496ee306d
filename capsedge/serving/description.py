"""What the server tells of a model: its inputs and outputs, and what its metadata says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlserver.types import MetadataTensor, Parameters

from capsedge.serving.tensors import datatype_of

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Port
    from capsedge.runtime.session import Session

PLATFORM = "capsedge"


def inputs_of(session: Session) -> list[MetadataTensor]:
    """The model's inputs. One that takes images says so in its parameters.

    Raises:
        UnsupportedModelError: one is of a type that the protocol does not have.
    """
    takes = session.metadata is not None and session.metadata.preprocessing is not None
    said = {"images": "BYTES [N]: image files, in JSON as base64"} if takes else {}
    return [_tensor(port, session, said) for port in session.inputs]


def outputs_of(session: Session) -> list[MetadataTensor]:
    """The model's outputs. Scores name their classes, and values what they are, in their parameters.

    Raises:
        UnsupportedModelError: one is of a type that the protocol does not have.
    """
    return [_tensor(port, session, _meaning(port.name, session)) for port in session.outputs]


def parameters_of(session: Session) -> dict[str, str | int]:
    """What else is known of the model, as texts and whole numbers, which gRPC can carry."""
    said: dict[str, str | int] = {"operators": session.backend.ops}
    if session.backend.batches.fixed is not None:
        said["batch"] = session.backend.batches.fixed
    metadata = session.metadata
    if metadata is not None:
        said |= {"task": metadata.task, "precision": metadata.precision}
        if metadata.architecture:
            said["architecture"] = metadata.architecture
        if metadata.routing:
            said |= {"routing": metadata.routing, "iterations": metadata.iterations}
    return said


def _meaning(output: str, session: Session) -> dict[str, str]:
    metadata = session.metadata
    if metadata is None:
        return {}
    if output == session.roles.scores:
        labels = {"labels": _texts(metadata.class_names)} if metadata.class_names else {}
        return {**labels, "score_kind": session.roles.kind}
    if output in session.roles.values and metadata.outputs is not None:
        return {"values": _texts(metadata.outputs.names), "units": _texts(metadata.outputs.units)}
    return {}


def _texts(texts: Sequence[str]) -> str:
    return json.dumps(list(texts))


def _tensor(port: Port, session: Session, said: dict[str, str]) -> MetadataTensor:
    extra: dict[str, Any] = {"parameters": Parameters(**said)} if said else {}
    return MetadataTensor(
        name=port.name,
        datatype=datatype_of(port, session.path),
        shape=[size if isinstance(size, int) else -1 for size in port.shape],
        **extra,
    )
