"""The readers under fuzz: what each makes of bytes, its seeds, and the errors that it may end with.

A reader ends well or with one of the package's errors. Everything else is a finding.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.errors import CapsedgeError, ExitCode
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs, Preprocessing
from tests.fuzz import option_values, papers_sets, requests

PREP = Preprocessing(8, 8, 1)


@dataclass(frozen=True)
class Reader:
    """A reader.

    Attributes:
        read: reads bytes; may raise a CapsedgeError.
        seeds: valid inputs to start from.
        modules: whose coverage guides the search.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    modules: tuple[str, ...]


def check(reader: Reader, data: bytes) -> None:
    """Read an input.

    Raises:
        BaseException: the reader ended in another way than it may.
    """
    _each(lambda: reader.read(data))


def _each(*calls: Callable[[], object]) -> None:
    """Make all calls; each ends well or with an error of the package that has words and an exit code."""
    for call in calls:
        try:
            call()
        except CapsedgeError as error:
            if error.exit_code == ExitCode.BUG or not error.what.strip():
                raise AssertionError(f"an error without exit code or words: {error!r}") from error


@functools.cache
def _folder() -> Path:
    place = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="capsedge-fuzz-", dir=place if place.is_dir() else None))


def _file(name: str, data: bytes) -> Path:
    path = _folder() / f"{os.getpid()}-{name}"
    path.write_bytes(data)
    return path


# Images.


def _read_image(data: bytes) -> None:
    from capsedge.runtime.images.preprocessing import prepare

    prepare(_file("image.png", data), PREP)


def _images() -> Iterable[bytes]:
    from PIL import Image

    ramp = np.arange(12 * 9, dtype=np.uint8).reshape(12, 9)
    for mode in ("L", "LA", "RGB", "RGBA", "P", "1", "I;16"):
        image = Image.fromarray(ramp).convert(mode) if mode != "I;16" else Image.new(mode, (9, 12))
        for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
            with contextlib.suppress(OSError):
                buffer = io.BytesIO()
                image.save(buffer, kind)
                yield buffer.getvalue()
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "JPEG", exif=exif, progressive=True)
    yield buffer.getvalue()
    for compression in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg"):
        buffer = io.BytesIO()
        Image.fromarray(ramp).save(buffer, "TIFF", compression=compression, exif=exif)
        yield buffer.getvalue()
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "TIFF", big_tiff=True)
    yield buffer.getvalue()


# Data sets. The first byte chooses how the rest is packed, so that mutations reach below compression.


def _read_npz(data: bytes) -> None:
    from capsedge.datasets import read_images, read_split

    if data[:1] in (b"\0", b"\1"):
        method = zipfile.ZIP_DEFLATED if data[0] else zipfile.ZIP_STORED
        head, _, labels = data[1:].partition(b"||")
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr("images.npy", head)
            if labels:
                archive.writestr("labels.npy", labels)
        data = buffer.getvalue()
    path = _file("a.npz", data)
    _each(
        lambda: read_images(path, PREP, "test"),
        lambda: read_images(path, None, "test", 3),
        lambda: read_split(path, "train", PREP, 2),
    )


def _npz() -> Iterable[bytes]:
    pixels, labels = np.zeros((5, 8, 8), np.uint8), np.arange(5)
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, images=pixels, labels=labels)
        yield buffer.getvalue()
    for array in (pixels, pixels.astype(">f4")[:, None], np.asfortranarray(pixels[..., None])):
        parts = []
        for part in (array, labels.astype(np.float64)):
            buffer = io.BytesIO()
            np.save(buffer, part)
            parts.append(buffer.getvalue())
        yield b"\0" + b"||".join(parts)
        yield b"\1" + b"||".join(parts)


def _read_idx(data: bytes) -> None:
    from capsedge.datasets import array_files

    content = gzip.compress(data[1:], 1, mtime=0) if data[:1] == b"\2" else data
    path = _file("x-images-idx3-ubyte.gz", content)
    _each(lambda: array_files.read(path), lambda: array_files.read(path, 3))


def _idx() -> Iterable[bytes]:
    plain = struct.pack(">HBB3I", 0, 8, 3, 5, 4, 4) + bytes(range(80))
    labels = struct.pack(">HBBI", 0, 8, 1, 5) + bytes(5)
    packed = gzip.compress(plain, mtime=0)
    yield from (plain, labels, packed, packed + gzip.compress(b"", mtime=0), b"\2" + plain)


def _read_cifar(data: bytes) -> None:
    from capsedge.datasets import cifar

    cifar.read(_file("data_batch_1", data))


def _cifar() -> Iterable[bytes]:
    rows = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    for protocol in range(6):
        batch = {b"data": rows, b"labels": [3, 1], b"batch_label": b"x", b"filenames": [b"a", b"b"]}
        yield pickle.dumps(batch, protocol)
        yield pickle.dumps({"data": np.asfortranarray(rows), "labels": [3, 1]}, protocol)


# Checkpoints.


def _read_torch(data: bytes) -> None:
    from capsedge.models.checkpoint import load_checkpoint

    load_checkpoint(_file("m.pt", _with_pickle(_checkpoint(), data)))


def _load_weights(data: bytes) -> None:
    import torch

    from capsedge.models.user.weights import load_weights

    load_weights(torch.nn.Linear(4, 4), _file("m.pt", _with_pickle(_checkpoint(), data)))


def _torch() -> Iterable[bytes]:
    import torch

    yield _checkpoint()
    yield _pickle_of(_checkpoint())
    values = {
        "a": torch.zeros(4, 4).t(),
        "b": torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16)),
    }
    buffer = io.BytesIO()
    torch.save({"config": {}, "state_dict": values}, buffer)
    yield buffer.getvalue()


@functools.cache
def _checkpoint() -> bytes:
    import torch

    from capsedge.models import build

    model = build(small_config())
    buffer = io.BytesIO()
    torch.save({"config": model.config.to_dict(), "state_dict": model.state_dict()}, buffer)
    return buffer.getvalue()


def _pickle_of(saved: bytes) -> bytes:
    """The pickle of a file of torch.save, marked as one."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        return b"\3" + archive.read(name)


def _with_pickle(saved: bytes, data: bytes) -> bytes:
    """A file of torch.save with another pickle, where the data is marked as one; else the data."""
    if data[:1] != b"\3":
        return data
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, data[1:] if name.endswith("data.pkl") else old.read(name))
    return buffer.getvalue()


def small_config() -> Any:
    from capsedge.models.configs import CapsNetConfig, Conv

    return CapsNetConfig(
        class_names=("a", "b"),
        preprocessing=PREP,
        stem=(Conv(2, 3),),
        primary_types=1,
        primary_dim=2,
        primary_kernel=3,
        capsule_dim=2,
        decoder=(3,),
    )


def _read_state(data: bytes) -> None:
    from capsedge.models.training.state import read_state

    parts, identity, saved = run()
    state = read_state(_file("last.pt", _with_pickle(saved, data)), identity, "", parts, 4, 5)
    for name, part in parts.items():
        part.load_state_dict(state[name])


@functools.cache
def run() -> tuple[dict[str, Any], str, bytes]:
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20)
    for _ in range(5):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
    parts = {"model": model, "average": model, "optimizer": optimizer, "scheduler": scheduler}
    history = json.dumps([{"epoch": 1, "loss": 0.5, "seconds": 1.0}])
    buffer = io.BytesIO()
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**state, "identity": "x", "history": history}, buffer)
    return parts, "x", buffer.getvalue()


def _state() -> Iterable[bytes]:
    yield run()[2]
    yield _pickle_of(run()[2])


def _read_safetensors(data: bytes) -> None:
    from capsedge.models.checkpoint import load_checkpoint
    from capsedge.runtime.inspection import inspect_file as inspect

    if data[:1] == b"{":  # a header, with its length before it and a few tensors behind it
        data = (
            struct.pack("<Q", len(data)) + data + bytes(1844 if b"capsedge.config" in data else 64)
        )
    path = _file("m.safetensors", data)
    _each(
        lambda: json.dumps(inspect(path).to_dict(), allow_nan=False), lambda: load_checkpoint(path)
    )


def _safetensors() -> Iterable[bytes]:
    from capsedge.models import build
    from capsedge.models.checkpoint import save_checkpoint

    path = _folder() / "seed.safetensors"
    save_checkpoint(build(small_config()), path)
    data = path.read_bytes()
    yield data
    (length,) = struct.unpack("<Q", data[:8])
    yield data[8 : 8 + length]
    yield b'{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]}}'


def _read_config(data: bytes) -> None:
    from capsedge.models.checkpoint import _shapes
    from capsedge.models.configs import config_from_dict
    from capsedge.runtime.files.documents import MalformedJson, parse

    try:
        values = parse(data)
    except MalformedJson:
        return
    _shapes(config_from_dict(values))


def _configs() -> Iterable[bytes]:
    from capsedge.models.registry import MODELS

    for name in ("digits-dynamic", "digits-em", "digits-attention", "em-cifar10-resnet"):
        yield json.dumps(MODELS[name].to_dict()).encode()
    yield json.dumps(small_config().to_dict()).encode()


# Weights to import.


def _read_weights(data: bytes) -> None:
    from capsedge.importers.identify import identify
    from capsedge.importers.weights_file import read_weights

    if data[:1] == b"{":
        data = struct.pack("<Q", len(data)) + data + bytes(64)
    suffixes = {b"PK": (".pt", ".npz"), b"\3": (".pt",)}
    paths = [
        _file(f"w{suffix}", _with_pickle(_training(), data))
        for suffix in next(
            (s for h, s in suffixes.items() if data.startswith(h)), (".safetensors",)
        )
    ]
    _each(*(lambda path=path: identify(read_weights(path)) for path in paths))  # type: ignore[misc]


@functools.cache
def _training() -> bytes:
    """A file as a training script writes it: the state dict beside other things."""
    import argparse

    import torch

    state = {"module.conv1.weight": torch.zeros(2, 1, 3, 3), "module.conv1.bias": torch.zeros(2)}
    buffer = io.BytesIO()
    around = {"epoch": 3, "best": np.float64(0.5), "args": argparse.Namespace(lr=0.1)}
    torch.save({"state_dict": state, **around}, buffer)
    return buffer.getvalue()


def _weights() -> Iterable[bytes]:
    yield _training()
    yield _pickle_of(_training())
    yield b'{"conv1.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[0,64]}}'
    buffer = io.BytesIO()
    np.savez(buffer, **{"conv1.weight": np.zeros((2, 1, 3, 3), np.float32)})
    yield buffer.getvalue()


def _read_keras(data: bytes) -> None:
    """A Keras file, which the sandboxed process opens; after the byte 4, only the answer of that process."""
    from capsedge.importers import keras_file
    from capsedge.importers.keras_file import BadHdf5, content_of
    from capsedge.importers.weights_file import read_weights
    from capsedge.runtime.files.sandbox import SandboxResult

    if data[:1] == b"\4":
        with contextlib.suppress(BadHdf5):
            keras_file.keras_file_weights(
                content_of(SandboxResult(0, io.BytesIO(data[1:]), "")), None, "Keras"
            )
        return
    suffix = ".keras" if data[:2] == b"PK" else ".h5"
    read_weights(_file(f"k{suffix}", data))


def _keras() -> Iterable[bytes]:
    from tests.importers import keras_files

    yield keras_files.archive(_folder() / "seed.keras").read_bytes()
    yield keras_files.keras2(_folder() / "seed.h5").read_bytes()
    header = {
        "arrays": {"a/a/W:0": ["<f4", [2, 2]], "b/vars/0": ["<f8", [1]]},
        "texts": {"": {"layer_names": ["a"]}, "a": {"weight_names": ["a/W:0"]}},
    }
    yield b"\4" + json.dumps(header).encode() + b"\n" + bytes(24)
    yield b'\4{"refused": "it is damaged"}\n'


def _read_key_map(data: bytes) -> None:
    from capsedge.importers import key_map
    from capsedge.importers.family import Weights

    keys = key_map.read_key_map(_file("keys.toml", data))
    key_map.apply(keys, Weights({"a": np.zeros((2, 3), np.float32)}, ""))


def _key_maps() -> Iterable[bytes]:
    steps = b"{reshape = [3, 2]}, {transpose = [1, 0]}"
    yield b'ignore = ["b*"]\n[tensors]\na = ["x", ' + steps + b"]\n[model]\nepsilon = 1e-8"


# Sources of `capsedge batch`.


def _read_source(path: Path) -> None:
    from capsedge.batch_inference.sources import open_source

    source = open_source(str(path))
    for part in source.parts():
        for item in source.read(part):
            assert bool(item.error) == (item.image is None)
            assert isinstance(item.image, (bytes, np.ndarray, type(None)))


def _read_parquet(data: bytes) -> None:
    _read_source(_file("s.parquet", data))


def _parquets() -> Iterable[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = pa.array([b"one", None, b"three", b"three"], pa.binary())
    pixels = [[[1, 2], [3, 4]], None, [[5, 6], [7, 8]], []]
    for column in (
        content, pa.StructArray.from_arrays([content], ["bytes"]),
        pa.array(pixels, pa.list_(pa.list_(pa.uint8()))), pa.array([[0.5, 1.5]] * 4, pa.list_(pa.float32())),
    ):  # fmt: skip
        for options in (
            {}, {"compression": "none", "use_dictionary": False, "row_group_size": 2},
            {"compression": "zstd", "data_page_version": "2.0", "write_page_checksum": True},
        ):  # fmt: skip
            buffer = io.BytesIO()
            pq.write_table(pa.table({"image": column}), buffer, store_schema=False, **options)
            yield buffer.getvalue()
    buffer = io.BytesIO()
    encoding = {"image": "DELTA_BYTE_ARRAY"}
    pq.write_table(
        pa.table({"image": content}), buffer, use_dictionary=False, column_encoding=encoding
    )
    yield buffer.getvalue()


def _read_tar(data: bytes) -> None:
    """An archive; after the byte 1, one that is gzipped; after 2, a header whose checksum is mended."""
    if data[:1] == b"\1":
        data = gzip.compress(data[1:], 1)
    elif data[:1] == b"\2":
        blocks = [_summed(data[k : k + 512]) for k in range(1, len(data), 512)]
        data = b"".join(blocks)
    _read_source(_file("s.tar", data))


def _summed(header: bytes) -> bytes:
    """A header of a tar archive with the checksum of its bytes."""
    header = header.ljust(512, b"\0")
    return header[:148] + b"%06o\0 " % sum(header[:148] + b" " * 8 + header[156:]) + header[156:]


def _tars() -> Iterable[bytes]:
    import tarfile

    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
            for name, kind in (
                ("a.png", tarfile.REGTYPE), ("n" * 90 + "/" + "m" * 90 + ".png", tarfile.REGTYPE),
                ("link.png", tarfile.SYMTYPE), ("s.png", tarfile.GNUTYPE_SPARSE), ("a.png", tarfile.REGTYPE),
            ):  # fmt: skip
                member = tarfile.TarInfo(name)
                member.type, member.size = kind, 3 if kind == tarfile.REGTYPE else 0
                archive.addfile(member, io.BytesIO(b"abc"))
        data = buffer.getvalue()[:10_240]
        yield data
        yield b"\1" + data
        yield b"\2" + data[:1024]


def _read_arrays(data: bytes) -> None:
    _read_source(_file("s.array", data))


def _arrays() -> Iterable[bytes]:
    for array in (np.zeros((3, 4, 4), np.uint8), np.ones((2, 1, 4, 4), np.float32)):
        for save in (np.save, np.savez):
            buffer = io.BytesIO()
            save(buffer, array)
            yield buffer.getvalue()
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(np.arange(32, dtype=np.uint16).reshape(2, 4, 4)))
    yield buffer.getvalue()
    idx = struct.pack(">IIII", 0x803, 2, 3, 3) + bytes(18)
    yield idx
    yield gzip.compress(idx)


# What runs on the device.


def _read_onnx(data: bytes) -> None:
    from capsedge.runtime.inspection import inspect_file as inspect
    from capsedge.runtime.load import load
    from capsedge.runtime.onnx_file.forecast import forecast
    from capsedge.runtime.runtime_options import RuntimeOptions

    path = _file("m.onnx", data)

    def run() -> None:
        session = load(path, RuntimeOptions(threads=1))
        if session.metadata is not None and session.metadata.preprocessing is not None:
            session.predict(np.zeros((8, 8), np.uint8))

    _each(
        lambda: json.dumps(inspect(path, (1, 8)).to_dict(), allow_nan=False),
        lambda: json.dumps(forecast(path, 8, "orin-nano-8gb").to_dict(), allow_nan=False),
        run,
    )


def _onnx() -> Iterable[bytes]:
    import onnx

    from tests.runtime.models import capsule_model

    for options in (
        {},
        {"function": False, "reconstruction": True},
        {"capsedge_node": False},
        {"batch": 2},
        {"properties": {}, "scores": "logits"},
    ):
        model = capsule_model(**options)  # type: ignore[arg-type]
        yield model.SerializeToString()
        yield onnx.shape_inference.infer_shapes(model).SerializeToString()


def _read_engine_metadata(data: bytes) -> None:
    from capsedge.runtime.metadata import engine_metadata

    engine = _file("m.engine", b"engine")
    engine_metadata.metadata_path(engine).write_bytes(data)
    issued = engine_metadata.read(engine)
    assert issued.rebuild.replace(":", "").replace("--", "").split()[:2] == ["capsedge", "build"]
    engine_metadata.check(engine, issued, issued.machine, None)
    _each(lambda: issued.model)


def _engine_metadata() -> Iterable[bytes]:
    from capsedge.runtime.files.writing import sha256
    from capsedge.runtime.metadata import engine_metadata

    engine = _file("m.engine", b"engine")
    machine = engine_metadata.BuildMachine("10.3.0", "12.6", "Orin", "8.7", "aarch64")
    properties = metadata().to_properties()
    for batch in ((1, 1, 1), (1, 4, 8)):
        yield engine_metadata.EngineMetadata(
            sha256(engine), 6, machine, "native", "", "", "fp16", {"FP16": 3}, batch, "m.onnx", "",
            properties, "capsedge build m.onnx",
        ).to_json().encode()  # fmt: skip


def metadata() -> ModelMetadata:
    return ModelMetadata("capsnet", {"a": [1, None]}, "dynamic", 3, ("a", "b"), PREP)


SCORES = replace(
    metadata(),
    preprocessing=replace(PREP, per_image="min-max"),
    outputs=Outputs(scores="s", kind="logits", poses="p"),
)
VALUES = replace(
    metadata(),
    task="regression",
    class_names=(),
    outputs=Outputs(values=("o", "p"), names=("yaw", "depth"), units=("degrees", "")),
)


def _read_metadata(data: bytes) -> None:
    properties = {}
    for line in data.split(b"\n"):
        key, _, value = line.decode("utf-8", "surrogateescape").partition("=")
        properties[f"capsedge.{key}"] = value
    found = ModelMetadata.from_properties(properties)
    assert found is not None
    json.dumps(found.to_properties(), allow_nan=False)
    assert ModelMetadata.from_properties(found.to_properties()) == found


def _properties() -> Iterable[bytes]:
    for said in (metadata(), SCORES, VALUES):
        lines = [f"{k.removeprefix('capsedge.')}={v}" for k, v in said.to_properties().items()]
        yield "\n".join(lines).encode()


def _read_table(data: bytes) -> None:
    from capsedge.calibration.ranges import CalibrationTable

    path = _file("t.json", data)
    table = CalibrationTable.load(path)
    table.save(path)
    again = CalibrationTable.load(path)
    assert again.entries.keys() == table.entries.keys()


def _tables() -> Iterable[bytes]:
    from capsedge.calibration.ranges import CalibrationTable, Histogram

    histogram = Histogram(-1.0, 2.0, np.array([1, 2, 3]), np.array([0.5, 0.25]))
    path = _folder() / "seed.json"
    CalibrationTable.from_histograms("a", "b", "minmax", 5, "c", {"x": histogram}).save(path)
    yield path.read_bytes()


def _read_repository(data: bytes) -> None:
    from capsedge.deploy.kserve import deploy_kserve

    folder = _file("repository", b"").with_suffix(".d")
    folder.mkdir(exist_ok=True)
    (folder / "capsedge.json").write_bytes(data)
    deploy_kserve(folder, folder / "service.yaml", storage="s3://bucket/models")


def _repositories() -> Iterable[bytes]:
    own = {"name": "a", "device": "cpu", "ops": "fused", "twin_of": ""}
    twin = {"name": "a-portable", "device": "cpu", "ops": "portable", "twin_of": "a"}
    declared = {"schema": 1, "kind": "triton", "architecture": "x86_64", "models": [own, twin]}
    for mount in ("/models", "/mnt/models"):
        yield json.dumps({**declared, "mount": mount, "files": {}}).encode()


_JSON = ("capsedge.runtime.files.documents",)
READERS: dict[str, Reader] = {
    "images": Reader(
        _read_image, _images,
        ("capsedge.runtime.images.preprocessing", "PIL.PngImagePlugin", "PIL.JpegImagePlugin",
         "PIL.GifImagePlugin", "PIL.BmpImagePlugin", "PIL.TiffImagePlugin", "PIL.WebPImagePlugin"),
    ),
    "npz": Reader(_read_npz, _npz, ("capsedge.datasets", "capsedge.runtime.files.archives", "zipfile")),
    "idx": Reader(_read_idx, _idx, ("capsedge.datasets",)),
    "cifar": Reader(
        _read_cifar, _cifar, ("capsedge.datasets",),  # a fork unpickles, whose coverage is not seen
    ),
    "smallnorb": Reader(
        lambda data: papers_sets.read_smallnorb(_folder(), data), papers_sets.smallnorbs,
        ("capsedge.datasets",),
    ),
    "svhn": Reader(
        lambda data: papers_sets.read_svhn(_folder(), data), papers_sets.svhns, ("capsedge.datasets",),
    ),
    "torch": Reader(
        _read_torch, _torch,
        ("capsedge.models.torch_file", "capsedge.models.checkpoint", "torch._weights_only_unpickler",
         "capsedge.runtime.files.archives", "capsedge.runtime.files.documents", "zipfile"),
    ),
    "module": Reader(
        _load_weights, _torch,
        ("capsedge.models.user.weights", "capsedge.models.torch_file", "torch._weights_only_unpickler"),
    ),
    "state": Reader(
        _read_state, _state,
        ("capsedge.models.training.state", "capsedge.models.torch_file", "torch._weights_only_unpickler"),
    ),
    "safetensors": Reader(
        _read_safetensors, _safetensors,
        ("capsedge.runtime.files.safetensors", "capsedge.runtime.inspection",
         "capsedge.models.checkpoint", *_JSON),
    ),
    "parquet": Reader(
        _read_parquet, _parquets,
        ("capsedge.batch_inference.parquet", "capsedge.batch_inference.parquet_pages"),
    ),
    "tar": Reader(_read_tar, _tars, ("capsedge.batch_inference.tar", "capsedge.batch_inference.tar")),
    "arrays": Reader(_read_arrays, _arrays, ("capsedge.batch_inference.sources", "capsedge.datasets")),
    "weights": Reader(
        _read_weights, _weights,
        ("capsedge.importers", "capsedge.importers.families", "capsedge.models.user.weights",
         "capsedge.models.torch_file"),
    ),
    "keras": Reader(_read_keras, _keras, ("capsedge.importers.keras_file", *_JSON)),
    "key map": Reader(_read_key_map, _key_maps, ("capsedge.importers.key_map", *_JSON)),
    "config": Reader(_read_config, _configs, ("capsedge.models", *_JSON)),
    "onnx": Reader(
        _read_onnx, _onnx,
        ("capsedge.runtime.onnx_file", "capsedge.runtime.files.protobuf", "capsedge.runtime.profiling",
         "capsedge.runtime.session.session", "capsedge.runtime.load", "capsedge.runtime.session.decoder",
         "capsedge.runtime.session.predictions", "capsedge.runtime.backends.onnxruntime_backend",
         "capsedge.runtime.metadata.metadata", *_JSON),
    ),
    "engine_metadata": Reader(
        _read_engine_metadata, _engine_metadata, ("capsedge.runtime.metadata.engine_metadata", *_JSON)
    ),
    "metadata": Reader(_read_metadata, _properties, ("capsedge.runtime.metadata.metadata", *_JSON)),
    "repository": Reader(
        _read_repository, _repositories,
        ("capsedge.deploy.kserve", "capsedge.deploy.deployment", *_JSON),
    ),
    "option values": Reader(
        option_values.read, option_values.seeds,
        ("capsedge.options", "capsedge.cli._commands", "capsedge.cli._options",
         "capsedge.exporters.build_options",
         "capsedge.deploy.deploy_options", "capsedge.models.user.example_inputs"),
    ),
    "HTTP requests": Reader(
        requests.read_http, requests.documents,
        ("capsedge.serving.bounded_json", "capsedge.serving.request_bodies", "capsedge.serving.requests",
         "capsedge.serving.request_tensors"),
    ),
    "gRPC requests": Reader(
        requests.read_grpc, requests.messages,
        ("capsedge.serving.grpc_requests", "capsedge.serving.request_bodies", "capsedge.serving.requests",
         "capsedge.serving.request_tensors", "capsedge.runtime.files.protobuf"),
    ),
    "table": Reader(_read_table, _tables, ("capsedge.calibration.ranges", *_JSON)),
}  # fmt: skip
