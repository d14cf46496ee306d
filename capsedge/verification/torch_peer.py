"""The trained model itself in eager PyTorch, as a peer of ``capsedge profile --compare torch``.

A worker of ``capsedge.runtime.profiling.driver``, which knows only its name: the runtime never imports torch.
"""

from __future__ import annotations

import json
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.profiling.worker import Run, Specification, main
from capsedge.runtime.session import Session
from capsedge.verification.reference import check_origin, find_checkpoint


def checkpoint_of(session: Session, named: Path | None) -> Path:
    """The checkpoint of the model that a session runs.

    Args:
        named: the checkpoint given by the caller; None for the zoo's.

    Raises:
        UsageError: there is no such file, or none is named and the zoo has none.
        ArtefactError: the session's file was not exported from it.
    """
    if named is None:
        return find_checkpoint(session.metadata)
    if not named.is_file():
        raise UsageError(
            f"There is no checkpoint {named}.", "", "Check the name after --checkpoint."
        )
    check_origin(session.metadata, named, sha256(named))
    return named


def load_torch(s: Specification) -> tuple[Run, str]:
    """The checkpoint's model, unpatched, with as many routing iterations as the file has."""
    import torch

    from capsedge.runtime.reading.onnx_structure import read_structure
    from capsedge.verification.reference import Reference, expected_of, load_reference

    if s.threads:
        torch.set_num_threads(s.threads)
    structure = read_structure(s.model)
    metadata = ModelMetadata.from_properties(structure.metadata)
    names = [output.name for output in structure.graph.outputs]
    if s.module:
        from capsedge.pipelines.own_module import ModuleSource, load_module

        own = load_module(ModuleSource(**json.loads(s.module))).module
        reference = Reference(own, expected_of(own, names), metadata=metadata)
    else:
        reference = Reference(load_reference(Path(s.checkpoint), metadata), names)
    order = [given.name for given in structure.graph.inputs]
    return lambda feeds: reference.run(
        *(feeds[name] for name in order if name in feeds)
    ), f"torch {torch.__version__}, eager"


if __name__ == "__main__":
    main({"torch": load_torch})
