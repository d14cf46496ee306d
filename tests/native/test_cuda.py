"""The CUDA kernels: their source on the host against every case, and on a GPU where there is one.

The host build runs each block's threads as fibers (emulate.h): it proves arithmetic, indices and barriers,
neither speed nor what a real GPU does with them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance import modes
from tests.conformance.cases import ON_GPU, UNCACHED, Case, make
from tests.conformance.cuda import CudaEmulated, CudaKernels
from tests.conformance.selection import selected
from tests.native import cuda_behaviour, cuda_library, cuda_sanitizer
from tests.native.library import NativeError

LIGHT = [c for c in ON_GPU if not c.heavy and c.operator in cuda_library.OPERATORS]
# The slow run takes them all, the thorough one the hard kinds and a fifth of the rest.
SAMPLE = [c for k, c in enumerate(LIGHT) if k % 5 == 0 or (c.kind != "normal" and k % 2 == 0)]


@pytest.fixture(scope="module")
def host() -> ctypes.CDLL:
    path = cuda_library.host_library()
    if path is None:
        pytest.skip("the emulation of the CUDA kernels needs g++ on Linux")
    return cuda_library.bind(path)


def compare(backend: CudaKernels, cases: Sequence[Case], dtype: str) -> None:
    """With the oracle, the cases that there are kernels for."""
    cases = [c for c in cases if not backend.unsupported(c, dtype)]
    assert cases
    failed = modes.failures(backend, cases, dtype)
    assert not failed, "\n".join(failed[:20])


@pytest.mark.parametrize("operator", cuda_library.OPERATORS)
def test_source_on_the_host(host: ctypes.CDLL, operator: str) -> None:
    cases = selected([c for c in LIGHT if c.operator == operator])
    compare(CudaEmulated("auto"), cases, "float32")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("operator", "scheme", "dtype"),
    [
        (operator, scheme, dtype)
        for operator in cuda_library.OPERATORS
        for scheme, dtype in (
            ("auto", "float32"),
            ("auto", "float16"),
            ("generic", "float32"),
            ("split", "float32"),
            ("tiled", "float32"),
            ("cluster", "float32"),
        )
        if scheme == "auto" or operator != "Squash"  # which has one scheme
    ],
)
def test_every_scheme_on_the_host(
    host: ctypes.CDLL, operator: str, scheme: str, dtype: str
) -> None:
    cases = [c for c in SAMPLE if c.operator == operator]
    if scheme == "cluster":  # eight times the threads
        cases = cases[::3]
    compare(CudaEmulated(scheme), cases, dtype)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scheme", cuda_library.SCHEMES)
def test_source_on_the_host_whole_registry(host: ctypes.CDLL, scheme: str, dtype: str) -> None:
    compare(CudaEmulated(scheme), LIGHT, dtype)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", cuda_library.SCHEMES)
def test_source_on_the_host_sanitized(scheme: str) -> None:
    """Every address lies in a tensor, in shared memory or in the workspace, and fits what is read there."""
    compiler = shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the sanitizers are those of g++ on Linux")
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", "test", "--backend", f"cuda-emulated-{scheme}",
         "--light", "--filter", "kind=(normal|huge)"],
        env={**os.environ, cuda_library.CHECKS: "sanitized", "LD_PRELOAD": runtime.stdout.strip(),
             "PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0"},
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def of(operator: str, **dims: int) -> Case:
    return next(
        c
        for c in ON_GPU
        if c.operator == operator and all(c.dims.get(k) == v for k, v in dims.items())
    )


def run(
    library: ctypes.CDLL,
    case: Case,
    inputs: Mapping[str, np.ndarray] | None = None,
    memory: cuda_library.Memory | None = None,
    **how: Any,
) -> list[np.ndarray]:
    """A case's results, with its own inputs on the host unless others are given."""
    memory = memory or cuda_library.Host()
    given = make(case, "float32").inputs if inputs is None else inputs
    call, outputs = cuda_library.prepare(
        library, memory, case.operator, case.attributes, given, **how
    )
    call()
    return [memory.get(x) for x in outputs]


def described(library: ctypes.CDLL, case: Case, **fields: int) -> str:
    layer = cuda_library.layer_of(case.operator, case.attributes, make(case, "float32").inputs)
    for name, value in fields.items():
        setattr(layer, name, value)
    return str(library.capsedge_cuda_describe(ctypes.byref(layer)).decode())


@pytest.mark.thorough
def test_results_are_the_same_bits_in_every_order(host: ctypes.CDLL) -> None:
    """Whichever thread runs first between two barriers, sums are the same."""
    for case in (
        of("DynamicRouting", N=7, I=128),
        of("EMRouting", C=8, M=8),
        of("AttentionRouting", C=16),
        of("SelfAttentionRouting", I=130),
    ):
        for scheme in ("auto", "split", "tiled", "cluster"):
            found = []
            for seed in (1, 26):
                host.capsedge_cuda_emulate_order(seed)
                found.append(b"".join(x.tobytes() for x in run(host, case, scheme=scheme)))
            assert found[0] == found[1]


@pytest.mark.thorough
def test_one_image_takes_many_blocks(host: ctypes.CDLL) -> None:
    """A GPU of 100 multiprocessors is not left idle by one image of 128 children or more."""
    case = of("DynamicRouting", N=7, I=128)
    assert "tiled" in described(host, case, images=4096, multiprocessors=100)
    portable = cuda_library.SCHEMES["portable"]
    for how in ({"types": 1152, "scheme": portable}, {"types": 10_000}):
        alone = described(host, case, images=1, multiprocessors=100, **how)
        assert "a kernel per pass" in alone
        assert int(alone.split(" parts")[0].split()[-1]) >= 16
    for processors in (1, 3, 64, 1000):
        for scheme in ("auto", "portable"):
            example = make(case, "float32")
            found = run(host, case, multiprocessors=processors, scheme=scheme)[0]
            assert example.tolerances["v"].excess(found, example.wanted["v"]) <= 1


@pytest.mark.parametrize(
    ("images", "multiprocessors", "plan"),
    [
        (1, 132, "a cluster"),
        (32, 132, "a cluster"),
        (64, 132, "a kernel per pass"),
        (4, 8, "a kernel per pass"),
    ],
)
def test_clusters_run_where_each_block_has_a_multiprocessor(
    host: ctypes.CDLL, images: int, multiprocessors: int, plan: str
) -> None:
    dense = {"height": 4, "width": 4, "kernel_height": 4, "kernel_width": 4, "types": 32}
    fields = {**dense, "grid_height": 1, "grid_width": 1, "parents": 5, "images": images}
    words = described(host, of("EMRouting", C=8, M=8), multiprocessors=multiprocessors, **fields)
    assert f"{plan}, 256 threads, 4 parts of 128 children" in words


@pytest.mark.parametrize("children", [1, 3, 5])
def test_blocks_of_a_cluster_without_children(host: ctypes.CDLL, children: int) -> None:
    """Clusters have 2, 4 or 8 blocks, whatever is left for the last of them."""
    case = of("DynamicRouting", N=7, I=128)
    whole = make(case, "float32").inputs
    inputs = {name: x[:, :children] if name == "u" else x for name, x in whole.items()}
    inputs |= {name: whole[name][:children] for name in ("weight", "log_prior")}
    found, wanted = (run(host, case, inputs, scheme=scheme)[0] for scheme in ("cluster", "generic"))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_no_cluster_holds_goes_without(host: ctypes.CDLL) -> None:
    """Sizes without a kernel of their own, asked to be a cluster, run as one kernel per pass."""
    case = of("DynamicRouting", N=7, I=128)
    layer = described(host, case, columns=5, scheme=cuda_library.SCHEMES["cluster"])
    assert layer.startswith("generic, a kernel per pass")


@pytest.mark.thorough
def test_sizes_of_published_models_have_kernels_of_their_own(host: ctypes.CDLL) -> None:
    for case in ON_GPU:
        dims = case.dims
        if case == UNCACHED:  # no published model has it
            continue
        if case.heavy and case.operator in cuda_library.OPERATIONS and dims.get("P") in (None, 16):
            layer = described(host, case, multiprocessors=8)
            assert not layer.startswith("generic") or dims.get("J", 0) > 64, (case, layer)


def test_addresses_that_do_not_fit_vectors(host: ctypes.CDLL) -> None:
    """A slice of a larger tensor may begin anywhere: slower, not wrong."""

    class Shifted(cuda_library.Host):
        def put(self, array: np.ndarray) -> np.ndarray:
            memory = np.empty(array.nbytes + 128, np.uint8)
            start = -memory.ctypes.data % 64 + array.itemsize
            view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            view[...] = array
            return view

    for case in (of("DynamicRouting", N=7, I=128), of("EMRouting", C=8, M=8)):
        example = make(case, "float32")
        outputs = run(host, case, memory=Shifted())
        for found, name in zip(outputs, example.wanted, strict=False):
            assert example.tolerances[name].excess(found, example.wanted[name]) <= 1


def test_the_same_parents_for_every_image(host: ctypes.CDLL) -> None:
    """The exporter gives constant parents a batch of one."""
    case = of("AttentionRouting", N=2, H=6)
    inputs = dict(make(case, "float32").inputs)
    inputs["parent"] = inputs["parent"][:1]
    repeated = {**inputs, "parent": np.repeat(inputs["parent"], 2, axis=0)}
    np.testing.assert_array_equal(run(host, case, inputs)[0], run(host, case, repeated)[0])


@pytest.mark.parametrize(
    ("operator", "change", "words"),
    [
        ("DynamicRouting", {"iterations": 0}, "iterations"),
        ("DynamicRouting", {"iterations": 65}, "iterations"),
        ("DynamicRouting", {"parents": 0}, "dimension"),
        ("DynamicRouting", {"epsilon": 0.0}, "epsilon"),
        ("DynamicRouting", {"rows": 2}, "one row"),
        ("DynamicRouting", {"shared": 1}, "belong to EM"),
        ("DynamicRouting", {"additions": 64}, "belong to EM"),
        ("DynamicRouting", {"normalize_activations": 1}, "belong to EM"),
        ("DynamicRouting", {"ones_first": 1}, "belong to EM"),
        ("DynamicRouting", {"cost_epsilon": 1e-6}, "belong to EM"),
        ("EMRouting", {"activation_epsilon": -1e-6}, "is negative"),
        ("DynamicRouting", {"leaky": 1, "over_children": 1}, "over the parents"),
        ("EMRouting", {"grid_height": 9}, "inside the grid"),
        ("EMRouting", {"type": 2}, "float or float16"),
        ("EMRouting", {"weight_type": 1}, "the type of the other inputs"),
        ("EMRouting", {"operation": 7}, "operation"),
        ("EMRouting", {"leaky": 1}, "leaky"),
        ("AttentionRouting", {"parent_images": 5}, "neither 1"),
        ("AttentionRouting", {"iterations": 2}, "one pass"),
        ("SelfAttentionRouting", {"iterations": 1}, "two passes"),
        ("SelfAttentionRouting", {"rows": 2}, "one row"),
        ("SelfAttentionRouting", {"over_children": 1}, "only dynamic routing"),
        ("SelfAttentionRouting", {"vote_biases": 1}, "belong to dynamic routing"),
        ("AttentionRouting", {"images": 1 << 30, "parent_images": 1}, "too large"),
        ("AttentionRouting", {"height": 1 << 30, "width": 1 << 30, "types": 16}, "too large"),
        ("DynamicRouting", {"types": (1 << 30) + 1}, "too large"),
    ],
)
def test_wrong_layers_are_refused(
    host: ctypes.CDLL, operator: str, change: dict[str, Any], words: str
) -> None:
    case = of(operator)
    layer = cuda_library.layer_of(operator, case.attributes, make(case, "float32").inputs)
    for name, value in change.items():
        setattr(layer, name, value)
    text = ctypes.create_string_buffer(256)
    assert host.capsedge_cuda_workspace(ctypes.byref(layer)) == -1
    assert host.capsedge_cuda_route(ctypes.byref(layer), None, 0, None, text, 256) == 1
    assert words in text.value.decode()


def test_a_small_workspace_is_refused(host: ctypes.CDLL) -> None:
    case = of("DynamicRouting", N=7, I=128)
    layer = cuda_library.layer_of("DynamicRouting", case.attributes, make(case, "float32").inputs)
    layer.scheme = cuda_library.SCHEMES["generic"]
    text = ctypes.create_string_buffer(256)
    assert host.capsedge_cuda_route(ctypes.byref(layer), None, 0, None, text, 256) == 1
    assert b"workspace" in text.value


@pytest.mark.parametrize("scheme", cuda_library.SCHEMES)
@pytest.mark.parametrize("multiprocessors", [1, 16, 132])
def test_the_workspace_is_enough_for_every_smaller_batch(
    host: ctypes.CDLL, scheme: str, multiprocessors: int
) -> None:
    """It is estimated from above for a batch, not planned for each; what follows is the plan of each."""
    case = of("DynamicRouting", N=7, I=128)
    layer = cuda_library.layer_of("DynamicRouting", case.attributes, make(case, "float32").inputs)
    layer.types, layer.multiprocessors = 1152, multiprocessors
    layer.scheme = cuda_library.SCHEMES[scheme]
    text = ctypes.create_string_buffer(256)
    for operation, over_children, inner in ((0, 0, 8), (0, 1, 8), (4, 0, 12), (4, 0, 5)):
        layer.operation, layer.over_children, layer.inner = operation, over_children, inner
        layer.iterations = 2
        for most in (1, 3, 6, 33, 200, 600):
            layer.images = most
            size = host.capsedge_cuda_workspace(ctypes.byref(layer))
            for images in range(1, most + 1):
                layer.images = images
                assert host.capsedge_cuda_route(ctypes.byref(layer), 1, size, None, text, 256) == 1
                assert b"aligned" in text.value, (images, most, text.value)


@pytest.mark.thorough
def test_votes_that_are_kept_give_what_others_give(host: ctypes.CDLL) -> None:
    case = of("DynamicRouting", N=7, I=128)
    inputs = dict(make(case, "float32").inputs)
    inputs["u"] = inputs["u"][:3]
    wanted = run(host, case, inputs, scheme="generic")[0]
    for scheme in ("portable", "cluster", "split"):
        for multiprocessors in (1, 40):
            found = run(host, case, inputs, scheme=scheme, multiprocessors=multiprocessors)[0]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_wrong_squashes_are_refused(host: ctypes.CDLL) -> None:
    x = np.ones((2, 3), np.float32)
    for change in ({"epsilon": 0.0}, {"epsilon": -1.0}):
        call, _ = cuda_library.prepare(
            host, cuda_library.Host(), "Squash", {"axis": -1, "epsilon": 1e-8, **change}, {"x": x}
        )
        with pytest.raises(NativeError, match="epsilon"):
            call()


# On a GPU.


@pytest.fixture(scope="module")
def gpu() -> ctypes.CDLL:
    reason = CudaKernels("auto").unavailable("")
    if reason:
        pytest.skip(reason)
    path = cuda_library.gpu_library()
    assert path is not None
    return cuda_library.bind(path)


COMPILED = ["75", "80", "86", "87", "89", "90", "100", "110", "120"]


@pytest.mark.slow  # `tools/ptx/build.py` compiles it as strictly, for one architecture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", COMPILED)
def test_nvcc_takes_the_source(architecture: str, tmp_path: Path) -> None:
    """Without a warning, to the GPU's own code."""
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("needs nvcc: install CUDA 12.8 or newer")
    known = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True).stdout.split()
    if f"sm_{architecture}" not in known:
        pytest.skip(f"this nvcc does not know sm_{architecture}")
    done = subprocess.run(
        [nvcc, "-std=c++17", f"-arch=sm_{architecture}", "-Werror", "all-warnings", "-cubin",
         f"-I{cuda_library.SOURCES}", str(cuda_library.SOURCES / "kernels.cu"),
         "-o", str(tmp_path / "kernels.cubin")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scheme", cuda_library.SCHEMES)
def test_gpu_whole_registry(gpu: ctypes.CDLL, scheme: str, dtype: str) -> None:
    compare(CudaKernels(scheme), ON_GPU, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", cuda_behaviour.BEHAVIOURS)
def test_gpu_behaviour(gpu: ctypes.CDLL, name: str) -> None:
    failed = cuda_behaviour.BEHAVIOURS[name]()
    assert not failed, "\n".join(failed)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("scheme", cuda_library.SCHEMES)
@pytest.mark.parametrize("tool", cuda_sanitizer.TOOLS)
def test_gpu_sanitizer(gpu: ctypes.CDLL, tool: str, scheme: str) -> None:
    sanitizer = cuda_sanitizer.find()
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed: it comes with the CUDA toolkit")
    problem = cuda_sanitizer.run(sanitizer, tool, scheme)
    assert not problem, problem
