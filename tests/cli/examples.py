"""What the tests of programs in C and C++ share: flags, tools, and the examples, compiled."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from capsedge.cli import app
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends import native_library
from capsedge.runtime.zoo import default_model
from tests.conftest import ROOT

SAMPLES = [
    ROOT / "capsedge" / "zoo" / "samples" / f"{name}.png" for name in ("digit-3", "overlapping-2-4")
]


def installed() -> bool:
    try:
        native_library.find_embedding()
    except EnvironmentProblem:
        return False
    return True


needs_library = pytest.mark.skipif(
    not installed(), reason="libcapsedge is not built: pip install -e . with a C++ compiler"
)


def config(*options: str) -> str:
    found = CliRunner().invoke(app, ["config", *options])
    assert found.exit_code == 0, found.output
    return found.stdout.strip()


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str, package: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is missing: apt-get install {package}")
    return found


def libpng_flags() -> list[str]:
    """The linker's flags for libpng, or a skip that says how to get it."""
    pkg_config = tool("pkg-config", "pkg-config")
    if subprocess.run([pkg_config, "--exists", "libpng"], check=False).returncode:
        pytest.skip("libpng is missing: apt-get install libpng-dev")
    return shlex.split(run(pkg_config, "--libs", "libpng"))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, compiled with the flags that are printed, and with libpng."""
    folder = tmp_path_factory.mktemp("examples")
    c, cpp, libpng = tool("cc", "gcc"), tool("c++", "g++"), libpng_flags()
    flags = [*shlex.split(config("cflags", "libs")), *libpng]
    examples = Path(config("examples"))
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-DEXAMPLES_LIBPNG"]
    for name in ("classify", "tensors"):
        run(c, "-std=c99", *strict, examples / f"{name}.c", "-o", folder / f"{name}_c", *flags)
    for name in ("classify", "server"):
        source = examples / f"{name}.cpp"
        run(cpp, "-std=c++17", *strict, "-pthread", source, "-o", folder / name, *flags)
    return folder


@pytest.fixture(scope="session")
def without_libpng(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`classify` in C and C++, compiled to read PGM and PPM files only."""
    c, cpp = tool("cc", "gcc"), tool("c++", "g++")
    folder = tmp_path_factory.mktemp("without_libpng")
    flags = shlex.split(config("cflags", "libs"))
    examples = Path(config("examples"))
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]
    run(c, "-std=c99", *strict, examples / "classify.c", "-o", folder / "classify_c", *flags)
    run(cpp, "-std=c++17", *strict, examples / "classify.cpp", "-o", folder / "classify", *flags)
    return folder


def plain_images(files: Iterable[Path], folder: Path) -> list[Path]:
    """Grey images as PGM files, which the examples read without libpng."""
    made = []
    for file in files:
        made.append(folder / f"{file.stem}.pgm")
        with Image.open(file) as image:
            image.save(made[-1])
    return made


def infer(*arguments: str | Path) -> str:
    return run(sys.executable, "-m", "capsedge", "infer", "--model", default_model(), *arguments)
