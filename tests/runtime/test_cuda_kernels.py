"""Which file of CUDA kernels is found, and what is said of one that does not fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capsedge import __version__
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.native_library import KERNELS_VARIABLE, find_cuda_kernels


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package capsedge-cuda of this version."""
    folder = tmp_path / "capsedge_cuda"
    folder.mkdir()
    (folder / "__init__.py").write_text(f'__version__ = "{__version__}"\n')
    (folder / "kernels.fatbin").write_bytes(b"")
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "capsedge_cuda", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("capsedge_cuda", None)


def test_the_file_of_the_package(package: Path) -> None:
    assert find_cuda_kernels() == package / "kernels.fatbin"


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "capsedge_cuda", None)
    assert find_cuda_kernels() is None


def test_the_variable_comes_first(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.fatbin"
    monkeypatch.setenv(KERNELS_VARIABLE, str(own))
    with pytest.raises(
        EnvironmentProblem, match=r"own\.fatbin does not exist.*\n.*CAPSEDGE_CUDA_KERNELS"
    ):
        find_cuda_kernels()
    own.write_bytes(b"")
    assert find_cuda_kernels() == own


def test_another_version(package: Path) -> None:
    """Names both, and the command."""
    (package / "__init__.py").write_text('__version__ = "0.0.9"\n')
    with pytest.raises(EnvironmentProblem) as caught:
        find_cuda_kernels()
    assert caught.value.why == f"capsedge-cuda is 0.0.9, and capsedge is {__version__}."
    assert "`pip install dist/capsedge_cuda-*.whl`" in caught.value.fix


def test_a_package_without_the_file(package: Path) -> None:
    (package / "kernels.fatbin").unlink()
    with pytest.raises(EnvironmentProblem, match="damaged"):
        find_cuda_kernels()
