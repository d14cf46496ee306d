"""ONNX Runtime's own CUDA provider without a GPU, on the libcudart that executes PTX.

The provider of the package ``onnxruntime-gpu`` is unmodified; `install` puts it in ``build/provider``, apart
from the environment's own ONNX Runtime. Beside libcudart it needs other libraries of CUDA: `stubs` makes
them, without any mathematics. So it starts, and runs nodes whose kernels the PTX has; its own have none here.

    python -m tools.ptx.provider        # install the package, make the stubs
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from capsedge.errors import EnvironmentProblem
from tools.ptx import build

VERSION = "1.31.1"
FOLDER = build.ROOT / "build" / "provider"
_LIBRARY = Path("onnxruntime", "capi", "libonnxruntime_providers_cuda.so")
# Libraries that the provider links, and the names of their functions.
_STUBBED = {
    "libcublasLt.so.13": r"cublasLt",
    "libcublas.so.13": r"cublas(?!Lt)",
    "libcurand.so.10": r"curand",
    "libcuda.so.1": r"cu[A-Z]",
}
# The driver's version is what a variable says, such as 12080.
DRIVER = "CAPSEDGE_PTX_DRIVER"
_DRIVER = f"""
#include <stdlib.h>
int cuDriverGetVersion(int* to) {{
  const char* named = getenv("{DRIVER}");
  return *to = named ? atoi(named) : 13000, 0;
}}
"""
_HANDLES = ("cublasCreate_v2", "cublasLtCreate")
_HARMLESS = re.compile("Destroy|SetStream|MathMode")


def package() -> Path:
    """The folder of the package; placed first on ``sys.path``, it replaces the installed ONNX Runtime."""
    return FOLDER / f"onnxruntime-gpu-{VERSION}"


@lru_cache(maxsize=1)
def unavailable() -> str:
    """What this machine lacks to run the provider; empty if it lacks nothing."""
    if lacking := build.unavailable():
        return lacking
    if not (package() / _LIBRARY).is_file():
        return f"onnxruntime-gpu {VERSION} is not installed: make test-cuda-provider"
    return ""


def install() -> None:
    """Get the package from the index, if it is missing: 256 MB."""
    place = package()
    if (place / _LIBRARY).is_file():
        return
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--target", str(partial), f"onnxruntime-gpu=={VERSION}"], check=True
    )
    partial.rename(place)


def stubs() -> Path:
    """The folder of the libraries beside libcudart that the provider links, made once."""
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    target = FOLDER / f"stubs-{VERSION}-{own}"
    with build.once(target) as made:
        if made:
            names = _wanted_functions()
            for library, pattern in _STUBBED.items():
                _stub(made / library, [name for name in names if re.match(pattern, name)])
    return target


def _wanted_functions() -> list[str]:
    """The names that the provider does not define."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", str(package() / _LIBRARY)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [name.split("@")[0] for name in re.findall(r"\bU (\S+)", listed)]


def _stub(target: Path, functions: list[str]) -> None:
    """A library whose functions make handles and succeed where nothing is computed, and fail elsewhere."""
    bodies = {
        name: "static int handle; *to = &handle; return 0;" if name in _HANDLES
        else "return 0;" if _HARMLESS.search(name) else "return 1;"
        for name in functions
    }  # fmt: skip
    source, versions = target.with_suffix(".c"), target.with_suffix(".map")
    lines = [f"int {name}(void** to) {{ {body} }}\n" for name, body in bodies.items()]
    source.write_text(
        "".join(lines) + (_DRIVER if target.name == "libcuda.so.1" else "int nothing;\n")
    )
    versions.write_text(f"{target.name} {{ global: *; }};\n")
    # Of these libraries, only cuBLAS has versions of symbols.
    tagged = [f"-Wl,--version-script={versions}"] if target.name.startswith("libcublas") else []
    named = f"-Wl,-soname,{target.name}"
    words = ["-shared", "-fPIC", "-w", str(source), named, *tagged, "-o", str(target)]
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
    executor = build.use(architecture)
    sys.path.insert(0, str(package()))
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # The loader takes what has the wanted name in the process already.
    for library in _STUBBED:
        ctypes.CDLL(str(stubs() / library), mode=ctypes.RTLD_GLOBAL)
    return executor


if __name__ == "__main__":
    install()
    print(f"onnxruntime-gpu {VERSION} in {package().relative_to(build.ROOT)}", file=sys.stderr)
    if reason := build.unavailable():
        sys.exit(reason)
    stubs()
