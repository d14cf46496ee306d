"""How launches of the CUDA kernels are planned; one case of every operator in every scheme on the host."""

from __future__ import annotations

import ctypes
import math

import pytest

from tests.conformance.cuda import CudaEmulated
from tests.native import cuda_library
from tests.native.test_cuda import LIGHT, check, described, of
from tests.native.test_cuda import host as host  # the fixture


@pytest.mark.parametrize("scheme", ["auto", "generic", "split", "tiled", "cluster"])
def test_a_case_of_middle_size_of_every_operator(scheme: str, host: ctypes.CDLL) -> None:
    backend = CudaEmulated(scheme)
    for operator in cuda_library.OPERATORS:
        if scheme == "cluster" and operator.startswith("Quantized"):
            continue  # eight times the threads
        cases = [
            case
            for case in LIGHT
            if (case.operator, case.kind) == (operator, "normal")
            and case.dims.get("N", 2) > 1
            and not backend.unsupported(case, "float32")
        ]
        if operator != "Squash" or scheme == "auto":  # which has one scheme
            cases.sort(key=lambda case: math.prod(filter(None, case.dims.values())))
            check(backend, cases[len(cases) // 2], "float32")


def test_votes_are_kept_where_weights_are_more(host: ctypes.CDLL) -> None:
    """In FP32, 8 elements per child: up to 4 images of three passes, up to 2 of two."""
    case = of("DynamicRouting", N=7, I=128)
    for images, iterations, kept in (
        (1, 3, 1),
        (4, 3, 1),
        (5, 3, 0),
        (64, 3, 0),
        (1, 1, 0),
        (2, 2, 1),
        (3, 2, 0),
    ):
        words = described(host, case, images=images, iterations=iterations)
        assert ("votes kept" in words) == bool(kept), (images, iterations, words)
    assert "kept" not in described(host, of("EMRouting", C=8, M=8), images=1)


def test_children_are_shared_out_where_images_are_few(host: ctypes.CDLL) -> None:
    case = of("DynamicRouting", N=7, I=128)
    assert "one kernel" in described(host, case, images=20, multiprocessors=4)
    assert "tiled" in described(host, case, images=4096, multiprocessors=100)
    portable = cuda_library.SCHEMES["portable"]
    for how in ({"types": 1152, "scheme": portable}, {"types": 10_000}):
        alone = described(host, case, images=1, multiprocessors=100, **how)
        assert "a kernel per pass" in alone
        assert int(alone.split(" parts")[0].split()[-1]) >= 16
