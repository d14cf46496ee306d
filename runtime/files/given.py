"""A model that is given as a file or as its bytes, for what reads files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from capsedge.runtime.files.writing import temporary_folder, write_bytes

GivenModel: TypeAlias = "str | os.PathLike[str] | bytes"


@contextmanager
def as_file(model: GivenModel) -> Iterator[Path]:
    """The model's file; for bytes one named ``model.onnx``, in a folder that is gone afterwards.

    Raises:
        EnvironmentProblem: the disk is full.
    """
    if not isinstance(model, bytes):
        yield Path(model)
        return
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        write_bytes(path, model)
        yield path
