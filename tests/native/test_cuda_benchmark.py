"""The GPU benchmark without a GPU: the kernels take its layers, and its tables say what failed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

import capsedge
from benchmarks import gpu, gpu_models
from tests.conftest import ROOT
from tests.native import cuda_library


def test_layers_have_kernels_of_their_own() -> None:
    path = cuda_library.host_library()
    if path is None:
        pytest.skip("the emulation of the CUDA kernels needs g++ on Linux")
    library = cuda_library.bind(path)
    seen = 0
    for batch, layer in gpu.layers([1, 32]):
        if layer.operator == "Squash":
            continue
        described = cuda_library.layer_of(layer.operator, layer.attributes, layer.inputs)
        described.multiprocessors = 100
        words = library.capsedge_cuda_describe(ctypes.byref(described)).decode()
        assert words.startswith(("4x4", "1x16")), (layer.name, words)
        assert library.capsedge_cuda_workspace(ctypes.byref(described)) > 0
        if batch == 32 and "convolutional" in layer.name:
            assert "tiled" in words, (layer.name, words)
        seen += 1
    assert seen == 18


def test_tables() -> None:
    row = {
        "layer": "a layer",
        "operator": "EMRouting",
        "batch": 1,
        "floor_ms": 0.5,
        "floor_of": "traffic",
    }
    document = {
        "gpu": "Thor", "versions": "torch 2",
        "floors": {"multiply_adds_per_second": 4e12, "bytes_per_second": 2e11},
        "operators": [
            {**row, "times": {gpu.KERNELS: {"median_ms": 1.0}, gpu.EAGER: {"median_ms": 30.0},
                              gpu.HALF: {"median_ms": 0.5}, gpu.GRAPH: {"median_ms": 4.0},
                              gpu.COMPILED: {"failed": "out of memory"}}},
            {**row, "times": {gpu.KERNELS: {"failed": "differs from torch"}, gpu.EAGER: {"median_ms": 3.0}}},
        ],
        "models": [{"model": "m:3", "batch": 1, "times": {gpu.EAGER: {"median_ms": 2.0},
                                                          "TensorRT, native": {"failed": "not there"}}}],
    }  # fmt: skip
    text = gpu.markdown(document)
    line = (
        "| a layer | 1 | 1.0000 | 0.5000 | 0.5000 | traffic | 2.00 | 30.0 | 4.0 | out of memory |"
    )
    assert line in text
    assert "differs from torch" in text
    text = gpu_models.markdown(document)
    assert "torch eager 2.000 ms; TensorRT, native: not there" in text


@pytest.mark.thorough
def test_int8_engines_have_a_file_of_their_own(tmp_path: Path) -> None:
    """Calibrated once; ONNX Runtime on the CPU gives what the engine is compared with."""
    import torch

    from capsedge.exporters.export import export
    from capsedge.exporters.export_options import ExportOptions
    from capsedge.models import build, get_config

    torch.manual_seed(0)
    network = build(get_config("attention-cifar10-simple"), iterations=1).eval()
    file = tmp_path / "network.onnx"
    export(network, file, ExportOptions(ops="portable"))
    images = torch.rand(2, 3, 32, 32)
    path = gpu_models.quantized(file, tmp_path, images)
    assert path == gpu_models.quantized(file, tmp_path, images)
    float_answers, answers = (
        capsedge.load(name, ops="portable").run(images.numpy()) for name in (file, path)
    )
    found = gpu_models.compared(answers, float_answers, 0.5)
    assert 0 < found["difference"] < 0.5


@pytest.mark.thorough
def test_without_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "torch sees no GPU here\n"
