"""What once broke a native reader, replayed under the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.native_target import CORPUS, SEEDS, SOURCE, build, onnxruntime_variable

from .builds import environment

READERS = ("onnx", "json", "engine_metadata")  # the others compile for minutes


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in SEEDS if name not in READERS]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*READERS, *SLOW])
def test_replay(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setenv("PATH", environment()["PATH"])
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("needs cmake and a C++ compiler: pip install cmake; apt-get install g++")
    assert (SOURCE / f"{name}.cpp").is_file()
    program = build(name, tmp_path / "build", "-DCAPSEDGE_REPLAY=ON")
    files = sorted((CORPUS / f"native_{name}").glob("*"))
    for title, seed in SEEDS[name]().items():
        (tmp_path / title).write_bytes(seed)
        files.append(tmp_path / title)
    for variable, value in onnxruntime_variable().items():
        monkeypatch.setenv(variable, value)
    command = [str(program), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"replayed {len(files)}" in done.stdout
