"""The wheel of the CUDA kernels: what is in it, and the kernels that are refused."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from capsedge import __version__
from tools import cuda12, cuda_wheel, plugin_libraries, zig


def entry(kind: int, architecture: int) -> bytes:
    payload = os.urandom(40)
    return struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(payload), architecture) + payload


def fat_binary(architectures: tuple[int, ...] = cuda_wheel.ARCHITECTURES, ptx: int = 120) -> bytes:
    entries = b"".join(entry(2, number) for number in architectures) + entry(1, ptx)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    file = tmp_path / "capsedge.fatbin"
    file.write_bytes(fat_binary())
    file.with_suffix(cuda12.SUFFIX).write_bytes(b"for JetPack 6")
    return file


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plugin libraries that nobody compiles; the processors for which they were asked."""
    asked = []

    def make(given: dict[int, Path], processor: str, folder: Path) -> list[Path]:
        asked.append(processor)
        folder.mkdir()
        made = [folder / name for major in given for name in plugin_libraries.names(major)]
        for file in made:
            file.write_text(f"{file.name} for {processor}")
        return made

    monkeypatch.setattr(plugin_libraries, "make", make)
    monkeypatch.delenv(plugin_libraries.VARIABLE, raising=False)
    return asked


@pytest.fixture
def wheel(kernels: Path, tmp_path: Path) -> Path:
    return cuda_wheel.make(tmp_path, kernels)


def test_what_is_in_it(wheel: Path, kernels: Path) -> None:
    assert wheel.name == f"capsedge_cuda-{__version__}-py3-none-any.whl"
    info = f"capsedge_cuda-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert set(held) == {
        "capsedge_cuda/__init__.py", "capsedge_cuda/kernels.fatbin",
        "capsedge_cuda/kernels.cuda12.sm87.cubin", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD",
        f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE",
    }  # fmt: skip
    assert held["capsedge_cuda/kernels.fatbin"] == kernels.read_bytes()
    assert f"Requires-Dist: capsedge=={__version__}\n".encode() in held[f"{info}/METADATA"]
    notice = held[f"{info}/licenses/NOTICE"]
    assert b"libdevice.10.bc" in notice
    assert b"do not contain the CUDA runtime" in notice
    for line in held[f"{info}/RECORD"].decode().splitlines():
        name, digest, size = line.split(",")
        if name.endswith("RECORD"):
            continue
        made = base64.urlsafe_b64encode(hashlib.sha256(held[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={made}", len(held[name])), name


def test_the_plugin_libraries(
    kernels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiled: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the versions whose headers are named, for both processors; the others are said to be left out."""
    folders = [headers_of(tmp_path / str(major), major) for major in (10, 11)]
    names = {
        f"{processor}/libcapsedge_tensorrt{major}{kind}.so"
        for processor in zig.PROCESSORS
        for major in (10, 11)
        for kind in ("", "_static")
    }
    for given, wanted, words in (
        (folders, names, ""),
        (folders[1:], {name for name in names if "11" in name}, "for TensorRT 10 are left out"),
        (
            [],
            set(),
            "for TensorRT 10 and 11 are left out: CAPSEDGE_TENSORRT_INCLUDE names no folder",
        ),
    ):
        monkeypatch.setenv(plugin_libraries.VARIABLE, ":".join(map(str, given)))
        with zipfile.ZipFile(cuda_wheel.make(tmp_path, kernels)) as archive:
            held = {
                n.removeprefix("capsedge_cuda/") for n in archive.namelist() if n.endswith(".so")
            }
            texts = {n: archive.read(f"capsedge_cuda/{n}").decode() for n in held}
        assert held == wanted
        assert all(text == " for ".join(reversed(n.split("/"))) for n, text in texts.items())
        assert words in capsys.readouterr().err
    assert compiled == [*zig.PROCESSORS, *zig.PROCESSORS]


def headers_of(folder: Path, major: int) -> Path:
    """A folder whose headers of TensorRT state a version and nothing else."""
    folder.mkdir()
    word = "NV_TENSORRT_MAJOR" if major < 11 else "TRT_MAJOR_ENTERPRISE"
    (folder / "NvInferVersion.h").write_text(
        f"#define NV_INFER_VERSION_H\n#define {word} {major}\n"
    )
    return folder


def test_headers_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ten, again = headers_of(tmp_path / "a", 10), headers_of(tmp_path / "b", 10)
    for given, words in (
        ([ten, again], "two folders with headers of TensorRT 10"),
        ([headers_of(tmp_path / "c", 8)], "a folder with headers of TensorRT 8"),
        ([tmp_path], "which has no headers of TensorRT"),
    ):
        monkeypatch.setenv(plugin_libraries.VARIABLE, ":".join(map(str, given)))
        with pytest.raises(SystemExit, match=words):
            plugin_libraries.headers()


@pytest.mark.parametrize("age", [None, 0])
def test_code_for_cuda_12_that_is_missing_or_old(
    kernels: Path, tmp_path: Path, age: int | None
) -> None:
    other = kernels.with_suffix(cuda12.SUFFIX)
    if age is None:
        other.unlink()
    else:
        os.utime(other, (age, age))
    with pytest.raises(SystemExit, match="code for CUDA 12, is missing or old: make cuda"):
        cuda_wheel.make(tmp_path, kernels)


def test_the_same_kernels_make_the_same_file(wheel: Path, kernels: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    folder.mkdir()
    assert cuda_wheel.make(folder, kernels).read_bytes() == wheel.read_bytes()


def test_pip_installs_it(wheel: Path, tmp_path: Path) -> None:
    """And capsedge finds the kernels."""
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target,
         wheel],
        check=True,
    )  # fmt: skip
    ask = "from capsedge.runtime.backends.native_library import find_cuda_kernels as f; print(f())"
    path = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {k: v for k, v in os.environ.items() if k != "CAPSEDGE_CUDA_KERNELS"}
    said = subprocess.run(
        [sys.executable, "-c", ask], env={**variables, "PYTHONPATH": ":".join(path)}, cwd=cuda_wheel.ROOT,
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert said == str(target / "capsedge_cuda" / "kernels.fatbin")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "does not exist: make cuda"),
        (b"", "not a fat binary"),
        (b"\x7fELF" + bytes(100), "not a whole fat binary"),
        (fat_binary()[:-1], "not a whole fat binary"),
        (fat_binary((90,)), "no code for the architectures 75, 80, 86, 87, 89, 100, 110, 120: make cuda"),
        (fat_binary(ptx=90), "no code for the architectures 120, as PTX"),
    ],
    ids=["missing", "empty", "other", "truncated", "one", "ptx"],
)  # fmt: skip
def test_kernels_that_are_refused(
    kernels: Path, tmp_path: Path, data: bytes | None, words: str
) -> None:
    kernels.unlink()
    if data is not None:
        kernels.write_bytes(data)
    with pytest.raises(SystemExit, match=words):
        cuda_wheel.make(tmp_path, kernels)


def test_kernels_older_than_their_sources(kernels: Path, tmp_path: Path) -> None:
    os.utime(kernels, (0, 0))
    with pytest.raises(SystemExit, match=r"is older than .*: make cuda"):
        cuda_wheel.make(tmp_path, kernels)


def test_a_wheel_that_is_too_large(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_wheel, "MOST_BYTES", 100)
    with pytest.raises(SystemExit, match="at most 100"):
        cuda_wheel.make(tmp_path, kernels)


def test_the_architectures_are_those_that_are_built() -> None:
    text = (cuda_wheel.SOURCES.parents[1] / "cuda.cmake").read_text()
    found = re.search(r"foreach\(architecture ((?:\d+ )*\d+)\)", text)
    assert found is not None
    assert tuple(map(int, found[1].split())) == cuda_wheel.ARCHITECTURES
