"""An interrupted run goes on, and ends with the same bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capsedge
from capsedge.errors import ArtefactError, UsageError
from tests.batch_inference.sources import COUNT, KINDS, MODEL, pixels, write_folder


class Interrupted(BaseException):
    """Stands for a signal."""


def interrupted(source: Path, target: Path, parts: int, **options: object) -> None:
    """Run until so many parts are done."""
    left = parts

    def stop(_stage: str, _done: int = 0, _total: int | None = None) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Interrupted

    with pytest.raises(Interrupted):
        capsedge.batch(
            MODEL,
            source,
            target,
            **options,
            threads=1,
            progress=stop,
        )


def content(place: Path) -> dict[str, bytes]:
    """A file, or the files of a folder."""
    files = [place] if place.is_file() else sorted(place.iterdir())
    return {file.name if place.is_dir() else "": file.read_bytes() for file in files}


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(["folder", "tar", "tars", "bytes", "parquets", "npz"]),
    stops=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    single=st.booleans(),
)
def test_the_same_bytes_wherever_it_stopped(kind: str, stops: list[int], single: bool) -> None:
    with TemporaryDirectory() as name:
        place = Path(name)
        source = KINDS[kind](pixels(), place)
        whole, resumed = (
            place / f"{k}{'.parquet' if single else ''}" for k in ("whole", "resumed")
        )
        report = capsedge.batch(MODEL, source, whole, threads=1)
        done = 0
        for parts in stops:
            if done + parts > report.parts:
                break
            # A run that goes on reports the parts from before, too.
            interrupted(source, resumed, parts + (done > 0), resume=done > 0)
            done += parts
        again = capsedge.batch(
            MODEL,
            source,
            resumed,
            resume=True,
            threads=1,
        )
        assert content(resumed) == content(whole)
        assert (again.images, again.failed) == (report.images, report.failed) == (COUNT, 0)


def test_counts_include_the_parts_from_before(tmp_path: Path) -> None:
    source = write_folder(pixels(), tmp_path / "images")
    (source / "0/00001.png").write_bytes(b"bad")
    interrupted(source, tmp_path / "out.parquet", 2)
    report = capsedge.batch(
        MODEL,
        source,
        tmp_path / "out.parquet",
        resume=True,
        threads=1,
    )
    assert (report.resumed, report.parts, report.images, report.failed) == (2, 4, COUNT, 1)


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(), tmp_path)
    for target in (tmp_path / "out.parquet", tmp_path / "out"):
        first = capsedge.batch(MODEL, source, target, threads=1)
        before = content(target)
        again = capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            threads=1,
        )
        assert again.resumed == again.parts == first.parts
        assert (again.images, again.atypical) == (first.images, first.atypical)
        assert content(target) == before


def test_an_unfinished_run_is_neither_replaced_nor_mixed(tmp_path: Path) -> None:
    source, target = KINDS["npy"](pixels(), tmp_path), tmp_path / "out.parquet"
    interrupted(source, target, 1)
    with pytest.raises(UsageError, match="holds an unfinished run"):
        capsedge.batch(MODEL, source, target, threads=1)
    with pytest.raises(UsageError, match="invert was False and is now True"):
        capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            invert=True,
            threads=1,
        )
    with pytest.raises(UsageError, match=r"model was [0-9a-f]+ and is now [0-9a-f]+"):
        capsedge.batch(
            MODEL.replace("-em", "-dynamic"),
            source,
            target,
            resume=True,
            threads=1,
        )
    KINDS["npy"](pixels(9), tmp_path)
    with pytest.raises(UsageError, match="the source has other images"):
        capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            threads=1,
        )


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(), tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(UsageError, match="not empty"):
            capsedge.batch(
                MODEL,
                source,
                tmp_path / "mine",
                resume=resume,
                threads=1,
            )
    assert content(tmp_path / "mine") == {"a.txt": b"mine"}


def _flip(place: Path) -> None:
    part = place / "part-000000.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)


def _cut(place: Path) -> None:
    """Fewer rows, with the metadata of the file as it was."""
    part = place / "part-000000.parquet"
    table, declared = pq.read_table(part), pq.read_metadata(part).metadata or {}
    with pq.ParquetWriter(part, table.schema) as writer:
        writer.write_table(table.slice(0, 1))
        writer.add_key_value_metadata(declared)


def _exchange(place: Path) -> None:
    shutil.copy(place / "part-000001.parquet", place / "part-000000.parquet")


def _exchange_both(place: Path) -> None:
    _exchange(place)
    shutil.copy(place / "_part-000001.json", place / "_part-000000.json")


def _deepen(place: Path) -> None:
    (place / "_part-000000.json").write_text("[" * 10**5)


def _grow(place: Path) -> None:
    with (place / "part-000000.parquet").open("ab") as file:
        file.write(bytes(100))


@pytest.mark.parametrize("output", ["out.parquet", "out"])
@pytest.mark.parametrize("damage", [_flip, _cut, _exchange, _exchange_both, _deepen, _grow])
def test_a_part_that_the_run_did_not_write_is_named(
    damage: Callable[[Path], None], output: str, tmp_path: Path
) -> None:
    source, target = KINDS["npy"](pixels(), tmp_path), tmp_path / output
    place = tmp_path / (f"{output}.parts" if output == "out.parquet" else output)
    interrupted(source, target, 2)
    damage(place)
    with pytest.raises(ArtefactError, match=r"part-000000\.\w+ .* is damaged"):
        capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            threads=1,
        )
    (place / "part-000000.parquet").unlink()  # as the error says
    report = capsedge.batch(
        MODEL,
        source,
        target,
        resume=True,
        threads=1,
    )
    assert (report.resumed, report.images) == (1, COUNT)
    capsedge.batch(MODEL, source, tmp_path / f"whole-{output}", threads=1)
    assert content(target) == content(tmp_path / f"whole-{output}")


def test_a_part_that_changes_during_the_run_is_named(tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(), tmp_path)
    for output, place in (("out.parquet", "out.parquet.parts"), ("out", "out")):
        done = 0

        def third(
            _stage: str, _done: int = 0, _total: int | None = None, place: str = place
        ) -> None:
            nonlocal done
            done += 1
            if done == 3:
                _exchange(tmp_path / place)

        with pytest.raises(ArtefactError, match="is damaged"):
            capsedge.batch(
                MODEL,
                source,
                tmp_path / output,
                threads=1,
                progress=third,
            )
        assert not (tmp_path / output / "_SUCCESS").exists()
        assert output == "out" or not (tmp_path / output).exists()


@pytest.mark.parametrize("output", ["out.parquet", "out"])
@pytest.mark.parametrize("forged", ["{}", "[" * 10**5, "", '{"images": 11}'])
def test_a_mark_of_success_alone_is_no_table(output: str, forged: str, tmp_path: Path) -> None:
    source, target = KINDS["npy"](pixels(), tmp_path), tmp_path / output
    interrupted(source, target, 2)
    place = tmp_path / (f"{output}.parts" if output == "out.parquet" else output)
    (place / "_SUCCESS").write_text(forged)
    report = capsedge.batch(
        MODEL,
        source,
        target,
        resume=True,
        threads=1,
    )
    assert (report.resumed, report.images) == (2, COUNT)
    parts = [target] if target.is_file() else sorted(target.glob("part-*"))
    assert sum(pq.read_metadata(part).num_rows for part in parts) == COUNT


def test_a_finished_folder_is_checked(tmp_path: Path) -> None:
    source, target = KINDS["npy"](pixels(), tmp_path), tmp_path / "out"
    capsedge.batch(MODEL, source, target, threads=1)
    whole = content(target)
    (target / "part-000001.parquet").unlink()
    assert (
        capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            threads=1,
        ).resumed
        == 3
    )
    assert content(target) == whole
    _flip(target)
    with pytest.raises(ArtefactError, match=r"part-000000\.parquet .* is damaged"):
        capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            threads=1,
        )
    (target / "part-000000.parquet").write_bytes(whole["part-000000.parquet"])
    shutil.copy(target / "part-000000.parquet", target / "part-000009.parquet")
    with pytest.raises(UsageError, match=r"part-000009\.parquet"):
        capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            threads=1,
        )


def test_a_finished_file_is_checked(tmp_path: Path) -> None:
    source, target = KINDS["npy"](pixels(), tmp_path), tmp_path / "out.parquet"
    capsedge.batch(MODEL, source, target, threads=1)
    whole = target.read_bytes()
    for damaged in _damage_each(target, whole):
        target.write_bytes(damaged)
        with pytest.raises(UsageError, match="not the table of this run"):
            capsedge.batch(
                MODEL,
                source,
                target,
                resume=True,
                threads=1,
            )
    target.write_bytes(whole)
    assert (
        capsedge.batch(
            MODEL,
            source,
            target,
            resume=True,
            threads=1,
        ).images
        == COUNT
    )


def _damage_each(path: Path, whole: bytes) -> list[bytes]:
    """A bit of the first page, fewer rows, the end."""
    table, declared = pq.read_table(path), pq.read_metadata(path).metadata or {}
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.slice(0, 5))
        writer.add_key_value_metadata(declared)
    short = path.read_bytes()
    path.write_bytes(whole)
    return [whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], short, whole[:-5]]


def test_a_plan_that_is_no_document_is_refused(tmp_path: Path) -> None:
    source, target = KINDS["npy"](pixels(), tmp_path), tmp_path / "out.parquet"
    interrupted(source, target, 2)
    for plan in ("[" * 10**5, "{", "\xff", '{"sha256": 1}'):
        (tmp_path / "out.parquet.parts/_plan.json").write_text(plan, "latin-1")
        with pytest.raises(UsageError, match="another model, source or options"):
            capsedge.batch(
                MODEL,
                source,
                target,
                resume=True,
                threads=1,
            )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_two_runs_do_not_share_an_output(tmp_path: Path) -> None:
    source, target = KINDS["npy"](pixels(), tmp_path), tmp_path / "out.parquet"

    def second(_stage: str, _done: int = 0, _total: int | None = None) -> None:
        with pytest.raises(UsageError, match="Another run is writing"):
            capsedge.batch(
                MODEL,
                source,
                target,
                resume=True,
                threads=1,
            )

    capsedge.batch(MODEL, source, target, threads=1, progress=second)
    assert pq.read_metadata(target).num_rows == COUNT


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_command_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(40_000), tmp_path)
    words = [sys.executable, "-m", "capsedge", "batch", MODEL, str(source), "--threads", "1", "-o"]
    subprocess.run([*words, str(tmp_path / "whole.parquet")], check=True, capture_output=True)
    process = subprocess.Popen(
        [*words, str(tmp_path / "out.parquet")], stderr=subprocess.PIPE, text=True
    )
    parts = tmp_path / "out.parquet.parts"
    while process.poll() is None and len([*parts.glob("part-*")]) < 2:
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode in (130, -9), said
    assert ("--resume" in said) == (number == signal.SIGINT)
    assert not (tmp_path / "out.parquet").exists()
    done = subprocess.run(
        [*words, str(tmp_path / "out.parquet"), "--resume"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "from before" in done.stdout
    assert content(tmp_path / "out.parquet") == content(tmp_path / "whole.parquet")
    assert not os.path.exists(parts)
