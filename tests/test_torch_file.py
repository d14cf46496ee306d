"""Files of torch.save: what is read, what is refused, and what torch may not do on the way."""

from __future__ import annotations

import codecs
import collections
import io
import sys
import tarfile
import tempfile
import threading
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from capsedge.models import torch_file
from capsedge.models.torch_file import BadPickle, NotPlain, StandIn, read_torch
from capsedge.runtime.files import sandbox
from capsedge.runtime.files.archives import BadArchive
from capsedge.spec import limits


class Call:
    """Pickled as the call of anything."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call


def read(path: Path, value: Any, **options: Any) -> Any:
    torch.save(value, path, **options)
    with path.open("rb") as file:
        return read_torch(file)


@pytest.mark.parametrize("new", [True, False])
def test_values_and_tensors(new: bool, tmp_path: Path) -> None:
    shared = [1, "a", b"b", 2.5, None, True, (3, -4)]
    whole = torch.arange(12.0).reshape(3, 4)
    saved = {
        "shared": [shared, shared],
        "ordered": collections.OrderedDict(a=collections.Counter("aab")),
        "views": {"transposed": whole.t(), "inner": whole[1:, 2:], "none": whole[:0]},
        "parameter": torch.nn.Parameter(whole.bfloat16()),
        "default": collections.defaultdict(list, a=[1]),
    }
    found = read(tmp_path / "a.pt", saved, _use_new_zipfile_serialization=new)
    assert found["shared"] == [shared, shared]
    assert found["shared"][0] is found["shared"][1]
    assert found["ordered"] == {"a": {"a": 2, "b": 1}}
    assert {type(found["ordered"]), type(found["ordered"]["a"])} == {dict}
    assert found["default"] == {"a": [1]}
    for name, tensor in saved["views"].items():  # type: ignore[attr-defined]
        assert torch.equal(found["views"][name], tensor), name
    assert not found["parameter"].requires_grad
    assert torch.equal(found["parameter"], whole.bfloat16())


def test_what_is_no_dense_tensor_stands_aside(tmp_path: Path) -> None:
    made = Call(torch.FloatTensor, (9,))  # of memory that nobody has written
    saved = {
        "sparse": torch.eye(2).to_sparse(), "complex": torch.ones(1, dtype=torch.complex64),
        "meta": torch.ones(1, device="meta"), "made": made, "array": np.arange(3.0), 1.5: "gone",
    }  # fmt: skip
    found = read(tmp_path / "a.pt", saved)
    assert found.keys() == {"sparse", "complex", "meta", "made", "array"}
    assert {type(value) for value in found.values()} == {StandIn}


def loop() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(300):
        made = [made]
    return made


@pytest.mark.parametrize("value", [loop(), deep()])
def test_cycles_and_depth(value: list[Any], tmp_path: Path) -> None:
    assert isinstance(read(tmp_path / "a.pt", value), list)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (Call(print, ("called",)), NotPlain, "it names print"),
        (torch.nn.Linear(1, 1), NotPlain, r"it names torch\.nn\.modules\.linear\.Linear"),
        (Call(bytearray, (1 << 40,)), BadPickle, "too much memory"),
        (
            Call(codecs.encode, ("a", "cp1006")),
            BadPickle,
            "cp1006|encodings",  # the file, or its folder if that is listed again
        ),  # a module that is not open yet
        (torch.zeros(1).expand(1 << 30), BadPickle, "limit is 536,870,912"),
    ],
)
def test_refused(
    value: Any, kind: type[Exception], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(kind, match=said):
        read(tmp_path / "a.pt", {"a": value})
    assert capfd.readouterr() == ("", "")


def rewritten(path: Path, changes: dict[str, Any], method: int = zipfile.ZIP_STORED) -> Path:
    """A file of torch.save whose members of these names are changed, packed anew."""
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(16.0)}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w", method) as new:
        folder = old.namelist()[0].split("/")[0]
        for name in old.namelist():
            change = changes.pop(name.split("/", 1)[1], lambda data: data)
            new.writestr(name, change(old.read(name)))
        for name, make in changes.items():
            new.writestr(f"{folder}/{name}", make(b""))
    return path


def test_a_packed_archive_is_read(tmp_path: Path) -> None:
    with rewritten(tmp_path / "a.pt", {}, zipfile.ZIP_DEFLATED).open("rb") as file:
        assert torch.equal(read_torch(file)["a"], torch.arange(16.0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.pkl": lambda data: data.replace(b"K\x10tq", b"K\xfftq")}, "size"),
        ({"data.pkl": lambda data: data[:-1]}, "EOFError"),
        ({"data.pkl": lambda _: bytes(2 << 20)}, "has over 1,048,576 bytes"),
        ({"data/9": lambda _: bytes(9 << 20)}, "it unpacks to"),
        ({"constants.pkl": lambda _: b"N."}, "TorchScript"),
    ],
)
def test_archives_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewritten(tmp_path / "a.pt", dict(changes), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(limits, "UNPACKED_BYTES", 8 << 20)
    monkeypatch.setattr(limits, "PICKLE_BYTES", 1 << 20)
    with path.open("rb") as file, pytest.raises((BadArchive, BadPickle), match=said):
        read_torch(file)


def test_other_pickle_protocols_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadPickle) as caught:
        read(tmp_path / "a.pt", {"a": "b"}, pickle_protocol=4)
    assert (
        "a pickle protocol other than"
        in torch_file.unreadable_torch_file(tmp_path, caught.value).fix
    )


def test_nothing_is_unpacked_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tar archive that begins as files of PyTorch before 1.6 do: torch reads tar archives too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "a.pt"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo(torch_file._LEGACY.decode("latin-1")))
    assert path.read_bytes().startswith(torch_file._LEGACY)
    with path.open("rb") as file, pytest.raises(BadPickle):
        read_torch(file)
    assert [found.name for found in tmp_path.iterdir()] == ["a.pt"]


def test_storages_without_values_are_zeros(tmp_path: Path) -> None:
    """An old file that claims a storage and does not bring it: no values of this process get out."""
    torch.save({"a": torch.ones(64)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "a.pt").read_bytes()
    end = data.rindex(b"\x80\x02]")  # the list of storages
    (tmp_path / "a.pt").write_bytes(data[:end] + b"\x80\x02].")
    with (tmp_path / "a.pt").open("rb") as file:
        assert torch.equal(read_torch(file)["a"], torch.zeros(64))


def test_in_a_thread_after_parallel_work(tmp_path: Path) -> None:
    """The process is a fork of one with threads, and of another thread than the first."""
    large = torch.rand(1 << 20)
    assert (large + large).sum() > 0
    found: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for new in (True, False):
            work = threading.Thread(
                target=lambda new=new: found.append(
                    read(tmp_path / "a.pt", {"a": large}, _use_new_zipfile_serialization=new)
                )
            )
            work.start()
            work.join()
    assert all(torch.equal(value["a"], large) for value in found)
    assert len(found) == 2


@pytest.mark.thorough
def test_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems where a fork is of no use, and the memory of a process is not limited."""
    monkeypatch.setattr(
        sandbox, "sys", SimpleNamespace(platform="darwin", executable=sys.executable)
    )
    monkeypatch.setattr(limits, "TORCH_MEMORY", 1 << 40)
    assert torch.equal(read(tmp_path / "a.pt", {"a": torch.ones(3)})["a"], torch.ones(3))
    with pytest.raises(NotPlain, match="it names print"):
        read(tmp_path / "a.pt", Call(print, ("called",)))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pathlib", "WindowsPath"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "WindowsPath"),
        ("pathlib._local", "PurePosixPath"),
        ("omegaconf.dictconfig", "DictConfig"),
        ("easydict", "EasyDict"),
    ],
)
def test_data_of_other_systems_and_libraries_is_skipped(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = type(sys)(module)
    kind = type(name, (dict,) if name == "EasyDict" else (), {"__module__": module})
    setattr(made, name, kind)
    if module == "pathlib":
        monkeypatch.setattr(sys.modules[module], name, kind)
    else:
        for parent in {module.split(".")[0], module} - {"pathlib"}:
            monkeypatch.setitem(
                sys.modules, parent, made if parent == module else type(sys)(parent)
            )
    value = kind()
    value.lr = 1e-3
    value.__dict__["nested"] = {"sizes": [1, 2]}
    found = read(tmp_path / "a.pt", {"config": value, "weights": torch.ones(2)})
    assert torch.equal(found["weights"], torch.ones(2))
    assert type(found["config"]) in (StandIn, dict)
