"""What all tests share. One thread each: the suite runs on as many processes as there are cores."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import skips, tiers
from tests.exports import exported  # noqa: F401

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Servers run in the processes that also fork sandboxes; gRPC prints about each fork otherwise.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", metavar="FILE", help="write the CPU seconds of every test to FILE, as TSV"
    )


def pytest_configure(config: pytest.Config) -> None:
    skips.register(config)
    tiers.register(config)


def pytest_collection_finish() -> None:
    """Thousands of tests live to the end: the garbage collector need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread_in_onnxruntime() -> Iterator[None]:
    """By default it starts one for each core, which wait in loops; other processes keep the default."""
    try:
        import onnxruntime
    except ImportError:
        yield
        return

    class OneThread(onnxruntime.SessionOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "SessionOptions", OneThread)
        patch.setattr("capsedge.runtime.backends.onnxruntime_session.available_threads", lambda: 1)
        yield


@pytest.fixture(scope="session")
def mnist() -> Path:
    """The folder of the original MNIST files, or a skip that says how to get them."""
    data = Path(os.environ.get("CAPSEDGE_DATA", ROOT.parent / "shared" / "data"))
    if not (data / "mnist" / "t10k-images-idx3-ubyte.gz").exists():
        pytest.skip(
            f"MNIST is not in {data / 'mnist'}: put the four original idx files there, or set "
            "CAPSEDGE_DATA to the folder that holds mnist/ (docs/reference/data.md)"
        )
    return data / "mnist"
