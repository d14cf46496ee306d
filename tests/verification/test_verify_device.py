"""`verify` on a GPU: the file runs on the device that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import capsedge
from capsedge.errors import UsageError
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.verification import verify, verify_ensemble
from capsedge.verification.verify_options import VerifyOptions


class Loaded(Exception):
    """What was asked of `load`."""


def test_the_device_reaches_the_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(artefact: Any, options: RuntimeOptions) -> None:
        raise Loaded(options)

    monkeypatch.setattr(verify, "load", load)
    monkeypatch.setattr(verify_ensemble, "load", load)
    options = VerifyOptions(device="cuda:1", ops="portable")
    for compare in (
        lambda: capsedge.verify(None, tmp_path / "m.onnx", options),
        lambda: capsedge.verify_ensemble(None, ["a.onnx", "b.onnx"], options),
    ):
        with pytest.raises(Loaded) as asked:
            compare()
        assert asked.value.args == (RuntimeOptions(device="cuda:1", ops="portable"),)


def test_c_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verify, "is_folder", lambda *_: True)
    options = VerifyOptions(device="cuda", made_from=tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="does not run on the device 'cuda'"):
        capsedge.verify(None, tmp_path, options)
