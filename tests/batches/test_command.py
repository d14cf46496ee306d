"""The command: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.batches.sources import COUNT, KINDS, MODEL, pixels, write_folder
from tests.places.table import run


def test_json_and_the_exit_code_of_bad_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(pixels(), tmp_path / "images")
    words = ["batch", MODEL, str(folder), "--threads", "1", "-o", str(tmp_path / "a.parquet")]
    assert run(words, monkeypatch) == 0
    said = capsys.readouterr()
    assert f"{COUNT} images" in said.out
    assert f"6 of {COUNT} images" in said.err
    (folder / "bad.png").write_bytes(b"")
    assert run([*words, "--json", "--outputs", "scores"], monkeypatch) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["images"], document["failed"], document["kind"]) == (COUNT + 1, 1, "folder")
    assert "see the column 'error'" in said.err


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from capsedge.batches import journal

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
        (["--outputs", "pictures"], "no pictures"), (["--column", "x"], "no columns"),
        (["--device", "cuda", "--cluster", "auto"], "on a cluster"),
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
