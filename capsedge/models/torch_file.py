"""Read files of ``torch.save`` (``.pt``) through ``torch.load(weights_only=True)``. Needs torch.

A sandboxed process reads the file first. Only if that succeeds, within the limits and without opening any
other file, does this process read it too.
"""

from __future__ import annotations

import collections
import io
import math
import os
import re
import threading
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from capsedge.errors import ArtefactError
from capsedge.runtime.files.archives import Archive, BadArchive
from capsedge.runtime.files.reading import file_size
from capsedge.runtime.files.sandbox import (
    SandboxLimits,
    enter_sandbox,
    forbid_new_files,
    run_in_sandbox,
)
from capsedge.spec import limits

_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # first bytes of files of PyTorch before 1.6
_REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_CODE = "code: "  # how the process starts a message that refuses code
_ALONE = threading.Lock()  # torch's list of safe names is shared by all threads


class BadPickle(ValueError):
    """A pickle is damaged or exceeds the limits; the message says why."""


class NotPlain(BadPickle):
    """A pickle contains objects that could only be obtained by running its code."""


class StandIn:
    """A placeholder for an object in the file that is not read."""

    def __new__(cls, *_: Any) -> StandIn:
        """Accept any constructor arguments."""
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def _no_items(*_: Any) -> dict[Any, Any]:
    return {}


# What training scripts save besides the weights. Nothing with these names is imported or called: torch
# receives the stand-in and continues.
_STAND_IN_TYPES = (
    *(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")),
    *(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")),
    *(f"numpy.{name}" for name in ("dtype", "ndarray", "float64", "float32", "int64", "int32")),
    *(f"builtins.{name}" for name in ("list", "dict", "tuple", "int", "float", "str", "bool")),
    *("argparse.Namespace", "datetime.datetime", "torch.torch_version.TorchVersion"),
    *(
        f"{module}.{name}"
        for module in ("pathlib", "pathlib._local")
        for name in (
            "Path",
            "PosixPath",
            "WindowsPath",
            "PurePath",
            "PurePosixPath",
            "PureWindowsPath",
        )
    ),
    *("types.SimpleNamespace", "datetime.date", "datetime.timedelta", "uuid.UUID", "typing.Any"),
    *(f"numpy.{name}" for name in ("bool", "bool_", "str_", "float16", "int8", "int16", "uint8")),
    *("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig"),
    *(f"omegaconf.base.{name}" for name in ("ContainerMetadata", "Metadata", "Box", "Node")),
    *(
        f"omegaconf.nodes.{kind}Node"
        for kind in ("Any", "String", "Integer", "Float", "Boolean", "Enum", "Bytes", "Path")
    ),
)
# Dictionaries with attributes, as configuration libraries make them.
_DICTIONARIES = (
    "easydict.EasyDict",
    "yacs.config.CfgNode",
    "fvcore.common.config.CfgNode",
    "addict.addict.Dict",
    "munch.Munch",
    "ml_collections.config_dict.config_dict.ConfigDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "lightning.fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
)
_STAND_INS: list[Any] = [
    (_no_items, "collections.defaultdict"),
    *((StandIn, n) for n in _STAND_IN_TYPES),
    *((collections.OrderedDict, n) for n in _DICTIONARIES),
]


def read_torch(file: BufferedReader) -> Any:
    """The value in a file: plain dictionaries, lists and values, and dense tensors on the CPU.

    Args:
        file: the open file, a real one whose size the caller has limited.

    Returns:
        The value. Other objects in it become stand-ins, or whatever harmless object torch makes of them.

    Raises:
        BadArchive, BadPickle: it is damaged, exceeds the limits, or holds objects that only its code could
            create.
    """
    unpacked, most = (
        _unpacked(file),
        max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * file_size(file)),
    )
    if unpacked > most:
        raise BadArchive(f"it unpacks to {unpacked:,} bytes, the limit is {most:,}")
    memory = 2 * unpacked + limits.TORCH_MEMORY  # packed parts of the file, and its tensors
    bounds = SandboxLimits(limits.TORCH_SECONDS, memory, limits.KIB)
    with run_in_sandbox(__name__, file, bounds, words=[str(most)], fork=True) as ended:
        refused = ended.output.read().decode(errors="replace")
    if ended.exit_code is None:
        raise BadArchive(f"reading it takes over {limits.TORCH_SECONDS} s")
    if ended.exit_code:
        last = (ended.log.strip().splitlines() or ["it said nothing"])[-1]
        raise BadArchive(f"the process that read it ended ({ended.exit_code}): {last[:200]}")
    if refused:
        raise (NotPlain if refused.startswith(_CODE) else BadPickle)(refused.removeprefix(_CODE))
    with _ALONE:
        return _value(_TorchFile(io.FileIO(file.fileno(), closefd=False)), most)


def _unpacked(file: BufferedReader) -> int:
    """The size of the file's contents in bytes, according to its index.

    Raises:
        BadArchive, NotPlain: it is not a file of ``torch.save``, or its pickle is too large.
    """
    file.seek(0)
    head = file.read(len(_LEGACY))
    if head == _LEGACY:
        return file_size(file)
    archive = Archive(file)
    found = [name for name in archive.names if name.endswith("/data.pkl")]
    if len(found) != 1 or not head.startswith(b"PK\x03\x04"):
        raise BadArchive("it has no 'data.pkl'")
    if found[0].replace("/data.pkl", "/constants.pkl") in archive.names:
        raise NotPlain("it is a TorchScript program")
    if archive.length(found[0]) > limits.PICKLE_BYTES:
        raise BadArchive(f"'{found[0]}' has over {limits.PICKLE_BYTES:,} bytes")
    return sum(map(archive.length, archive.names))


def main() -> None:
    """Read the ``torch.save`` file on standard input within the limits given as arguments."""
    (most,) = enter_sandbox()
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries print
    torch.set_num_threads(1)  # a fork lacks its parent's threads
    own = io.BytesIO()
    torch.save({"a": torch.ones(1), "b": b"\xff"}, own)
    _value(own, 1 << 20)  # imports the modules that torch reads with
    forbid_new_files()
    try:
        _value(_TorchFile(io.FileIO(0)), int(most))
    except BadPickle as error:
        os.write(answer, f"{_CODE if isinstance(error, NotPlain) else ''}{error}".encode())


class _TorchFile(BufferedReader):
    """A file that hides its descriptor: with one, torch would unpack tar archives to the disk."""

    def fileno(self) -> int:
        """Refuse.

        Raises:
            io.UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation


def _value(file: BufferedReader | io.BytesIO, most: int) -> Any:
    """The value read by torch, if its tensors have at most this many bytes.

    Raises:
        BadPickle, NotPlain: it is refused.
    """
    file.seek(0)
    legacy = file.read(len(_LEGACY)) == _LEGACY
    file.seek(0)
    storages: dict[int, UntypedStorage] = {}

    def kept(storage: Any, _: str) -> Any:
        storages[storage.data_ptr()] = storage
        return storage.fill_(0) if legacy else storage  # old formats fill in values later, or never

    try:
        with torch.serialization.safe_globals(_STAND_INS):
            value = torch.load(file, map_location=kept, weights_only=True)
        return _PlainObject(storages, most).of(value)
    except Exception as error:  # any kind of error, if the file is damaged
        raise _refusal(error) from error


class _PlainObject:
    """Converts what torch reads to plain dictionaries and dense tensors; shared objects stay shared.

    Args:
        storages: those that were read from the file, by address.
        most: limit on the total bytes of all tensors, each counted by its own shape.
    """

    def __init__(self, storages: dict[int, UntypedStorage], most: int) -> None:
        self._storages, self._most = storages, most
        self._made: dict[int, Any] = {}
        self._bytes = 0

    def of(self, value: Any) -> Any:
        """The plain replacement of a value.

        Raises:
            BadPickle: the tensors have too many bytes.
        """
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, Tensor):
            made: Any = self._tensor(value)
        elif isinstance(value, dict):
            made = self._made[id(value)] = {}  # stored before its items, which may refer to it
            made.update((k, self.of(v)) for k, v in value.items() if type(k) in (str, bytes, int))
        elif type(value) is list:
            made = self._made[id(value)] = []
            made.extend(map(self.of, value))
        elif type(value) is tuple:
            made = tuple(map(self.of, value))
        else:
            return value
        self._made[id(value)] = made
        return made

    def _tensor(self, tensor: Tensor) -> Tensor | StandIn:
        dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not dense or tensor.dtype not in _REAL + _WHOLE or tensor.is_neg():
            return StandIn()
        if tensor.untyped_storage().data_ptr() not in (0, *self._storages):
            return StandIn()  # its values are whatever was in memory
        self._bytes += math.prod(tensor.shape) * tensor.itemsize
        if self._bytes > self._most:
            raise BadPickle(f"its tensors have {self._bytes:,} bytes, the limit is {self._most:,}")
        return tensor.detach()


def _refusal(error: Exception) -> BadPickle:
    """An error that torch raises for a file, in words."""
    if isinstance(error, BadPickle):
        return error
    text = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return BadPickle("it needs too much memory")
    if named := re.search(r"GLOBAL (\S+)", text):
        return NotPlain(f"it names {named[1][:200]}")
    match = re.search(r"WeightsUnpickler error:\s*(.+)", text)
    message = (match[1] if match else text).split("\n")[0][:200]
    code = message.startswith(("Trying to", "Can only"))
    return NotPlain(message) if code else BadPickle(f"{type(error).__name__}: {message}")


def unreadable_torch_file(path: Path, error: BadArchive | BadPickle) -> ArtefactError:
    """The error for a file that is not read."""
    if isinstance(error, NotPlain):
        return ArtefactError(
            f"{path} holds more than tensors and plain values.",
            f"Its pickle is refused: {error}. Loading it would run code from the file.",
            "Where the model was trained, save {'config': ..., 'state_dict': model.state_dict()}, "
            "or better a safetensors checkpoint. For the weights of your own network: "
            "torch.save(model.state_dict(), path), then capsedge export --module "
            "(docs/how-to/your-model.md).",
        )
    return ArtefactError(
        f"{path} is not a complete PyTorch file.",
        f"{error}.",
        "Copy it again, or train again. Files from PyTorch before 0.3, or with a pickle protocol "
        "other than the default of torch.save, must be loaded and saved again with torch.",
    )


if __name__ == "__main__":
    main()
