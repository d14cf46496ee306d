"""The operators in ONNX Runtime's own CUDA provider, without a GPU: `make test-cuda-provider`.

The provider of the package ``onnxruntime-gpu`` runs on the libcudart of tools/ptx, which executes nvcc's
code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from tests.native import cuda_library, libcapsedge
from tools.ptx import provider

from . import libcapsedge_checks
from .provider_checks import CHECKS
from .test_ptx import python

REQUIRED = "CAPSEDGE_REQUIRE_PROVIDER"  # the target sets it: what is missing is then a failure
Record = Callable[[str, object], None]


@pytest.fixture(autouse=True, scope="module")
def _available() -> None:
    if lacking := provider.unavailable():
        if os.environ.get(REQUIRED):
            pytest.fail(lacking)
        pytest.skip(lacking)


def table(record: Record, *words: str, **variables: str) -> None:
    """Every operator in every type, none of whose cases fails."""
    said = python("tests.native.ptx.provider_table", *words, **variables)
    rows = re.findall(r"^\| (\w+) \| (float\d+) \| (\d+) ", said, re.M)
    assert {operator for operator, _, _ in rows} == set(cuda_library.OPERATORS)
    assert "\n0 failed" in said
    record("cases", sum(int(count) for _, _, count in rows))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sample_of_the_registry(dtype: str, record_property: Record) -> None:
    table(record_property, "--sample", "--dtype", dtype)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_whole_registry(dtype: str, record_property: Record) -> None:
    table(record_property, "--dtype", dtype)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CHECKS)
def test_sessions(name: str) -> None:
    python("tests.native.ptx.provider_checks", name)


@pytest.fixture(params=["CUDA 12", "newest"])
def version(request: pytest.FixtureRequest) -> str:
    """Another version than the one of every run."""
    found = provider.CUDA_12 if request.param == "CUDA 12" else provider.installed()[-1]
    if found == provider.TESTED:
        pytest.skip(f"onnxruntime-gpu {found} is the newest that is installed: make test-gpu-code")
    if found not in provider.installed():
        pytest.skip(f"onnxruntime-gpu {found} is not installed: make test-gpu-code")
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sample_in_other_versions(version: str, dtype: str, record_property: Record) -> None:
    words = ("--sample", "--dtype", dtype)
    table(record_property, *words, **{provider.VARIABLE: version})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CHECKS)
def test_sessions_in_other_versions(version: str, name: str) -> None:
    python("tests.native.ptx.provider_checks", name, **{provider.VARIABLE: version})


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", libcapsedge_checks.CHECKS)
def test_libcapsedge(name: str) -> None:
    if libcapsedge.library_path() is None:
        pytest.skip("libcapsedge is not built")
    python("tests.native.ptx.libcapsedge_checks", name)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_bundled_models_have_fewer_nodes() -> None:
    """They load, with one node for each operator that has a kernel."""
    said = python("tests.native.ptx.provider_nodes")
    rows = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \| (\w+) \|", said, re.M)
    assert {name: ops for name, _, _, ops in rows} == {
        "digits-dynamic": "fused", "digits-em": "fused", "digits-attention": "mixed",
        "digits-clutter": "fused",
    }  # fmt: skip
    for name, before, after, _ in rows:
        assert int(after) < int(before), name
