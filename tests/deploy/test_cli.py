"""`capsedge deploy web` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsedge.cli import _process
from capsedge.deploy import preview_server
from tests.deploy.test_web import model, site  # noqa: F401 (a fixture that each test uses)
from tests.paths.table import run


def test_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    net, output = model(tmp_path / "net.onnx"), tmp_path / "out"
    assert run(["deploy", "web", str(net), "-o", str(output), "--json"], monkeypatch) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["output"] == str(output)
    assert document["models"][0]["name"] == "net"
    assert {file["path"] for file in document["files"]} >= {"index.html", "models/net.onnx"}


def test_for_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    net = model(tmp_path / "net.onnx", iterations=2)
    assert run(["deploy", "web", str(net), "-o", str(tmp_path / "out")], monkeypatch) == 0
    assert "dynamic routing, iterations 2, fp32" in capsys.readouterr().out


def test_open_serves_that_folder_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    opened: list[str] = []
    served: dict[str, Path] = {}

    def interrupted(self: preview_server.FolderServer) -> None:
        served.update(self.files)
        raise KeyboardInterrupt

    monkeypatch.setattr(preview_server.FolderServer, "serve_forever", interrupted)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", opened.append)
    net, output = model(tmp_path / "net.onnx"), tmp_path / "out"
    code = run(["deploy", "web", str(net), "-o", str(output), "--open"], monkeypatch)
    said = capsys.readouterr().err
    assert code == _process.INTERRUPTED
    assert f"serving {output} at {opened[0]}" in said
    assert set(served) == {
        "/",
        *(f"/{p.relative_to(output).as_posix()}" for p in output.rglob("*") if p.is_file()),
    }


@pytest.mark.parametrize("iterations", ["x", "1,,2", "0", "3..1", "1..999999999", "101"])
def test_bad_iterations(
    iterations: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = ["deploy", "web", "digits-em", "-o", str(tmp_path / "out"), "--iters", iterations]
    assert run(words, monkeypatch) == 2
    assert f"Invalid --iters {iterations}." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_port_of_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    words = ["deploy", "web", "digits-em", "-o", str(tmp_path / "out"), "--port", "8080"]
    assert run(words, monkeypatch) == 2
    assert "--port has no effect without --open." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_a_target(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(["deploy", "nowhere"], monkeypatch) == 2
    assert "nowhere" in capsys.readouterr().err
