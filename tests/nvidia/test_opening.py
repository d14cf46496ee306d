"""Engines opened through NVIDIA's runtime, in Python and in C++, as far as a machine without a GPU goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from capsedge.runtime.zoo import default_model
from tests.native.libcapsedge import ARTEFACT, LIBRARY_VARIABLE
from tests.native.stand_ins import DRIVER, compiled
from tests.nvidia import headers
from tests.nvidia.conftest import Build, process
from tests.tensorrt.fixtures import cudart  # noqa: F401

pytestmark = pytest.mark.tensorrt_rtx


@pytest.fixture
def engine(build: Build) -> Path:
    (built,) = build([(default_model(), {"batch": (1, 4, 8)})])
    assert "error" not in built, built
    return Path(built["engine"])


def opened(
    engine: Path, stand_in: Path, environment: Mapping[str, str], **given: Any
) -> list[dict[str, Any]]:
    """On GPUs of compute capability 8.9 and 8.7."""
    document = {"engine": str(engine), "cudart": str(stand_in), "capabilities": [89, 87], **given}
    variables = {**environment, "CAPSEDGE_CUDART": str(stand_in)}
    return [json.loads(line) for line in process("tests.nvidia.opening", document, variables)]


def test_python(engine: Path, cudart: Path, environment: Mapping[str, str]) -> None:  # noqa: F811
    """A GPU outside the list is refused by the metadata file; one in it gets as far as NVIDIA's runtime."""
    ada, orin = opened(engine, cudart, environment, cpp=False)
    assert ada["runs_here"] is True
    assert ada["error"] == "ArtefactError", ada
    assert "TensorRT-RTX 1.7.1.116 cannot load" in ada["what"]
    assert "cudaError 35" in ada["why"]  # NVIDIA's words: there is no driver
    assert orin["runs_here"] is False
    assert "not built for this machine" in orin["what"]
    assert "compute capability 8.7, the engine is for 8.6, 8.9, 12.0" in orin["why"]


def test_cpp(
    engine: Path,
    cudart: Path,  # noqa: F811
    environment: Mapping[str, str],
    library: Path,
    tmp_path: Path,
) -> None:
    """libcapsedge opens libtensorrt_rtx.so.1 by its own name, and reaches deserialization."""
    newest = headers.any_folders()[-1]
    if headers.version(newest) < (11, 0):
        pytest.skip(f"TensorRT-RTX has the interface of TensorRT 11; {headers.VARIABLE} has none")
    built = headers.libcapsedge_with_tensorrt(newest)
    source, driver = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    compiled("gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(driver))
    variables = {**environment, LIBRARY_VARIABLE: str(built), "CAPSEDGE_TENSORRT_RTX": str(library)}
    ada, orin = opened(engine, cudart, variables, cpp=True, driver=str(driver))
    assert ada["code"] == orin["code"] == ARTEFACT
    assert "TensorRT-RTX 1.7.1.116 cannot load" in ada["words"], ada
    assert "cudaError 35" in ada["words"]
    assert "compute capability 8.7, the engine is for 8.6, 8.9, 12.0" in orin["words"], orin
