"""Metadata files of engines in libcapsedge: what does not fit or is damaged is refused in Python's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.errors import ArtefactError
from capsedge.runtime.metadata import engine_metadata
from capsedge.runtime.zoo import default_model

from .libcapsedge import ARTEFACT, Failed, Session
from .stand_ins import Machine

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.thorough  # the first of them compiles the library for stand-ins


def change(path: Path, **values: Any) -> None:
    """Write other values into the metadata file; those of the machine by ``machine_``."""
    stands = json.loads(engine_metadata.metadata_path(path).read_text())
    for name, value in values.items():
        if name.startswith("machine_"):
            stands["machine"][name.removeprefix("machine_")] = value
        elif value is None:
            del stands[name]
        else:
            stands[name] = value
    engine_metadata.metadata_path(path).write_text(json.dumps(stands))


@pytest.mark.parametrize(
    "values",
    [
        {"machine_tensorrt": "10.4.0"},
        {"machine_gpu": "NVIDIA H100", "machine_compute_capability": "9.0"},
        {"machine_architecture": "riscv64"},
        {"machine_cuda": "13.1"},
        {"engine_sha256": "0" * 64},
        {"engine_bytes": 3},
    ],
)
def test_engines_for_something_else(engine: Any, machine: Machine, values: dict[str, Any]) -> None:
    path = engine(default_model())
    change(path, **values)
    with pytest.raises(ArtefactError) as theirs:
        capsedge.load(path)
    with pytest.raises(Failed) as ours:
        Session(path)
    assert ours.value.code == ARTEFACT
    what, why, fix = str(ours.value).split("\n")
    assert what == theirs.value.what
    assert fix == theirs.value.fix
    # TensorRT's library knows its build number.
    assert why.replace("10.3.0.26", "10.3.0") == theirs.value.why


@pytest.mark.parametrize("version", ["10.3.0", "10.3.0.26"])
def test_versions_with_and_without_the_build(engine: Any, machine: Machine, version: str) -> None:
    path = engine(default_model())
    change(path, machine_tensorrt=version)
    Session(path).close()


@pytest.mark.parametrize(
    "values",
    [
        {"schema": 2},
        {"schema": None},
        {"batch": [2, 1, 4]},
        {"batch": [1, 2]},
        {"batch": "1"},
        {"metadata": []},
        {"metadata": {"capsedge.schema": 1}},
        {"machine": {}},
        {"plugin_sha256": 1},
        {"engine_sha256": None},
        {"command": None},
    ],
)
def test_damaged_metadata(engine: Any, machine: Machine, values: dict[str, Any]) -> None:
    path = engine(default_model())
    change(path, **values)
    with pytest.raises(Failed, match="cannot be read") as failed:
        Session(path)
    assert failed.value.code == ARTEFACT
    with pytest.raises(ArtefactError, match="cannot be read"):
        capsedge.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00", '{"schema": 1e400}'])
def test_metadata_that_is_none(engine: Any, machine: Machine, text: str) -> None:
    path = engine(default_model())
    engine_metadata.metadata_path(path).write_text(text)
    with pytest.raises(Failed, match="cannot be read") as failed:
        Session(path)
    assert failed.value.code == ARTEFACT
    engine_metadata.metadata_path(path).unlink()
    with pytest.raises(Failed, match="has no metadata file"):
        Session(path)


def test_checksums_of_all_lengths(engine: Any, machine: Machine) -> None:
    """What is not TensorRT's is TensorRT's to say; what is not the metadata file's never gets there."""
    import hashlib

    path = engine(default_model())
    for size in (1, 3, 55, 56, 63, 64, 65, 119, 120, 127, 128, 1000):
        data = np.random.default_rng(size).bytes(size)
        path.write_bytes(data)
        change(path, engine_bytes=size, engine_sha256=hashlib.sha256(data).hexdigest())
        with pytest.raises(Failed, match="magic tag does not match"):
            Session(path)
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        with pytest.raises(Failed, match="not the engine that its metadata file describes"):
            Session(path)
    path.write_bytes(b"")
    with pytest.raises(Failed, match="is empty"):
        Session(path)
