"""Outputs are whole or absent, and replace nothing but a plain file of their name."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsedge.errors import ArtefactError, EnvironmentProblem, UsageError
from capsedge.runtime.files import writing
from capsedge.runtime.files.writing import (
    check_apart,
    check_writable,
    sha256,
    temporary_folder,
    write_bytes,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path):
    target = tmp_path / "a"
    write_bytes(target, b"one")
    write_text(target, "zwei: ü")
    assert target.read_text(encoding="utf-8") == "zwei: ü"
    assert names(tmp_path) == ["a"]


@pytest.fixture(params=[0o022, 0o077, 0o007])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_mode_is_that_of_open(tmp_path: Path, umask: int):
    write_bytes(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_threads_do_not_change_the_umask(tmp_path: Path):
    """Files that other threads make meanwhile get the mode that they should."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            write_bytes(tmp_path / f"{threading.get_ident()}", b"x")

    before = os.umask(0o077)
    threads = [threading.Thread(target=write) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for k in range(300):
            (tmp_path / "plain").mkdir()
            assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o700, k
            (tmp_path / "plain").rmdir()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        os.umask(before)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444, 0o666])
def test_mode_of_the_older_file_is_kept(tmp_path: Path, mode: int, umask: int):
    target = tmp_path / "a"
    target.write_text("old")
    target.chmod(mode)
    write_text(target, "new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owner_of_the_older_file_is_kept(tmp_path: Path):
    target = tmp_path / "a"
    target.write_text("old")
    os.chown(target, 1234, 5678)
    target.chmod(0o640)
    write_text(target, "new")
    found = target.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 5678, 0o640)


def test_a_new_version_is_private_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a").write_text("secret")
    (tmp_path / "a").chmod(0o600)
    seen: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a", "more secrets")
    assert seen == [0o600]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/file").write_text("old")
    (tmp_path / "first").symlink_to("inner/second")
    (tmp_path / "inner/second").symlink_to("file")
    write_text(tmp_path / "first", "new")
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "inner/second").is_symlink()
    assert not (tmp_path / "inner/file").is_symlink()
    assert (tmp_path / "inner/file").read_text() == "new"
    assert names(tmp_path / "inner") == ["file", "second"]


def test_a_dangling_link_is_filled(tmp_path: Path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to("inner/file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "inner/file").read_text() == "new"
    assert os.readlink(tmp_path / "link") == "inner/file"


def places(folder: Path) -> dict[str, Path]:
    """Where nothing is written: name and why."""
    made: dict[str, Path] = {}
    os.mkfifo(folder / "pipe")
    made["pipe"] = folder / "pipe"
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(folder / "socket"))
    made["socket"] = folder / "socket"
    made["device"] = Path("/dev/null")
    (folder / "to-device").symlink_to("/dev/full")
    made["link to a device"] = folder / "to-device"
    made["folder"] = folder
    made["no folder"] = folder / "none" / "a"
    (folder / "file").write_text("")
    made["below a file"] = folder / "file" / "a"
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    made["loop"] = folder / "one"
    (folder / "dangling").symlink_to("none/a")
    made["dangling link to no folder"] = folder / "dangling"
    made["long name"] = folder / ("n" * 300)
    made["long path"] = folder.joinpath(*["n" * 200] * 30)
    made["null byte"] = folder / "a\0b"
    made["surrogate"] = folder / "a\ud800b"
    made["kernel's"] = Path("/proc/self/fd/1")
    return made


@pytest.mark.parametrize("write", [write_bytes, lambda place, _: check_writable(place)])
def test_no_place(tmp_path: Path, write: object):
    for name, place in places(tmp_path).items():
        before = names(tmp_path)
        with pytest.raises(UsageError, match=r"Cannot write|No file can be named"):
            write(place, b"x")  # type: ignore[operator]
        assert names(tmp_path) == before, name
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_the_longest_name(tmp_path: Path):
    write_text(tmp_path / ("n" * 255), "x")
    assert names(tmp_path) == ["n" * 255]


def test_names_of_any_bytes(tmp_path: Path):
    target = tmp_path / os.fsdecode(b"a\xff\nb")
    write_text(target, f"of {target.name}")
    assert target.read_text().startswith("of a")


@pytest.mark.parametrize("failure", [RuntimeError("bug"), KeyboardInterrupt()])
def test_failure_keeps_the_old_file(
    tmp_path: Path, failure: BaseException, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "a"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise failure

    for call in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(type(failure)):
                write_text(target, "new")
        assert target.read_text() == "old"
        assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_full_disk(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch):
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(EnvironmentProblem, match=os.strerror(code)):
        write_bytes(tmp_path / "a", b"half")
    assert names(tmp_path) == []


def stale(folder: Path) -> Path:
    path = folder / f"{writing._PREFIX}{'0' * 16}{writing._SUFFIX}"
    path.write_bytes(b"half")
    return path


def test_stale_temporary_files_are_removed(tmp_path: Path):
    stale(tmp_path)
    write_text(tmp_path / "a", "x")
    assert names(tmp_path) == ["a"]


def test_temporary_files_in_use_are_not(tmp_path: Path):
    used = stale(tmp_path)
    link = tmp_path / f"{writing._PREFIX}link{writing._SUFFIX}"
    link.symlink_to("a")
    with open(used, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_text(tmp_path / "a", "x")
        assert names(tmp_path) == sorted([used.name, link.name, "a"])


def test_writers_of_one_file_at_once(tmp_path: Path):
    """Each removes what it takes for stale, and none the other's."""
    failures: list[BaseException] = []

    def write(k: int) -> None:
        try:
            for _ in range(50):
                write_bytes(tmp_path / "a", bytes([k]) * 10_000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names(tmp_path) == ["a"]
    assert len(set((tmp_path / "a").read_bytes())) == 1


def test_outputs_apart_from_inputs(tmp_path: Path):
    source = tmp_path / "model"
    source.write_text("model")
    (tmp_path / "link").symlink_to("model")
    os.link(source, tmp_path / "hard")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder-link").symlink_to("folder")
    (tmp_path / "folder/link").symlink_to("../model")
    for other in (
        source, tmp_path / "link", tmp_path / "hard", tmp_path / "folder/../model",
        tmp_path / "folder-link/link",
    ):  # fmt: skip
        with pytest.raises(UsageError, match="is an input"):
            check_apart([tmp_path / "new", other], [source])
        with pytest.raises(UsageError, match="is an input"):
            check_apart([source], [other])
    check_apart([tmp_path / "new", tmp_path / "folder/new"], [source, tmp_path / "missing"])


def test_outputs_apart_from_each_other(tmp_path: Path):
    (tmp_path / "link").symlink_to("new")
    with pytest.raises(UsageError, match="Another output"):
        check_apart([tmp_path / "new", tmp_path / "link"], [])


def test_outputs_in_a_folder_of_inputs(tmp_path: Path):
    data = tmp_path / "data"
    (data / "test/cat").mkdir(parents=True)
    for name in ("a.png", "test/cat/b.JPG", "train-images-idx3-ubyte", "data_batch_1", "old.json"):
        (data / name).write_text(name)
    os.link(data / "a.png", tmp_path / "hard.png")
    (tmp_path / "elsewhere.npz").write_text("npz")
    (data / "train.npz").symlink_to("../elsewhere.npz")
    for output in (
        data / "a.png", data / "test/cat/b.JPG", data / "train-images-idx3-ubyte",
        data / "data_batch_1", tmp_path / "hard.png", tmp_path / "elsewhere.npz",
    ):  # fmt: skip
        with pytest.raises(UsageError, match="is an input"):
            check_apart([output], [data])
    check_apart([data / "new.png", data / "old.json"], [data])


def test_temporary_folder_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError), temporary_folder() as folder:  # noqa: PT012
        (folder / "a").write_text("x")
        raise RuntimeError
    assert names(tmp_path) == []


def test_temporary_folder_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EnvironmentProblem, match="TMPDIR"), temporary_folder():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(writing.reading, "is_full", lambda _: True)
    with pytest.raises(EnvironmentProblem, match="TMPDIR"), temporary_folder():
        raise ValueError("cut off")
    with pytest.raises(ArtefactError), temporary_folder():
        raise ArtefactError("of its own")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(EnvironmentProblem, match="TMPDIR"), temporary_folder():
        pass


def test_sha256(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256(tmp_path / "a") == digest
