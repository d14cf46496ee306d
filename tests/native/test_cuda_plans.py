"""How launches of the CUDA kernels are planned, and a case of every operator in every scheme but `auto`."""

from __future__ import annotations

import ctypes
import math

import pytest

from tests.conformance.cuda import CudaEmulated
from tests.native import cuda_library
from tests.native.test_cuda import LIGHT, compare, described, of
from tests.native.test_cuda import host as host  # the fixture


@pytest.mark.parametrize("scheme", ["generic", "split", "tiled", "cluster"])
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
        if operator != "Squash":  # which has one scheme
            cases.sort(key=lambda case: math.prod(filter(None, case.dims.values())))
            compare(backend, [cases[len(cases) // 2]], "float32")


def test_votes_are_kept_where_weights_are_more(host: ctypes.CDLL) -> None:
    """In FP32, 8 elements per child: from two passes on, until tiles are faster or the votes are too many."""
    case = of("DynamicRouting", N=7, I=128)
    for images, iterations, children, kept in (
        (1, 3, 1152, 1),
        (32, 3, 1152, 1),
        (64, 3, 1152, 0),
        (1, 1, 1152, 0),
        (2, 2, 1152, 1),
        (1, 3, 50_000, 1),
        (1, 3, 60_000, 0),  # 38 MB
    ):
        fields = {"images": images, "iterations": iterations, "types": children}
        words = described(host, case, **fields, multiprocessors=132)
        assert ("votes kept" in words) == bool(kept), (fields, words)
    assert "kept" not in described(host, of("EMRouting", C=8, M=8), images=1)


# Images, children, multiprocessors, scheme, and the plan: a GPU is filled by parts, each worth its block.
PER_PASS = "1x16, a kernel per pass, 256 threads"
SHARED = (
    (1, 1152, 100, "portable", f"{PER_PASS}, 18 parts of 64 children, votes kept"),
    (1, 10_000, 100, "auto", f"{PER_PASS}, 63 parts of 159 children, votes kept"),
    (3, 1152, 132, "split", f"{PER_PASS}, 3 parts of 384 children, votes kept"),
    (16, 16, 132, "auto", "1x16, one kernel, 256 threads, 1 parts of 16 children, votes kept"),
    (20, 128, 4, "auto", "1x16, tiled, 256 threads, 8 parts of 16 children"),
    (6, 1152, 16, "cluster", "1x16, a cluster, 256 threads, 8 parts of 144 children, votes kept"),
    (64, 1152, 132, "tiled", "1x16, tiled, 256 threads, 64 parts of 18 children"),
    (4096, 128, 100, "auto", "1x16, tiled, 256 threads, 3 parts of 43 children"),
    (1, 1152, 16, "generic", "generic, a kernel per pass, 256 threads, 29 parts of 40 children"),
)


def test_children_are_shared_out_where_images_are_few(host: ctypes.CDLL) -> None:
    case = of("DynamicRouting", N=7, I=128)
    wrong = []
    for images, children, multiprocessors, scheme, wanted in SHARED:
        fields = {"images": images, "types": children, "multiprocessors": multiprocessors}
        found = described(host, case, **fields, scheme=cuda_library.SCHEMES[scheme])
        if found != wanted:
            wrong.append(f"{fields} {scheme}: {found}")
    assert not wrong, "\n".join(wrong)
