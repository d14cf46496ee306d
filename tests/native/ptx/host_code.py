"""The host's half of the kernels and of the TensorRT plugin, over executed PTX.

``python -m tests.native.ptx.host_code NAME``. Every call that can fail does so once. TensorRT's interface
is the project's own mock.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.tensorrt_library import PLUGINS
from tests.conformance.cases import make
from tests.native import cuda_library
from tests.native import test_tensorrt_plugin as plugin
from tests.native.cuda_behaviour import first
from tests.native.library import NativeError
from tools.ptx import build

OLD_DRIVER, NO_DEVICE, RESOURCES, NO_CODE, NEW_PTX, NO_SYMBOL = 35, 100, 701, 209, 222, 500


def wrong_launches(executor: build.Executor) -> None:
    """What the runtime refuses is said, and the next call knows nothing of it."""
    library = cuda_library.bind(Path(os.environ["CAPSEDGE_CUDA_LIBRARY"]))
    memory = cuda_library.Gpu()
    executor.refuse("cudaGetDevice", OLD_DRIVER)
    assert library.capsedge_cuda_multiprocessors() == -1
    executor.refuse("cudaGetDevice", NO_DEVICE)
    assert library.capsedge_cuda_multiprocessors() == 0
    executor.refuse("cudaDeviceGetAttribute", NO_DEVICE)
    assert library.capsedge_cuda_multiprocessors() == 0
    assert library.capsedge_cuda_multiprocessors() > 0
    dynamic, attention = first("DynamicRouting", N=7, I=128), first("AttentionRouting", C=16)
    for case, scheme, launches, images in (
        (dynamic, "auto", 1, 7), (dynamic, "portable", 2, 1), (dynamic, "split", 2, 7),
        (attention, "split", 3, 1), (first("Squash"), "auto", 1, 1),
    ):  # fmt: skip
        inputs = dict(make(case, "float32").inputs)
        if case is dynamic:
            inputs["u"] = inputs["u"][:images]
        call, outputs = cuda_library.prepare(
            library, memory, case.operator, case.attributes, inputs, scheme=scheme
        )
        call()
        right = [memory.get(x) for x in outputs]
        for after in range(launches):
            executor.refuse("cudaLaunchKernelExC", RESOURCES, after)
            with pytest.raises(NativeError, match="too many resources"):
                call()
            call()
            for found, wanted in zip(map(memory.get, outputs), right, strict=True):
                np.testing.assert_array_equal(found, wanted)
    # A GPU that does not say what it can is taken to have no clusters, and the launch says the rest.
    layer = cuda_library.layer_of(
        "DynamicRouting", dynamic.attributes, make(dynamic, "float32").inputs
    )
    layer.scheme, layer.multiprocessors = cuda_library.SCHEMES["cluster"], 100
    for call_name in ("cudaGetDevice", "cudaDeviceGetAttribute"):
        layer.images += 1  # the answer for a grid is kept
        layer.types += 8
        executor.refuse(call_name, NO_DEVICE)
        assert b"a cluster" not in library.capsedge_cuda_describe(ctypes.byref(layer))


def loading(executor: build.Executor) -> None:
    """What the runtime refuses of the kernels' file is said, and the file can be loaded afterwards."""
    path = Path(os.environ["CAPSEDGE_CUDA_LIBRARY"])
    for call, code, words in (
        ("cudaGetDevice", OLD_DRIVER, "the driver is too old for this CUDA runtime"),
        ("cudaGetDevice", NO_DEVICE, "no GPU that CUDA can use: no CUDA-capable device"),
        ("cudaLibraryLoadData", NEW_PTX, "because the driver is too old"),
        ("cudaLibraryGetKernel", NO_SYMBOL, "no kernel capsedge_whole_kernel"),
        (
            "cudaFuncGetAttributes",
            NO_CODE,
            "no code for the current GPU, of compute capability 9.0",
        ),
    ):
        executor.refuse(call, code)
        with pytest.raises(NativeError, match=words):
            cuda_library.bind(path)
    library, case = cuda_library.bind(path), first("Squash")
    memory = cuda_library.Gpu()
    run, outputs = cuda_library.prepare(
        library, memory, case.operator, case.attributes, make(case, "float32").inputs
    )
    run()
    assert np.isfinite(memory.get(outputs[0])).all()


WIDE: tuple[tuple[int, str, dict[str, int], int], ...] = (  # over the children, a case, and how many parents
    (0, "DynamicRouting", {"N": 3, "J": 10}, 40), (1, "DynamicRouting", {"N": 3, "J": 10}, 40),
    (0, "EMRouting", {"N": 2, "M": 5, "P": 16}, 40),
    (0, "AttentionRouting", {"N": 2, "H": 6, "M": 3, "P": 16}, 39),
    (0, "DynamicRouting", {"Pout": 8}, 0),  # one image of these, whose votes are kept
)  # fmt: skip


def wide(executor: build.Executor) -> None:
    """Kernels that no light case has, most for more parents than lanes: as the generic one has it."""
    library = cuda_library.bind(Path(os.environ["CAPSEDGE_CUDA_LIBRARY"]))
    memory = cuda_library.Gpu()
    executor.reset()
    for over, operator, dims, wanted_parents in WIDE:
        for name in (operator, f"Quantized{operator}"):
            case = first(name, **dims)
            parents = case.dims.get("J") or case.dims["M"]
            attributes = {**case.attributes, **({"over_children": over} if "J" in dims else {})}
            for dtype, close in (("float32", 1e-4), ("float16", 2e-2)):
                inputs = {}
                for key, x in make(case, dtype).inputs.items():
                    axes = [k for k, size in enumerate(x.shape) if size == parents]
                    many = wanted_parents // parents
                    inputs[key] = x.repeat(many, axes[-1]) if axes and many else x
                if not wanted_parents:
                    attributes["iterations"] = 3
                    inputs["u"] = inputs["u"][:1].repeat(4, -1)
                    inputs["weight"] = inputs["weight"].repeat(4, -1)
                found = {}
                for scheme in ("generic", "portable", "split", "cluster"):
                    call, outputs = cuda_library.prepare(
                        library, memory, name, attributes, inputs, scheme=scheme
                    )
                    call()
                    found[scheme] = [memory.get(x).astype(np.float32) for x in outputs]
                for own in found.values():
                    for got, wanted in zip(own, found["generic"], strict=True):
                        np.testing.assert_allclose(got, wanted, rtol=close, atol=close)
    ran = {launch["kernel"] for launch in executor.launches()}
    assert sum("votes_kernel_8_" in kernel for kernel in ran) == 4
    assert (
        sum(re.search(r"(whole|part)_kernel_\w+x2_", kernel) is not None for kernel in ran)
        >= WIDEST
    ), sorted(ran)


WIDEST = 28  # kernels with two parents for each lane


def enqueue(executor: build.Executor) -> None:
    """Plugins from ONNX attributes to results, on the code that an engine would run."""
    mock = plugin.bound(Path(os.environ["CAPSEDGE_PLUGIN_MOCK"]))
    cuda = load_cuda()
    for case in [c for c in plugin.LIGHT if c.operator in PLUGINS]:
        for dtype in ("float32", "float16"):
            example = make(case, dtype)
            arrays = [np.ascontiguousarray(x) for x in example.inputs.values()]
            given = plugin.tensors([x.shape for x in arrays], dtype)
            made = plugin.create(mock, case.operator, case.attributes)
            own = ctypes.c_void_p(mock.mock_attach(made))
            shapes = plugin.shapes_of(mock, own, given)
            size = mock.mock_configure(own, ctypes.byref(given))
            assert size >= 0
            inputs, outputs = [], []
            for x in arrays:
                inputs.append(cuda.allocate(x.nbytes))
                cuda.to_device(inputs[-1], x.ctypes.data, x.nbytes, 0)
            results = [np.full(shape, np.nan, dtype) for shape in shapes]
            outputs = [cuda.allocate(x.nbytes) for x in results]
            workspace = cuda.allocate(size)
            call = (
                own, ctypes.byref(given), (ctypes.c_void_p * len(inputs))(*inputs),
                (ctypes.c_void_p * len(outputs))(*outputs), ctypes.c_void_p(workspace),
            )  # fmt: skip
            if results[0].size:  # else nothing is launched
                executor.refuse("cudaLaunchKernelExC", RESOURCES)
                assert mock.mock_enqueue(*call) == 1
                assert b"too many resources" in mock.mock_error()
            assert mock.mock_enqueue(*call) == 0, mock.mock_error()
            for name, found, address in zip(example.wanted, results, outputs, strict=False):
                cuda.to_host(found.ctypes.data, address, found.nbytes, 0)
                excess = example.tolerances[name].excess(found, example.wanted[name])
                assert excess <= 1, (case, dtype, name, excess)
            for address in (*inputs, *outputs, workspace):
                cuda.free(address)
            mock.mock_destroy(own)
            mock.mock_destroy(made)


if __name__ == "__main__":
    {"enqueue": enqueue, "loading": loading, "launches": wrong_launches, "wide": wide}[sys.argv[1]](
        build.Executor(Path(os.environ["CAPSEDGE_CUDART"]))
    )
