"""How the kernels' file is loaded, and each refusal in words: on a CUDA runtime without a GPU behind it."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from capsedge.runtime.backends import native_library
from tests.native import cuda_library
from tests.tables import table
from tools.ptx import build

pytestmark = pytest.mark.thorough
# What a process is asked: files to load, one after another, or "squash" to run.
ASK = """
import ctypes, sys
library, text = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(600)
memory = (ctypes.c_float * 8)(*[1.0] * 8)
for word in sys.argv[2:]:
    if word == "squash":
        where = ctypes.c_void_p(ctypes.addressof(memory))
        one, inner = ctypes.c_int64(1), ctypes.c_int64(1)
        code = library.capsedge_cuda_squash(
            where, where, one, 8, inner, ctypes.c_float(1e-8), 0, None, text, ctypes.c_size_t(600)
        )
    else:
        code = library.capsedge_cuda_load(word.encode(), text, ctypes.c_size_t(600))
    print(text.value.decode() if code else "ok", flush=True)
print(library.capsedge_cuda_multiprocessors())
"""


def test_the_operator_library_has_the_loader() -> None:
    path = native_library.find_library()
    if path is None:
        pytest.skip("the operator library is not built")
    library = ctypes.CDLL(str(path))
    assert library.capsedge_cuda_load
    assert library.capsedge_cuda_route


def fat_binary(payload: bytes = b"code") -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(payload)) + payload


class Loader:
    """The host's library, two CUDA runtimes and a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = build.host(build.sources())
        self.file = folder / "kernels.fatbin"
        self.file.write_bytes(fat_binary())
        self.driver = folder / "driver"
        self.driver.mkdir()
        kinds = (("new.so", []), ("old.so", ["-DOLD"]), ("driver/libcuda.so.1", ["-DDRIVER"]))
        for name, flags in kinds:
            subprocess.run(
                ["g++", "-std=c++17", *flags, "-shared", "-fPIC", f"-I{cuda_library.SOURCES}",
                 str(Path(__file__).with_name("cudart_fake.cpp")), "-o", str(folder / name)],
                check=True,
            )  # fmt: skip

    def __call__(self, *words: str | Path, cudart: str = "new.so", **variables: str) -> list[str]:
        """What a process says to each word, and the multiprocessors that it sees."""
        own = {"CAPSEDGE_CUDART": str(self.folder / cudart), **variables}
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(self.library), *map(str, words)], cwd=self.folder,
            env={**os.environ, **own}, capture_output=True, encoding="latin-1", check=True,
        )  # fmt: skip
        return done.stdout.split("\n")[:-1]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    if shutil.which("g++") is None or sys.platform != "linux":
        pytest.skip("the loader of the CUDA kernels needs g++ on Linux")
    return Loader(tmp_path_factory.mktemp("loader"))


def test_the_file_is_loaded_once(load: Loader) -> None:
    """The same file by another name is no error."""
    other = load.folder / "other.fatbin"
    other.write_bytes(fat_binary())
    link = load.folder / "link.fatbin"
    link.symlink_to(load.file)
    found = load(load.file, load.file, link, "kernels.fatbin", other, "squash")
    assert found[:4] == ["ok"] * 4
    assert found[4] == f"the kernels of {load.file} are loaded already, and {other} cannot be added"
    assert found[5] == "ok"


def test_nothing_runs_before(load: Loader) -> None:
    found = load("squash", load.file, "squash")
    assert found[0] == "the kernels are not loaded: call capsedge_cuda_load first"
    assert found[1:3] == ["ok", "ok"]


@table(
    "data, words",
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is not a fat binary of CUDA"),
        (b"\x7fELF" + bytes(60), "is not a fat binary of CUDA"),
        (fat_binary()[:10], "is not a fat binary of CUDA"),
        (fat_binary(bytes(100))[:-1], "is damaged: it has 99 bytes of 100"),
        (fat_binary(bytes(100)) + b"x", "is damaged: it has 101 bytes of 100"),
    ],
)
def test_a_file_that_is_no_fat_binary(load: Loader, data: bytes | None, words: str) -> None:
    """And the right one can be loaded afterwards."""
    file = load.folder / "wrong.fatbin"
    file.unlink(missing_ok=True)
    if data is not None:
        file.write_bytes(data)
    assert load(file, load.file)[:2] == [f"{file} {words}", "ok"]


def test_a_folder_and_no_name(load: Loader) -> None:
    found = load(load.folder, "")
    assert found[0] == f"{load.folder} is not a file"
    assert found[1] == "the file of the kernels is not named"


@table(
    "call, code, words",
    [
        ("cudaGetDevice", 100, "there is no GPU that CUDA can use: as told"),
        ("cudaGetDevice", 35, "the driver is too old for this CUDA runtime: as told"),
        ("cudaLibraryLoadData", 200, "{file} is not loaded: as told"),
        ("cudaLibraryLoadData", 222, "{file} is not loaded, because the driver is too old: as told"),
        ("cudaLibraryGetKernel", 500,
         "{file} is not usable: no kernel capsedge_whole_kernel_Moments_4x4x1_f32_f32: as told"),
        ("cudaFuncGetAttributes", 209,
         "{file} is not usable: no code for the current GPU, of compute capability 7.0: as told"),
        ("cudaFuncGetAttributes", 222, "{file} is not usable: the driver is too old for its code: as told"),
        ("cudaFuncGetAttributes", 2, "{file} is not usable: CUDA refuses its code: as told"),
    ],
)  # fmt: skip
def test_what_cuda_refuses(load: Loader, call: str, code: int, words: str) -> None:
    found = load(load.file, "squash", **{f"FAKE_{call}": str(code)})
    assert found[:2] == [
        words.format(file=load.file),
        "the kernels are not loaded: call capsedge_cuda_load first",
    ]
    assert code != 35 or found[2] == "-1"


def test_no_cuda_runtime(load: Loader) -> None:
    named = load.folder / "none.so"
    found = load(load.file, cudart="none.so")
    assert found == [f"{named} of CAPSEDGE_CUDART is not a CUDA runtime library", "0"]


def test_a_cuda_runtime_is_looked_for_in_the_usual_places(load: Loader) -> None:
    """If this machine has one, the file is refused for another reason."""
    (found, *_) = load(load.file, CAPSEDGE_CUDART="")
    none = "no CUDA runtime library (libcudart.so.13 or .12) was found"
    assert found.startswith(
        (none, "there is no GPU", "the driver is too old", f"{load.file} is not")
    )


def test_a_cuda_runtime_without_files_of_kernels(load: Loader) -> None:
    """CUDA 12.8 is the first that has the functions; before, the driver's are taken."""
    (found, processors) = load(load.file, cudart="old.so", FAKE_cuInit="999", **driver(load))
    needed = "12.8 or newer is needed, or a driver for CUDA 12"
    assert found == f"{load.folder / 'old.so'} is CUDA 12.6, and {needed}"
    assert processors == "0"
    found = load(load.file, "squash", cudart="old.so", **driver(load))
    kernel = "capsedge_squash_rows_kernel_f32"
    assert [line for line in found if line != "0"] == [
        "driver loads " + fat_binary()[1:4].decode("latin-1"), "ok",
        f"driver launches {kernel}: 1 256", "ok",
    ]  # fmt: skip


def driver(load: Loader) -> dict[str, str]:
    """Variables by which the loader finds the driver of these tests before one of the machine."""
    return {"LD_LIBRARY_PATH": str(load.driver)}


@table(
    "call, code, words",
    [
        ("cuLibraryLoadData", 209, "{file} is not loaded: as told"),
        ("cuLibraryGetKernel", 500, "{file} is not usable: no kernel capsedge_whole"),
        ("cuKernelGetAttribute", 209, "{file} is not usable: no code for the current GPU, of compute"),
        ("cuDeviceGet", 101, "{file} is not usable: CUDA refuses its code: as told"),
    ],
)  # fmt: skip
def test_what_the_driver_refuses(load: Loader, call: str, code: int, words: str) -> None:
    found = load(load.file, cudart="old.so", **driver(load), **{f"FAKE_{call}": str(code)})
    assert any(line.startswith(words.format(file=load.file)) for line in found), found


def machine_code(missing: int = 0) -> bytes:
    """An ELF file for CUDA with a table of sections at its end."""
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, 2, 1
    )
    return (header + bytes(128))[: 192 - missing]


@table(
    "driver_version, capability, data, words",
    [
        ("12060", "87", machine_code(), "ok"),
        ("12060", "87", machine_code(1), "{file} is damaged: it has 191 bytes of 192"),
        ("12060", "87", fat_binary(bytes(60)), "{file} is not machine code of CUDA"),
        ("12060", "86", b"of another GPU", "FAT"),
        ("13000", "87", b"not asked for", "FAT"),
    ],
)
def test_the_code_for_a_driver_of_cuda_12(
    load: Loader, driver_version: str, capability: str, data: bytes, words: str
) -> None:
    """Beside the fat binary, by the GPU; without it, the driver refuses the fat binary in its own words."""
    file = load.folder / "kernels.cuda12.sm87.cubin"
    file.write_bytes(data)
    given = {"FAKE_DRIVER": driver_version, "FAKE_CAPABILITY": capability}
    found = load(load.file, cudart="old.so", **driver(load), **given)
    file.unlink()
    loaded = [line for line in found if line.startswith("driver loads")]
    if words in ("ok", "FAT"):
        code = machine_code() if words == "ok" else fat_binary()
        assert loaded == [f"driver loads {code[1:4].decode('latin-1')}"]
        assert "ok" in found
    else:
        assert words.format(file=file) in found
        assert not loaded


def test_a_cuda_runtime_that_the_driver_does_not_run(load: Loader) -> None:
    """It is used all the same, if there is no other: it says itself what is wrong."""
    found = load(load.file, FAKE_DRIVER="12040", FAKE_cudaGetDevice="35")
    assert found == ["the driver is too old for this CUDA runtime: as told", "-1"]


def test_the_runtime_of_the_process_comes_first(load: Loader) -> None:
    """Such as the one that ONNX Runtime's provider or torch has loaded."""
    found = load(load.file, cudart="none.so", LD_PRELOAD=str(load.folder / "new.so"))
    assert found[0] == "ok"
