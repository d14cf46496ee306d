"""Every name of TensorRT that the code uses, against the real Python bindings of five releases.

The bindings are thin: they import over a library that has nine empty functions. They are proprietary, so
they are downloaded into build/ when the test is run, and never stored.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tensorrt import contract

CACHE = contract.ROOT / "build" / "tensorrt-bindings"
RELEASES = {
    "10.3.0": "tensorrt-cu12-bindings",
    "10.13.3.9": "tensorrt-cu12-bindings",
    "10.16.1.11": "tensorrt-cu12-bindings",
    "11.0.0.114": "tensorrt-cu13-bindings",
    "11.4.0.106": "tensorrt-cu13-bindings",
}
FUNCTIONS = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL", "getBuilderPluginRegistry",
    "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins",
)  # fmt: skip
LIBRARIES = ("nvinfer", "nvonnxparser", "nvinfer_plugin")


def test_the_scan_sees_the_names() -> None:
    """A contract over nothing would hold for every release."""
    found = contract.all_uses()
    assert len(found) > 50
    for use in (
        ("Builder", "build_serialized_network"),
        ("OnnxParser", "get_error"),
        ("IBuilderConfig", "progress_monitor"),
        ("ICudaEngine", "get_tensor_shape"),
        ("IExecutionContext", "execute_async_v3"),
        ("ITimingCache", "serialize"),
        ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"),
        ("Runtime", "deserialize_cuda_engine"),
    ):
        assert use in found
    gone = {"FP16", "INT8", "set_output_type", "dynamic_range", "EXPLICIT_BATCH"}
    assert not gone & {part for use in found for part in use if use[0] != "DataType"}


def _stub(folder: Path, major: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stub library needs a C compiler: apt-get install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "stub.c"
    source.write_text("".join(f"void* {name}(void) {{ return 0; }}\n" for name in FUNCTIONS))
    for name in LIBRARIES:
        file = f"lib{name}.so.{major}"
        subprocess.run(
            [compiler, "-shared", "-fPIC", str(source), f"-Wl,-soname,{file}", "-o", str(folder / file)],
            check=True,
        )  # fmt: skip


def _bindings(release: str) -> Path:
    """The unpacked wheel, downloaded once."""
    folder = CACHE / f"{release}-cp{sys.version_info.major}{sys.version_info.minor}"
    if (folder / "tensorrt_bindings").is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    package = RELEASES[release]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
         "--dest", str(CACHE), f"{package}=={release}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wheels = list(CACHE.glob(f"{package.replace('-', '_')}-{release}-cp*.whl"))
    if not wheels:
        pytest.skip(
            f"{package} {release} for this Python is not to be had: {done.stderr.strip()[-200:]}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    wheels[0].unlink()
    return folder


@pytest.mark.sample(2)
@pytest.mark.parametrize("release", RELEASES)
def test_bindings_have_every_name(release: str, tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the bindings that are compared are those for x86-64")
    bindings = _bindings(release)
    major = release.partition(".")[0]
    _stub(tmp_path / "stub", major)
    done = subprocess.run(
        [sys.executable, str(Path(contract.__file__))],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(tmp_path / "stub"),
            "PYTHONPATH": str(bindings),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["version"] == release
    assert found["missing"] == []
    assert found["fake"] == [], "the stand-in of the tests has names that TensorRT lacks"
    assert found["types"] == ["FLOAT", "HALF", "INT8", "INT64"]
    # The very number that the code must not write down: it moved.
    assert found["strongly_typed"] == (1 if major == "10" else 0)
