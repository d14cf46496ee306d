"""Regular files are opened, and nothing else."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from capsedge.errors import UsageError
from capsedge.runtime.files import reading
from tests.paths.privileges import closed, unprivileged


def test_reads_through_links(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    with reading.open_regular_file(tmp_path / "link") as file:
        assert reading.file_size(file) == 3
        assert file.read() == b"abc"


def test_refuses_what_is_no_file(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    for name, why in {
        "pipe": "a pipe", "socket": "a socket", "/dev/null": "a device", "": "a folder",
        "none": "no such file", "one": "symbolic links", "n" * 300: "name too long",
        "a\0b": "null byte", "a\ud800": "surrogates",
    }.items():  # fmt: skip
        with (
            pytest.raises(UsageError, match=f"(?i){why}"),
            reading.open_regular_file(tmp_path / name),
        ):
            pass


def test_a_pipe_in_the_place_of_a_file_that_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a").write_bytes(b"abc")
    real = os.stat

    def swap(path: object, **options: object) -> os.stat_result:
        found = real(path, **options)  # type: ignore[arg-type]
        (tmp_path / "a").unlink()
        os.mkfifo(tmp_path / "a")
        return found

    monkeypatch.setattr(os, "stat", swap)
    with pytest.raises(UsageError, match="a pipe"), reading.open_regular_file(tmp_path / "a"):
        pass


def test_errors_of_the_block_are_its_own(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"), reading.open_regular_file(tmp_path / "a"):
        raise ValueError("damaged")


def test_kind(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    found = {name: reading.path_kind(tmp_path / name) for name in ("a", "", "pipe", "none", "a/b")}
    assert found == {"a": "file", "": "folder", "pipe": "pipe", "none": None, "a/b": None}
    assert reading.path_kind("/dev/null") == "device"


def test_a_folder_that_may_not_be_searched(tmp_path: Path):
    code = (
        "import sys\n"
        "from capsedge.errors import UsageError\n"
        "from capsedge.runtime.files import reading, writing\n"
        "write = lambda path: writing.write_bytes(path, b'')\n"
        "for call in (reading.path_kind, writing.sha256, writing.check_writable, write):\n"
        "    try: call(sys.argv[1])\n"
        "    except UsageError as error: print(error.why)"
    )
    with closed(tmp_path / "closed") as folder:
        done = unprivileged([sys.executable, "-c", code, str(folder / "a")])
    assert done.stdout == "Permission denied.\n" * 4, done.stdout + done.stderr
