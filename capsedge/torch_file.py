"""PyTorch's own checkpoints (``.pt``): plain values and tensors, without torch's unpickler. Needs torch.

A file of ``torch.save`` is a zip archive with the pickle ``data.pkl`` and one member for each storage
(https://docs.pytorch.org/docs/stable/notes/serialization.html); before PyTorch 1.6 it was another
(`capsedge.legacy_torch_file`). `capsedge.runtime.files.pickles` interprets
the pickle; type, shape and offset of every tensor are known before any of its bytes is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsedge.errors import ArtefactError
from capsedge.legacy_torch_file import LegacyFile, is_legacy
from capsedge.runtime.files import limits, pickles
from capsedge.runtime.files.archives import Archive, BadArchive
from capsedge.runtime.files.opening import size
from capsedge.runtime.files.pickles import BadPickle, Name, NotPlain

_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}  # fmt: skip
_DIMENSIONS = 16


@dataclass(frozen=True)
class Storage:
    """A storage: the name of its member in the archive, and the type and number of its elements."""

    member: str
    dtype: torch.dtype
    elements: int

    @property
    def bytes(self) -> int:
        """Size of its elements in bytes."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that has not been read: a view that lies within its storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of its elements in bytes."""
        return math.prod(self.shape) * self.storage.dtype.itemsize


@dataclass(frozen=True)
class Beside:
    """A value that is no weight and is not read."""

    kind: str


# Nothing of these names is imported or called: they only do not stop the weights beside them from being read.
_BESIDE = frozenset(
    (
        *(
            f"numpy.{core}.multiarray.{n}"
            for core in ("core", "_core")
            for n in ("scalar", "_reconstruct")
        ),
        *("numpy.dtype", "_codecs.encode", "argparse.Namespace", "torch.device", "builtins.set"),
        *(
            "collections.defaultdict",
            "pathlib.PosixPath",
            "pathlib.WindowsPath",
            "datetime.datetime",
        ),
        *("torch.torch_version.TorchVersion", "torch._utils._rebuild_device_tensor_from_numpy"),
    )
)


@dataclass
class TorchFile:
    """An open file: its value, in which a `StoredTensor` stands for each tensor, and `read` for the tensors.

    Args:
        file: the content.
        beside: whether values that training scripts save beside the weights (numpy numbers and arrays,
            ``argparse.Namespace``, devices, types) are taken; a `Beside` stands for each.

    Raises:
        BadArchive, BadPickle: it is damaged, exceeds the limits, or holds more than values and tensors.
    """

    file: BufferedReader
    beside: bool = False
    value: Any = field(init=False)
    _load: Callable[[Storage], bytearray] = field(init=False)

    def __post_init__(self) -> None:
        self._bytes = 0
        self._read: dict[str, bytearray] = {}
        if is_legacy(self.file):
            self._legacy()
        else:
            self._archived()
        most = max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * size(self.file))
        if self._bytes > most:
            raise BadPickle(f"its tensors have {self._bytes:,} bytes, the limit is {most:,}")

    def _archived(self) -> None:
        archive = Archive(self.file)
        found = [name for name in archive.names if name.endswith("/data.pkl")]
        if len(found) != 1:
            raise BadArchive("it has no 'data.pkl'")
        folder = found[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.names and archive.stored(order, 16) != b"little":
            raise BadArchive("it was written on a big-endian machine")

        def storage(reference: Any) -> Storage:
            made = _storage(reference, 5, f"{folder}data/")
            if archive.length(made.member) != made.bytes:
                raise BadPickle(
                    f"the storage '{made.member}' does not have the size that it claims"
                )
            return made

        self._load = lambda made: archive.stored(made.member, limits.ARRAY_BYTES)
        data = archive.stored(found[0], limits.PICKLE_BYTES)
        self.value = pickles.loads(bytes(data), pickles.Format(self._call, _set_state, storage))

    def _legacy(self) -> None:
        known: dict[str, Storage] = {}

        def storage(reference: Any) -> Storage:
            made = _storage(reference, 6, "")
            if known.setdefault(made.member, made) != made:
                raise BadPickle(f"it says two things of the storage '{made.member}'")
            return made

        def length(key: str) -> int:
            if key not in known:
                raise BadPickle(f"it says nothing of the storage '{key}'")
            return known[key].bytes

        legacy = LegacyFile(self.file, pickles.Format(self._call, _set_state, storage), length)
        self._load = lambda made: legacy.stored(made.member, made.elements)
        self.value = legacy.value

    def read(self, tensor: StoredTensor) -> Tensor:
        """A tensor, with memory of its own.

        Raises:
            BadArchive: it is truncated.
        """
        storage = tensor.storage
        if not storage.elements:
            return torch.empty(tensor.shape, dtype=storage.dtype)
        if storage.member not in self._read:  # several tensors may share one storage
            self._read[storage.member] = self._load(storage)
        flat = torch.frombuffer(self._read[storage.member], dtype=storage.dtype)
        return flat.as_strided(tensor.shape, tensor.stride, tensor.offset).clone()

    def _call(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        made = _CALLS.get((name.module, name.name))
        if made is None and self.beside and str(name) in _BESIDE:
            return Beside(str(name))
        if made is None:
            raise NotPlain(f"it names {name}")
        value = made(arguments)
        if isinstance(value, StoredTensor):
            self._bytes += value.bytes
        return value


def _storage(reference: Any, length: int, folder: str) -> Storage:
    """What a reference of so many parts describes; the last of six is a view, which is not supported."""
    if type(reference) is not tuple or len(reference) != length or reference[0] != "storage":
        raise BadPickle("it refers to something other than a storage")
    _, kind, key, _, elements = reference[:5]
    if type(kind) is not Name or kind.module != "torch" or kind.name not in _STORAGES:
        raise BadPickle(f"it has a storage of the type {kind}")
    if type(key) is not str or type(elements) is not int or not 0 <= elements < 2**48:
        raise BadPickle("it refers to a storage without name or size")
    if reference[5:] not in ((), (None,)):
        raise BadPickle(f"the storage '{key}' is a view of another")
    return Storage(f"{folder}{key}", _STORAGES[kind.name], elements)


def _tensor(arguments: tuple[Any, ...]) -> StoredTensor:
    """The tensor of ``_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)``.

    PyTorch before 0.4 calls ``_rebuild_tensor`` with the first four.
    """
    if len(arguments) < 4 or not isinstance(arguments[0], Storage):
        raise BadPickle("it has a tensor without a storage")
    storage, offset, shape, stride = arguments[:4]
    for sizes in (shape, stride, (offset,)):
        if type(sizes) is not tuple or not set(map(type, sizes)) <= {int} or not _in_range(sizes):
            raise BadPickle("it has a tensor without sizes")
    if len(shape) != len(stride) or len(shape) > _DIMENSIONS:
        raise BadPickle("it has a tensor whose sizes and strides differ in number")
    elements = math.prod(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if elements > storage.elements or (elements and last >= storage.elements):
        raise BadPickle(
            f"it has a tensor {list(shape)} of a storage of {storage.elements:,} elements"
        )
    return StoredTensor(storage, offset, shape, stride)


def _in_range(sizes: tuple[int, ...]) -> bool:
    return min(sizes, default=0) >= 0 and max(sizes, default=0) < 2**63


def _parameter(arguments: tuple[Any, ...]) -> StoredTensor:
    """The tensor of ``_rebuild_parameter(tensor, requires_grad, hooks)``."""
    if not arguments or not isinstance(arguments[0], StoredTensor):
        raise BadPickle("it has a parameter without a tensor")
    return arguments[0]


def _mapping(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    if not arguments:
        return {}
    if len(arguments) == 1 and type(arguments[0]) is dict:
        return dict(arguments[0])
    raise BadPickle("it has a mapping of unknown content")


def _sizes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(arguments) == 1 and type(arguments[0]) is tuple:
        return arguments[0]
    raise BadPickle("it has sizes of unknown content")


_CALLS: dict[tuple[str, str], Callable[[tuple[Any, ...]], Any]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): _mapping,
    ("collections", "Counter"): _mapping,
    ("torch", "Size"): _sizes,
}


def _set_state(value: Any, state: Any) -> None:
    """Ignore the state of an ordered dictionary, in which ``state_dict`` stores the modules' versions."""
    if isinstance(value, Beside):
        return
    if type(value) is not dict or type(state) is not dict:
        raise NotPlain("it sets the state of an object")


def unreadable(path: Path, error: BadArchive | BadPickle) -> ArtefactError:
    """The error for a file that is not read."""
    if isinstance(error, NotPlain):
        return ArtefactError(
            f"{path} holds more than tensors and plain values.",
            f"Its pickle is refused: {error}. Loading it would run code from the file.",
            "Where the model was trained, save {'config': ..., 'state_dict': model.state_dict()}, "
            "or better a safetensors checkpoint. The weights alone of a network of your own: "
            "torch.save(model.state_dict(), path), then capsedge export --module "
            "(docs/how-to/your-model.md).",
        )
    return ArtefactError(
        f"{path} is not a complete PyTorch file.",
        f"{error}.",
        "Copy or train it again; load and save files of PyTorch before 0.3 again with torch.",
    )
