"""Keras files: every layout is read, and no file makes the reader open another one."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")

from capsedge.errors import ArtefactError  # noqa: E402
from capsedge.importers.keras_file import read_hdf5  # noqa: E402
from capsedge.importers.weights_file import read_weights  # noqa: E402
from tests.importers import keras_files  # noqa: E402
from tests.importers.watching import watching  # noqa: E402

NAMED = {
    f"{layer}/{name}": value
    for layer, ws in keras_files.LAYERS.items()
    for name, value in ws.items()
}
COUNTED = {
    f"{layer}/{k}": value
    for layer, ws in keras_files.LAYERS.items()
    for k, value in enumerate(ws.values())
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("text", [bytes, str])
def test_keras_1_and_2(tmp_path: Path, whole: bool, text: type) -> None:
    packed = {"compression": "gzip", "shuffle": True, "fletcher32": True} if whole else {}
    found = read_weights(keras_files.keras2(tmp_path / "m.h5", whole, text, **packed))
    assert found.shapes == {name: value.shape for name, value in NAMED.items()}
    assert all(np.array_equal(found.tensors[name], value) for name, value in NAMED.items())
    assert found.lambdas == (("scale",) if whole else ())
    assert "2.2.4" in found.format


@pytest.mark.parametrize("base", ["layers", "_layer_checkpoint_dependencies"])
def test_keras_3(tmp_path: Path, base: str) -> None:
    keras_files.keras3(tmp_path / "m.weights.h5", base)
    found = read_weights(tmp_path / "m.weights.h5")
    assert {name: value.tolist() for name, value in found.tensors.items()} == {
        name: value.tolist() for name, value in COUNTED.items()
    }


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archive_of_keras_3(tmp_path: Path, method: int) -> None:
    found = read_weights(keras_files.archive(tmp_path / "m.keras", method))
    assert found.tensors.keys() == COUNTED.keys()
    assert found.config == keras_files.CONFIG
    assert found.lambdas == ("scale",)


def external_link(file: h5py.File, secret: Path) -> None:
    file["model_weights"] = h5py.ExternalLink(str(secret), "/secret")


def external_link_to_a_group_on_the_way(file: h5py.File, secret: Path) -> None:
    file.attrs["layer_names"] = [b"conv1"]
    file["conv1"] = h5py.ExternalLink(str(secret), "/")


def soft_link(file: h5py.File, secret: Path) -> None:
    file["far"] = h5py.ExternalLink(str(secret), "/")
    del file["far"]
    file["near"] = h5py.SoftLink("/elsewhere")


def external_storage(file: h5py.File, secret: Path) -> None:
    file.create_dataset("w", (16,), "u1", external=[(str(secret), 0, 16)])


def virtual_data_set(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "secret", (4,), "f4")
    file.create_virtual_dataset("w", layout)


def printf_virtual_data_set(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f4", maxshape=(None,))
    source = h5py.VirtualSource(str(secret), "secret", (4,), "f4", maxshape=(None,))
    layout[h5py.h5s.UNLIMITED and slice(0, h5py.h5s.UNLIMITED)] = source[0 : h5py.h5s.UNLIMITED]
    file.create_virtual_dataset("w", layout)


ELSEWHERE: dict[str, Callable[[h5py.File, Path], None]] = {
    "external link": external_link,
    "external link on the way": external_link_to_a_group_on_the_way,
    "external storage": external_storage,
    "virtual data set": virtual_data_set,
    "virtual data set without end": printf_virtual_data_set,
}


def _secret(folder: Path) -> Path:
    path = folder / "secret.h5"
    with h5py.File(path, "w") as file:
        file["secret"] = np.full(4, 42, np.float32)
    return path


@pytest.mark.sample(1)
@pytest.mark.parametrize("attack", ELSEWHERE)
def test_no_other_file_is_opened(tmp_path: Path, attack: str) -> None:
    secret = _secret(tmp_path)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        ELSEWHERE[attack](file, secret)
    with watching(secret) as watch:
        with pytest.raises(ArtefactError, match="refused"):
            read_weights(tmp_path / "m.h5")
        assert not watch.opened()
        with h5py.File(tmp_path / "m.h5") as file:  # the attack is one: h5py itself is led there
            file.visititems(lambda _, item: item[()] if isinstance(item, h5py.Dataset) else None)
            for name in file:
                file.get(name)
        assert watch.opened()


@pytest.mark.sample(1)
@pytest.mark.parametrize("attack", ELSEWHERE)
def test_no_other_file_is_opened_by_what_the_checks_overlook(tmp_path: Path, attack: str) -> None:
    """With open doors shut, h5py fails by itself: nothing rests on the checks alone."""
    secret = _secret(tmp_path)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        ELSEWHERE[attack](file, secret)
    program = (
        "import io, sys, numpy, h5py\n"
        "from capsedge.importers.hdf5_worker import _rehearse\n"
        "from capsedge.runtime.files.sandbox import forbid_new_files\n"
        "_rehearse(); data = sys.stdin.buffer.read(); forbid_new_files()\n"
        "file = h5py.File(h5py.h5f.open_file_image(data))\n"
        "for name in list(file):\n"
        "    try: print(file[name][...])\n"
        "    except Exception: pass\n"
    )
    with watching(secret) as watch:
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=(tmp_path / "m.h5").read_bytes(),
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert not watch.opened()
        assert b"42" not in done.stdout


def _lzf(file: h5py.File) -> None:
    file.create_dataset("w", data=np.zeros(100, np.float32), compression="lzf")


def _scale_offset(file: h5py.File) -> None:
    file.create_dataset("w", data=np.zeros(100, np.int32), scaleoffset=True, chunks=(10,))


def _claims(file: h5py.File) -> None:
    file.create_dataset("w", (1 << 20, 1 << 12), "f4", chunks=(1, 1024))


def _claims_more_than_64_bits(file: h5py.File) -> None:
    file.create_dataset("w", (1 << 39, 1 << 39), "f4", chunks=(1, 1024))


def _compressed(file: h5py.File) -> None:
    chunk = zlib.compress(bytes(1 << 24), 9)
    array = file.create_dataset("w", (40 << 22,), "f4", chunks=(1 << 22,), compression=9)
    for k in range(40):
        array.id.write_direct_chunk((k << 22,), chunk)


def _large_chunk(file: h5py.File) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((1 << 29,))
    plan.set_deflate(9)
    space = h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,))
    h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F32LE, space, plan)


def _references(file: h5py.File) -> None:
    file.create_dataset("w", data=[file.ref], dtype=h5py.ref_dtype)


def _named_type(file: h5py.File) -> None:
    file["t"] = np.dtype("f4")


def _array_of_a_named_type(file: h5py.File) -> None:
    file["t"] = np.dtype("f4")
    file.create_dataset("w", (3,), file["t"])


def _records(file: h5py.File) -> None:
    file.create_dataset("w", (3,), np.dtype([("a", "f4")]))


def _vlen(file: h5py.File) -> None:
    file.create_dataset("w", (3,), h5py.vlen_dtype(np.float32))


def _loop(file: h5py.File) -> None:
    file.create_group("a")["b"] = file["/"]


def _attribute_of_numbers(file: h5py.File) -> None:
    file.attrs["layer_names"] = [1, 2]


def _many_groups(file: h5py.File) -> None:
    for k in range(70_000):
        file.create_group(str(k))


HARMFUL = [
    _lzf, _scale_offset, _claims, _claims_more_than_64_bits, _compressed, _large_chunk, _references,
    _named_type, _array_of_a_named_type, _records, _vlen, _loop, _attribute_of_numbers,
    pytest.param(_many_groups, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("make", HARMFUL, ids=lambda f: f.__name__.strip("_"))
def test_refused(tmp_path: Path, make: Callable[[h5py.File], None]) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        make(file)
    with pytest.raises(ArtefactError, match="refused"):
        read_weights(tmp_path / "m.h5")


def test_a_soft_link_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        soft_link(file, tmp_path / "x.h5")
    with pytest.raises(ArtefactError, match="link to another location"):
        read_weights(tmp_path / "m.h5")


def test_a_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    """h5py would resolve it, through links that were never judged."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("a!b", data=np.zeros(3, np.float32))
    data = (tmp_path / "m.h5").read_bytes()
    assert data.count(b"a!b") == 1
    (tmp_path / "m.h5").write_bytes(data.replace(b"a!b", b"a/b"))
    with pytest.raises(ArtefactError, match="is a path"):
        read_weights(tmp_path / "m.h5")


@pytest.mark.parametrize("content", [b"", b"no HDF5", b"\x89HDF\r\n\x1a\n" + bytes(200)])
def test_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.h5").write_bytes(content)
    with pytest.raises(
        ArtefactError, match="damaged" if content.startswith(b"\x89") else "not an HDF5 file"
    ):
        read_weights(tmp_path / "m.h5")


def test_a_lambda_in_an_archive_is_not_run(tmp_path: Path) -> None:
    """Keras 3 stores the code of a Lambda as base64 of marshal; here it is text like any other."""
    config = {"class_name": "Lambda", "config": {"name": "evil", "function": {"code": "4wEAAAA="}}}
    found = read_weights(keras_files.archive(tmp_path / "m.keras", config=config))
    assert found.lambdas == ("evil",)


def test_an_archive_in_disguise(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("config.json", "{}")
        made.writestr("model.weights.h5", bytes(1 << 20))
    (tmp_path / "m.keras").write_bytes(buffer.getvalue())
    with pytest.raises(ArtefactError, match="refused"):
        read_weights(tmp_path / "m.keras")


@pytest.mark.sample(1)
@pytest.mark.parametrize("module", ["h5py", "numpy", "json", "runpy"])
def test_modules_beside_the_file_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Whoever sends a file may send a folder."""
    path = keras_files.keras2(tmp_path / "m.h5")
    (tmp_path / f"{module}.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    assert read_weights(path).tensors
    assert not (tmp_path / "ran").exists()


def test_reading_needs_no_name(tmp_path: Path) -> None:
    """The process gets an open file: a name that changes meanwhile means nothing to it."""
    path = keras_files.keras2(tmp_path / "m.h5")
    with path.open("rb") as file:
        path.unlink()
        assert "model_weights/capsule/capsule/W:0" in read_hdf5(file).arrays
