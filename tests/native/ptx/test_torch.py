"""``capsedge.ops`` within ``fused()``, without a GPU: nvcc's code, executed on the CPU.

`tests.conformance.torch_fused.StandIn` takes the place of torch's allocator and stream, so any build will do.
"""

from __future__ import annotations

import pytest

from tools.ptx import build

from .test_ptx import SAMPLE, counted, python
from .torch_checks import CHECKS

pytestmark = pytest.mark.skipif(bool(build.unavailable()), reason=build.unavailable())


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sample(dtype: str) -> None:
    counted("torch-fused-ptx", dtype, "--light", "--filter", SAMPLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_whole_registry(dtype: str) -> None:
    counted("torch-fused-ptx", dtype, "--light")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CHECKS)
def test_behaviour(name: str) -> None:
    python("tests.native.ptx.torch_checks", name)
