"""Models and machines that several tests of native code run on."""

from __future__ import annotations

import fcntl
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsedge.runtime import zoo
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.zoo import ROUTINGS
from tests.tensorrt.fixtures import ANY_AMOUNT, cudart, gpu  # noqa: F401

from . import libcapsedge
from .builds import ROOT
from .stand_ins import Machine, build, only_machine


@pytest.fixture(params=ROUTINGS)
def zoo_model(request: pytest.FixtureRequest) -> Path:
    """The package's model of digits of each routing; the default model is one of them."""
    path = zoo.zoo_model(f"digits-{request.param}")
    assert path is not None
    return path


@pytest.fixture(scope="session")
def built() -> Path:
    folder = ROOT / "build" / "libcapsedge-tensorrt"
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(folder, "capsedge") / "libcapsedge.so"


@pytest.fixture(scope="session")
def stand_ins(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return only_machine(tmp_path_factory.getbasetemp() / "machine", built)


@pytest.fixture
def machine(stand_ins: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The library under test is this one; every test leaves nothing on the GPU."""
    for name, value in stand_ins.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(libcapsedge.LIBRARY_VARIABLE, str(stand_ins.library))
    stand_ins.cudart.fake_set(1, 87, 0, ANY_AMOUNT)
    gc.collect()  # sessions of another build close in it
    gc.freeze()  # what is there now need not be looked at again
    libcapsedge.load.cache_clear()
    yield stand_ins
    gc.collect()
    libcapsedge.load.cache_clear()
    assert stand_ins.held() == [0] * 6


@pytest.fixture
def engine(gpu: Any, tmp_path: Path):  # noqa: F811
    """Builds an engine as ``capsedge build`` does; the GPU is called Orin."""
    from capsedge.exporters.build_options import BuildOptions
    from capsedge.exporters.tensorrt.write_engine import write_engine as build

    load_cuda()  # Python's stand-in, before the library's own is named

    def run(model: Path, batch: tuple[int, int, int] = (1, 4, 4), **options: Any) -> Path:
        target = tmp_path / "net.engine"
        given = BuildOptions(**{"plugin": "native", "batch": batch, **options})
        return build(model, target, given, lambda *row: None).path

    return run
