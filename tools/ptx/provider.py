"""ONNX Runtime's own CUDA provider without a GPU, on the libcudart that executes PTX.

The provider of the package ``onnxruntime-gpu`` is unmodified; `install` puts it in ``build/provider``, apart
from the environment's own ONNX Runtime. Beside libcudart it needs other libraries of CUDA: `stubs` makes
them, without any mathematics. So it starts, and runs nodes whose kernels the PTX has; its own have none here.

    python -m tools.ptx.provider            # install the package, make the stubs
    python -m tools.ptx.provider --others   # and the other versions that the slow tests take
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from capsedge.errors import EnvironmentProblem
from tools.ptx import build

TESTED = "1.31.1"  # in every run of the tests
CUDA_12 = "1.23.2"  # the last for CUDA 12 and Python 3.10
VARIABLE = "CAPSEDGE_PTX_PROVIDER"  # names another version
FOLDER = build.ROOT / "build" / "provider"
_LIBRARY = Path("onnxruntime", "capi", "libonnxruntime_providers_cuda.so")
# Libraries of CUDA that a provider may link, and the names of their functions.
_STUBBED = {
    "libcublasLt": r"cublasLt",
    "libcublas": r"cublas(?!Lt)",
    "libcudnn": r"cudnn",
    "libcufft": r"cufft",
    "libcurand": r"curand",
    "libcuda": r"cu[A-Z]",
}
_RUNTIMES = {
    "libcudart.so.12": "12.8",
    "libcudart.so.13": "13.0",
}  # the oldest that the kernels take
# The driver's version is what a variable says, such as 12080.
DRIVER = "CAPSEDGE_PTX_DRIVER"
_DRIVER = f"""
#include <stdlib.h>
int cuDriverGetVersion(int* to) {{
  const char* named = getenv("{DRIVER}");
  return *to = named ? atoi(named) : 13000, 0;
}}
"""
_HANDLES = ("cublasCreate_v2", "cublasLtCreate", "cudnnCreate")
_HARMLESS = re.compile("Destroy|SetStream|MathMode")


def chosen() -> str:
    """The version that this process uses."""
    return os.environ.get(VARIABLE) or TESTED


def package(version: str = "") -> Path:
    """The folder of the package; placed first on ``sys.path``, it replaces the installed ONNX Runtime."""
    return FOLDER / f"onnxruntime-gpu-{version or chosen()}"


def unavailable() -> str:
    """What this machine lacks to run the provider; empty if it lacks nothing."""
    if lacking := build.unavailable():
        return lacking
    if not (package() / _LIBRARY).is_file():
        target = "test-cuda-provider" if chosen() == TESTED else "test-gpu-code"
        return f"onnxruntime-gpu {chosen()} is not installed: make {target}"
    return ""


def newest() -> str:
    """The newest version on the package index.

    Raises:
        EnvironmentProblem: pip cannot ask it.
    """
    words = ["--dry-run", "--ignore-installed", "--no-deps", "--report", "-", "onnxruntime-gpu"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentProblem(
            "The newest version of onnxruntime-gpu is not known.",
            f"pip says: {done.stderr.strip()[-500:]}",
            "Look at the connection to the package index.",
        )
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])


def installed() -> list[str]:
    """The versions in ``build/provider``, oldest first."""
    names = [each.name.rpartition("-")[2] for each in FOLDER.glob("onnxruntime-gpu-*[0-9]")]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def install(version: str) -> None:
    """Get a version from the index, if it is missing: 256 MB and more.

    Raises:
        EnvironmentProblem: the version has no provider as a library that sessions load by name.
    """
    place = package(version)
    if (place / _LIBRARY).is_file():
        return
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--target", str(partial), f"onnxruntime-gpu=={version}"], check=True
    )
    if not (partial / _LIBRARY).is_file():
        libraries = sorted(each.name for each in (partial / _LIBRARY).parent.glob("*.so*"))
        raise EnvironmentProblem(
            f"onnxruntime-gpu {version} has another CUDA provider.",
            f"{_LIBRARY.name} is missing; its libraries are {', '.join(libraries)}.",
            "Find out whether that provider takes custom operators, and how it is loaded.",
        )
    partial.rename(place)


@lru_cache(maxsize=1)
def _needed() -> list[str]:
    """The libraries that the provider links."""
    read = ["readelf", "-d", str(package() / _LIBRARY)]
    said = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def stubs() -> list[Path]:
    """The libraries beside libcudart that the provider links, made once."""
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    target = FOLDER / f"stubs-{chosen()}-{own}"
    with build.once(target) as made:
        if made:
            names = _wanted_functions()
            for library in {*_needed(), "libcuda.so.1"}:
                if pattern := _STUBBED.get(library.partition(".")[0]):
                    _stub(made / library, [name for name in names if re.match(pattern, name)])
    return sorted(target.glob("*.so.[0-9]*"))


def _wanted_functions() -> list[str]:
    """The names that the provider does not define, with their version where they have one."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", str(package() / _LIBRARY)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return re.findall(r"\bU (\S+)", listed)


def _stub(target: Path, functions: list[str]) -> None:
    """A library whose functions make handles and succeed where nothing is computed, and fail elsewhere."""
    tagged = any("@" in name for name in functions)
    bodies = {
        name: "static int handle; *to = &handle; return 0;" if name in _HANDLES
        else "return 0;" if _HARMLESS.search(name) else "return 1;"
        for name in (function.partition("@")[0] for function in functions)
    }  # fmt: skip
    source, versions = target.with_suffix(".c"), target.with_suffix(".map")
    lines = [f"int {name}(void** to) {{ {body} }}\n" for name, body in bodies.items()]
    source.write_text(
        "".join(lines) + (_DRIVER if target.name == "libcuda.so.1" else "int nothing;\n")
    )
    versions.write_text(f"{target.name} {{ global: *; }};\n")
    script = [f"-Wl,--version-script={versions}"] if tagged else []
    named = f"-Wl,-soname,{target.name}"
    words = ["-shared", "-fPIC", "-w", str(source), named, *script, "-o", str(target)]
    subprocess.run(["gcc", *words], check=True)


def use(architecture: int = 90) -> build.Executor:
    """Make this process use the provider; call it before anything imports ``onnxruntime`` or loads CUDA.

    Raises:
        EnvironmentProblem: the process has imported another ONNX Runtime, or the kernels do not compile.
    """
    if "onnxruntime" in sys.modules:
        raise EnvironmentProblem(
            "The CUDA provider cannot be used in this process.",
            "It has imported another ONNX Runtime.",
            "Call tools.ptx.provider.use first.",
        )
    runtime = next(version for name, version in _RUNTIMES.items() if name in _needed())
    executor = build.use(architecture, version=runtime)
    sys.path.insert(0, str(package()))
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # The loader takes what has the wanted name in the process already.
    for library in stubs():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return executor


def main() -> None:
    """Install what the tests need."""
    versions = [TESTED]
    if "--others" in sys.argv[1:]:
        last = newest()
        print(f"The newest onnxruntime-gpu is {last}; every run tests {TESTED}.", file=sys.stderr)
        versions = list(dict.fromkeys((TESTED, CUDA_12, last)))
    for version in versions:
        install(version)
        os.environ[VARIABLE] = version
        place = package().relative_to(build.ROOT)
        print(f"onnxruntime-gpu {version} in {place}", file=sys.stderr)
    if reason := build.unavailable():
        sys.exit(reason)


if __name__ == "__main__":
    try:
        main()
    except EnvironmentProblem as error:
        sys.exit(str(error))
