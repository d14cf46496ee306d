"""Files of ``torch.save`` (``.pt``), read by ``torch.load`` in a confined process. Needs torch.

Only that process lets torch see the file; its memory is bounded, and it can open nothing. It answers with a
pickle of plain values, in which references stand for tensors, and with the bytes of their storages. What a
process answers that has met strangers' bytes is taken for a stranger's too: `capsedge.runtime.files.pickles`
interprets the values, and no tensor reaches beyond its storage.
"""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime.files import limits, pickles
from capsedge.runtime.files.archives import Archive, BadArchive
from capsedge.runtime.files.confined import Bounds, Ended, close_doors, confine, confined
from capsedge.runtime.files.opening import size
from capsedge.runtime.files.pickles import BadPickle, Name, NotPlain

_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files of PyTorch before 1.6 begin
_ALIGNMENT = 64  # of storages in the answer
_PLAIN = (dict, OrderedDict, Counter, list, tuple, str, bytes, int, float, bool, type(None))
_TYPES = {
    str(kind): kind
    for kind in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}


class Beside:
    """Stands for an object that is neither a plain value nor a tensor, and is not read."""

    def __new__(cls, *_: Any) -> Beside:
        """Take what the object would be made of."""
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def _no_items(*_: Any) -> dict[Any, Any]:
    return {}


# What training scripts save beside the weights. Nothing of these names is imported or called: torch puts the
# stand-in instead, and goes on.
_BESIDE = (
    *(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")),
    *(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")),
    *(f"numpy.{name}" for name in ("dtype", "ndarray", "float64", "float32", "int64", "int32")),
    *(f"builtins.{name}" for name in ("list", "dict", "tuple", "int", "float", "str", "bool")),
    *("argparse.Namespace", "datetime.datetime", "torch.torch_version.TorchVersion"),
    *("pathlib.PosixPath", "pathlib.WindowsPath"),
)
_STAND_INS: list[Any] = [(_no_items, "collections.defaultdict"), *((Beside, n) for n in _BESIDE)]


def read_torch(file: BufferedReader) -> Any:
    """The value in a file: plain values and tensors, and a `Beside` for every other object.

    Args:
        file: its content, a real file whose size the caller has limited.

    Returns:
        The value. Its tensors lie in a private mapping of a temporary file: they take memory once used.

    Raises:
        BadArchive, BadPickle: it is damaged, exceeds the limits, or holds what only its code could make.
        EnvironmentProblem: there is no space for the temporary file.
    """
    unpacked, most = _unpacked(file), max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * size(file))
    if unpacked > most:
        raise BadArchive(f"it unpacks to {unpacked:,} bytes, the limit is {most:,}")
    memory = (
        2 * unpacked + limits.TORCH_MEMORY
    )  # the file itself, and the storages that torch reads from it
    bounds = Bounds(limits.TORCH_SECONDS, memory, unpacked + 2 * limits.PICKLE_BYTES)
    with confined(__name__, file, bounds, fork=True) as ended:
        return content_of(ended, most)


def _unpacked(file: BufferedReader) -> int:
    """Bytes of all that is in the file, from the index alone.

    Raises:
        BadArchive, NotPlain: it is no file of ``torch.save``, or its pickle is too large.
    """
    file.seek(0)
    head = file.read(len(_LEGACY))
    if head == _LEGACY:
        return size(file)
    archive = Archive(file)
    found = [name for name in archive.names if name.endswith("/data.pkl")]
    if len(found) != 1 or not head.startswith(b"PK\x03\x04"):
        raise BadArchive("it has no 'data.pkl'")
    if found[0].replace("/data.pkl", "/constants.pkl") in archive.names:
        raise NotPlain("it is a program of TorchScript")
    if archive.length(found[0]) > limits.PICKLE_BYTES:
        raise BadArchive(f"'{found[0]}' has over {limits.PICKLE_BYTES:,} bytes")
    return sum(map(archive.length, archive.names))


def content_of(ended: Ended, most: int) -> Any:
    """The value that the process answered with; its tensors may have so many bytes.

    Raises:
        BadArchive, BadPickle: it refused the file, or did not answer as it should.
        EnvironmentProblem: it had no space for its answer.
    """
    if ended.code in (errno.ENOSPC, errno.EDQUOT):
        raise EnvironmentProblem(
            "There is no space left for a temporary file.",
            "PyTorch files are unpacked into one.",
            "Make space, or set TMPDIR to a folder that has some.",
        )
    if ended.code is None:
        raise BadArchive(f"reading it takes over {limits.TORCH_SECONDS} s")
    if ended.code:
        last = (ended.said.strip().splitlines() or ["it said nothing"])[-1]
        raise BadArchive(f"the process that read it ended ({ended.code}): {last[:200]}")
    data = mmap.mmap(ended.answer.fileno(), 0, access=mmap.ACCESS_COPY)
    end = 8 + int.from_bytes(data[:8], "little")
    begin = end + -end % _ALIGNMENT
    total = 0

    def stored(reference: Any) -> Any:
        nonlocal total
        if reference == ():
            return Beside()
        try:
            kind, place, elements, offset, shape, stride = reference
            total += math.prod(shape) * _TYPES[kind].itemsize
            flat = torch.empty(0, dtype=_TYPES[kind])
            if elements:
                flat = torch.frombuffer(
                    data, dtype=_TYPES[kind], count=elements, offset=begin + place
                )
            tensor = flat.as_strided(shape, stride, offset)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise BadPickle(f"one of its tensors is not whole: {error}") from error
        if total > most:
            raise BadPickle(f"its tensors have {total:,} bytes, the limit is {most:,}")
        return tensor

    refused, plain, value = pickles.loads(data[8:end], pickles.Format(_call, _no_state, stored))
    if refused:
        raise (BadPickle if plain else NotPlain)(refused)
    return value


def _call(name: Name, arguments: tuple[Any, ...]) -> Any:
    if str(name) != "builtins.dict" or arguments:
        raise NotPlain(f"it names {name}")
    return {}


def _no_state(*_: Any) -> None:
    raise NotPlain("it sets the state of an object")


class _Pickler(pickle.Pickler):
    """Of the answer: references instead of tensors, whose storages are written later.

    Args:
        file: of the pickle.
        known: addresses of the storages that came from the file.
    """

    def __init__(self, file: BinaryIO, known: set[int]) -> None:
        super().__init__(file, 4)
        self._known, self._places = known, {0: 0}
        self.storages: list[torch.UntypedStorage] = []
        self._end = 0

    def persistent_id(self, value: Any) -> Any:
        """None for what is pickled as it is."""
        if type(value) in _PLAIN or value is dict:
            return None
        if not isinstance(value, Tensor) or value.device.type != "cpu" or value.is_neg():
            return ()
        if value.layout != torch.strided or str(value.dtype) not in _TYPES:
            return ()
        storage = value.untyped_storage()
        at = storage.data_ptr()
        if (
            at and at not in self._known
        ):  # made of nothing: its values are what happens to lie in memory
            return ()
        if at not in self._places:
            self._places[at] = self._end
            self._end += storage.nbytes() + -storage.nbytes() % _ALIGNMENT
            self.storages.append(storage)
        elements = storage.nbytes() // value.itemsize
        view = (value.storage_offset(), tuple(value.shape), value.stride())
        return (str(value.dtype), self._places[at], elements, *view)

    def reducer_override(self, value: Any) -> Any:
        """A dictionary of its own class becomes a plain one, without attributes."""
        if isinstance(value, Mapping):
            return dict, (), None, None, iter(value.items())
        return NotImplemented


class _File(io.BufferedReader):
    """A file that hides its descriptor: with one, torch unpacks tar archives to the disk."""

    def fileno(self) -> int:
        """Refuse.

        Raises:
            io.UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation


def main() -> None:
    """Answer for the file on the standard input under the bounds that the arguments name."""
    confine()
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    torch.set_num_threads(1)  # those of the parent are not here
    own = io.BytesIO()
    torch.save({"a": torch.ones(1), "b": b"\xff"}, own)
    answer_for(own)  # imports what torch needs to read, and the codec of bytes
    close_doors()
    pickled, storages = answer_for(_File(io.FileIO(0)))
    try:
        answer.write(len(pickled).to_bytes(8, "little") + pickled)
        answer.write(bytes(-(8 + len(pickled)) % _ALIGNMENT))
        for storage in storages:
            answer.write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
            answer.write(bytes(-storage.nbytes() % _ALIGNMENT))
        answer.close()
    except OSError as error:
        raise SystemExit(error.errno) from error


def answer_for(file: BinaryIO) -> tuple[bytes, list[torch.UntypedStorage]]:
    """A pickle of why the file is refused, whether it holds no code, and its value; and the storages."""
    file.seek(0)
    legacy = file.read(len(_LEGACY)) == _LEGACY
    file.seek(0)
    known: set[int] = set()

    def kept(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
        known.add(storage.data_ptr())
        return (
            storage.fill_(0) if legacy else storage
        )  # the old layout fills in the values at the end

    pickled = io.BytesIO()
    pickler = _Pickler(pickled, known)
    try:
        with torch.serialization.safe_globals(_STAND_INS):
            value = torch.load(file, map_location=kept, weights_only=True)
        pickler.dump(("", True, value))
    except Exception as error:  # of many kinds, for damaged files
        return pickle.dumps((*_refusal(error), None), 4), []
    return pickled.getvalue(), pickler.storages


def _refusal(error: Exception) -> tuple[str, bool]:
    text = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "it needs too much memory", True
    if named := re.search(r"GLOBAL (\S+)", text):
        return f"it names {named[1][:200]}", False
    told = re.search(r"WeightsUnpickler error:\s*(.+)", text)
    said = (told[1] if told else text).split("\n")[0][:200]
    return f"{type(error).__name__}: {said}", not said.startswith(("Trying to", "Can only"))


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
        "Copy or train it again; load and save files of PyTorch before 0.3, and of other pickle "
        "protocols than PyTorch's own, again with torch.",
    )


if __name__ == "__main__":
    main()
