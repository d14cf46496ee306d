"""Errors that are not ours: what a command says of an installed package that does not load."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from capsedge import cli
from capsedge.spec.exit_codes import ExitCode


def test_a_package_that_cannot_be_loaded_is_no_bug_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a library that it needs is missing, or its file is for another system."""
    package = tmp_path / "site-packages" / "halfpackage"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_native.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(ImportError) as caught:
        import_module("halfpackage._native")
    assert cli._failed(caught.value) == ExitCode.ENVIRONMENT
    printed = capsys.readouterr().err
    assert "The package halfpackage is installed, but cannot be loaded." in printed
    assert "_native.so" in printed
    assert "pip install --force-reinstall halfpackage" in printed
    assert cli._failed(ImportError("cannot import name 'x'", path=cli.__file__)) == ExitCode.BUG
