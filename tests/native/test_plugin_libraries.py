"""The TensorRT plugin libraries as they are released: one for each version, linked to nothing of NVIDIA's.

TensorRT and the CUDA runtime are stand-ins; the headers are the project's own mock with two versions.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capsedge.runtime.backends.tensorrt_library import PLUGINS
from tests.native import cuda_library
from tests.native.builds import NATIVE, cmake_build, environment
from tests.native.test_cuda_loader import fat_binary
from tests.native.test_tensorrt_plugin import INCLUDED
from tools import plugin_libraries, zig

MOCK = NATIVE / "tensorrt" / "mock"
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
# What a process is asked: the driver of the mock, an operator. It says what refuses to run, or "attached".
ASK = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
driver.mock_create.restype = driver.mock_attach.restype = ctypes.c_void_p
driver.mock_error.restype = ctypes.c_char_p
one, epsilon = (ctypes.c_int32 * 1)(1), (ctypes.c_float * 1)(1e-8)
class Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int32), ("length", ctypes.c_int32),
                ("data", ctypes.c_void_p)]
axis = Field(b"axis", 5, 1, ctypes.addressof(one))
fields = (Field * 2)(axis, Field(b"epsilon", 1, 1, ctypes.addressof(epsilon)))
made = driver.mock_create(b"Squash", fields, 2, 1)
assert made, driver.mock_error()
print("attached" if driver.mock_attach(ctypes.c_void_p(made)) else driver.mock_error().decode())
"""


def headers(folder: Path, major: int) -> Path:
    """The mock's headers as those of a major version."""
    folder.mkdir()
    text = (MOCK / "NvInferRuntime.h").read_text()
    (folder / "NvInferRuntime.h").write_text(
        text.replace("#define NV_TENSORRT_MAJOR 10", f"#define NV_TENSORRT_MAJOR {major}")
    )
    (folder / "NvInferVersion.h").write_text(f"#define NV_TENSORRT_MAJOR {major}\n")
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("headers")
    return {major: headers(folder / str(major), major) for major in plugin_libraries.MAJORS}


@pytest.fixture(scope="module")
def built(both: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries for both versions, by this machine's compiler."""
    named = ";".join(map(str, both.values()))
    return cmake_build(
        tmp_path_factory.mktemp("package") / "machine",
        "capsedge_tensorrt",
        f"-DCAPSEDGE_TENSORRT_INCLUDE={named}",
        "-DCAPSEDGE_TENSORRT=OFF",
    )


def symbols(library: Path, which: str) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", which, str(library)], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def compiled(target: Path, *words: object) -> Path:
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", *INCLUDED, *map(str, words), "-o", str(target)],
        check=True,
    )
    return target


def test_what_tensorrt_finds_and_what_is_not_linked(built: Path) -> None:
    for major in plugin_libraries.MAJORS:
        for name in plugin_libraries.names(major):
            assert symbols(built / name, "--defined-only") == {"getCreators", "setLoggerFinder"}
            undefined = symbols(built / name, "--undefined-only")
            foreign = [s for s in undefined if re.match("cuda|cu[A-Z]|nv|getPlugin|createInfer", s)]
            assert foreign == [], name


def test_the_variant_that_registers_itself(built: Path, tmp_path: Path) -> None:
    """Into the TensorRT of its version; and it says so if there is none."""
    compiled(tmp_path / "libnvinfer.so.10", "-fvisibility=hidden", MOCK / "registry.cpp")
    ask = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); "
        "known = ctypes.CDLL('libnvinfer.so.10').mock_registered; known.restype = ctypes.c_char_p; "
        "print(known().decode())"
    )
    said = {}
    for major in plugin_libraries.MAJORS:
        said[major] = subprocess.run(
            [sys.executable, "-c", ask, str(built / plugin_libraries.names(major)[1])],
            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert said[10].stdout.split() == [f"capsedge::{name}/1" for name in PLUGINS]
    assert said[10].stderr == ""
    assert said[11].stdout.split() == []
    assert "no plugins are registered, because libnvinfer.so.11 was not found" in said[11].stderr


def test_the_kernels_are_found_beside_the_library(built: Path, tmp_path: Path) -> None:
    """In the folder above, as in the package, or where the variable says; without them, nothing runs."""
    library = built / "libcapsedge_tensorrt10.so"
    driver = compiled(tmp_path / "driver.so", MOCK / "driver.cpp", library)
    cudart = compiled(
        tmp_path / "cudart.so",
        Path(__file__).with_name("cudart_fake.cpp"),
        f"-I{cuda_library.SOURCES}",
    )
    kernels = built.parent / "kernels.fatbin"

    def attach(**variables: str) -> str:
        own = {"LD_LIBRARY_PATH": str(built), "CAPSEDGE_CUDART": str(cudart)}
        base = {k: v for k, v in os.environ.items() if k != "CAPSEDGE_CUDA_KERNELS"}
        return subprocess.run(
            [sys.executable, "-c", ASK, str(driver)], env={**base, **own, **variables},
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    missing = attach()
    assert missing.startswith("capsedge: Squash: the CUDA kernels: ")
    assert "kernels.fatbin cannot be read" in missing
    kernels.write_bytes(fat_binary())
    assert attach() == "attached"
    assert "other cannot be read" in attach(CAPSEDGE_CUDA_KERNELS=str(tmp_path / "other"))
    (built / "kernels.fatbin").write_bytes(b"damaged")
    assert "is not a fat binary" in attach()
    (built / "kernels.fatbin").unlink()


def test_two_folders_of_one_version_are_refused(both: dict[int, Path], tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=environment()["PATH"])
    if cmake is None:
        pytest.skip("needs cmake: pip install cmake")
    again = headers(tmp_path / "again", 11)
    found = subprocess.run(
        [cmake, "-S", str(NATIVE), "-B", str(tmp_path / "build"), "-DCAPSEDGE_TENSORRT=OFF",
         f"-DCAPSEDGE_TENSORRT_INCLUDE={both[11]};{again}"],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert found.returncode != 0
    assert "headers of TensorRT 11 twice" in found.stderr.replace("\n  ", " ")


@pytest.mark.slow
@pytest.mark.parametrize("processor", zig.PROCESSORS)
def test_the_libraries_that_are_released(
    both: dict[int, Path], processor: str, tmp_path: Path
) -> None:
    """They need no later C library than the wheels."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the wheels' compiler is not installed: pip install -e '.[release]'")
    made = plugin_libraries.make(both, processor, tmp_path / "build")
    assert [file.name for file in made] == [n for m in both for n in plugin_libraries.names(m)]
    for file in made:
        said = subprocess.run(
            ["readelf", "-hV", str(file)], capture_output=True, text=True, check=True
        ).stdout
        assert ("AArch64" in said) == (processor == "aarch64")
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", said)}
        assert versions
        assert max(versions) <= zig.GLIBC
