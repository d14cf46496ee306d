"""`tools.walks` counts the files that a command goes through, as they are and as if some were merged."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from capsedge.runtime import zoo
from capsedge.runtime.onnx_file import summary
from tools import walks


def test_a_walk_is_counted() -> None:
    path = zoo.zoo_model("digits-small")
    with walks.Walk() as walk:
        threads = [threading.Thread(target=summary.read_harmless, args=[path]) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
    found = walk.counts({})
    assert {"runtime.onnx_file.summary", "runtime.onnx_file.wire"} <= found["modules"].keys()
    assert found["files"] == len(found["modules"])
    assert found["rooms"]["runtime"] <= found["files"]
    assert 0 < found["changes"] == sum(count for *_, count in found["often"]) < found["calls"]

    merged = {name: "runtime.one" for name in found["modules"] if name.startswith("runtime.")}
    one = walk.counts(merged)
    assert one["modules"]["runtime.one"] > found["modules"]["runtime.onnx_file.wire"]
    assert one["changes"] < found["changes"]
    assert one["calls"] == found["calls"]


def test_imports_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "PACKAGE", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "walked.py").write_text(
        "def f():\n    return 1\n\n\nclass A:\n    x = f()\n\n\nf()\n"
    )
    with walks.Walk() as walk:
        import walked  # type: ignore[import-not-found]

        assert walk.counts({})["calls"] == 0
        walked.f()
    assert walk.counts({})["modules"] == {"walked": 1}


def test_a_command_is_walked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("freeze", "set_threshold"):  # of this process
        monkeypatch.setattr(f"gc.{setting}", lambda *_: None)
    mapping, missing = tmp_path / "mapping.py", str(tmp_path / "no")
    mapping.write_text("M = {'cli.all': ['cli.__init__', 'cli._commands', 'cli._common']}")
    assert walks.main(["--json", "--mapping", str(mapping), "inspect", missing]) == 2
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["merged"]["files"] < found["now"]["files"]
    assert walks.main(["--often", "1", "inspect", missing]) == 2
    assert "changes of file" in capsys.readouterr().out


@pytest.mark.thorough
def test_an_export_stays_within_a_few_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a newcomer reads to follow a checkpoint to its file; the number only falls."""
    for setting in ("freeze", "set_threshold"):  # of this process
        monkeypatch.setattr(f"gc.{setting}", lambda *_: None)
    assert walks.main(["--json", "export", "-o", str(tmp_path / "m.onnx")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["now"]
    assert found["files"] <= 80, found["modules"]
