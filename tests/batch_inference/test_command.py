"""The command: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.batch_inference.sources import COUNT, KINDS, MODEL, pixels, write_folder
from tests.batch_inference.test_resume import content
from tests.paths.table import run


def test_json_and_the_exit_code_of_bad_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(pixels(), tmp_path / "images")
    words = ["batch", MODEL, str(folder), "--threads", "1", "-o", str(tmp_path / "a.parquet")]
    assert run(words, monkeypatch) == 0
    said = capsys.readouterr()
    assert f"images     {COUNT}, " in said.out
    assert f"6 of {COUNT} images" in said.err
    (folder / "bad.png").write_bytes(b"")
    assert run([*words, "--json", "--outputs", "scores", "--force"], monkeypatch) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["images"], document["failed"], document["kind"]) == (COUNT + 1, 1, "folder")
    assert "see the column 'error'" in said.err


def test_no_graphs_on_a_gpu_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what the backend says after the last image."""
    from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend

    for name, value in (("no_graph_reason", "control flow"), ("captured", 0)):
        monkeypatch.setattr(OnnxRuntimeBackend, name, value, raising=False)
    source = KINDS["npy"](pixels(), tmp_path)
    words = ["batch", MODEL, str(source), "--threads", "1", "-o", str(tmp_path / "a.parquet")]
    assert run(words, monkeypatch) == 0
    assert f"{MODEL} ran without CUDA graphs: control flow" in capsys.readouterr().err


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from capsedge.batch_inference import journal

    source = KINDS["npy"](pixels(), tmp_path)
    words = ["batch", MODEL, str(source), "--threads", "1", "-o", str(tmp_path / "a.parquet")]
    put = journal.Journal.put

    def second(self: journal.Journal, number: int, *content: object) -> None:
        if number == 1:
            raise KeyboardInterrupt
        put(self, number, *content)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "put", second)
        assert run(words, monkeypatch) == 130
    assert "--resume" in capsys.readouterr().err
    assert run(words, monkeypatch) == 2
    assert "holds an unfinished run" in capsys.readouterr().err
    assert run([*words, "--resume"], monkeypatch) == 0
    assert "1 of 4 parts from before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--outputs", "pictures"], "Choose one of: scores, poses"), (["--column", "x"], "no columns"),
        (["--device", "cuda", "--cluster", "auto"], "on a cluster"),
        (["--resume", "--force"], "--resume or --force"),
    ],
)  # fmt: skip
def test_wrong_options(
    words: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = KINDS["npy"](pixels(), tmp_path)
    out = str(tmp_path / "a.parquet")
    assert run(["batch", MODEL, str(source), "-o", out, *words], monkeypatch) == 2
    assert why in capsys.readouterr().err
    assert not Path(out).exists()


def test_a_table_is_replaced_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = KINDS["npy"](pixels(), tmp_path)
    for name in ("a.parquet", "parts"):
        place = tmp_path / name
        words = ["batch", MODEL, str(source), "--threads", "1", "-o", str(place)]
        assert run(words, monkeypatch) == 0
        before = content(place)
        for more in ([], ["--invert"], ["--invert", "--resume"]):
            assert run([*words, *more], monkeypatch) == 2
            assert "--force" in capsys.readouterr().err
            assert content(place) == before
        assert run([*words, "--invert", "--force"], monkeypatch) == 0
        assert content(place) != before
    # Neither does --force remove what no run wrote.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.txt").write_text("mine")
    assert run([*words[:-1], str(tmp_path / "mine"), "--force"], monkeypatch) == 2
    assert content(tmp_path / "mine") == {"a.txt": b"mine"}


def test_tables_of_other_formats_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = KINDS["npy"](pixels(3), tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.run").mkdir()
    words = ["batch", MODEL, str(source), "--threads", "1", "-o"]
    for name in (
        "a.csv",
        "a.json",
        "b/a.XLSX",
        "memory://place/a.csv",
        "a.arrow",
        "a.parquet.gz",
    ):
        assert run([*words, name], monkeypatch) == 2, name
        assert "*.parquet" in capsys.readouterr().err
    assert run([*words, "a.csv/"], monkeypatch) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, "old.run"]
    for name in ("A.PARQUET", "run-1.5", "old.run", ".hidden", "2026.11.23"):
        assert run([*words, name], monkeypatch) == 0, name
        assert Path(name).is_file() == (name == "A.PARQUET")
