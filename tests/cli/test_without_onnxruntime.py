"""Without ONNX Runtime, every verb that needs it says at once which of its two packages to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODEL = ROOT / "capsedge" / "zoo" / "digits-dynamic.onnx"
SAMPLE = ROOT / "capsedge" / "zoo" / "samples" / "digit-7.png"
_HIDDEN = "import sys; sys.modules['onnxruntime'] = None; from capsedge.cli import main; main()"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "words",
    [
        ["infer", SAMPLE],
        ["profile", MODEL],
        ["optimize", MODEL, "-o", "new.onnx"],
        ["quantize", MODEL, "--calib-data", "digits.npz", "-o", "new.onnx"],
        ["cascade", MODEL, MODEL, "--data", "digits.npz", "-o", "new.onnx"],
        pytest.param(
            ["export", "--checkpoint", "digits-em", "-o", "new.onnx"], marks=pytest.mark.slow
        ),
        pytest.param(["verify", MODEL], marks=pytest.mark.slow),
        pytest.param(
            ["sweep", "--checkpoint", "digits-em", "--data", "digits.npz"], marks=pytest.mark.slow
        ),
    ],
    ids=lambda words: words[0],
)
def test_the_error_names_both_packages(words: list[str | Path], tmp_path: Path) -> None:
    inputs = [tmp_path / word for word in words if str(word) == "digits.npz"]
    for path in inputs:
        path.write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", _HIDDEN, *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "ONNX Runtime is not installed" in done.stderr
    assert "capsedge[cpu]" in done.stderr
    assert "capsedge[gpu]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == inputs


def test_the_package_to_upgrade_is_the_one_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install --upgrade onnxruntime` next to onnxruntime-gpu would replace it."""
    import importlib.metadata

    from capsedge.runtime.backends import onnxruntime_session

    for installed, named in (
        (["onnxruntime"], "onnxruntime"),
        (["onnxruntime-gpu"], "onnxruntime-gpu"),
        ([], "onnxruntime"),
    ):
        monkeypatch.setattr(
            importlib.metadata, "packages_distributions", lambda i=installed: {"onnxruntime": i}
        )
        assert onnxruntime_session.installed_package() == named
