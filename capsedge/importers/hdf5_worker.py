"""Read HDF5 files, in a separate process that `capsedge.runtime.files.sandbox` starts.

HDF5 files can refer to other files in many ways. Here nothing is resolved by name: groups are walked link by
link, only hard links are followed, and every data set's creation properties are checked before it is read.
Anything that these checks miss is still confined to a process that cannot open other files.

The output is a line of JSON, followed by the elements of all arrays in the same order, little-endian.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

from capsedge.runtime.files.sandbox import enter_sandbox, forbid_new_files

if TYPE_CHECKING:
    from h5py import h5d, h5g

SIGNATURE = b"\x89HDF\r\n\x1a\n"
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
TEXTS = ("model_config", "keras_version", "backend", "layer_names", "weight_names", "name")
_DEPTH = 64


class Hdf5Refused(Exception):
    """The file uses a feature that weights files do not need."""


def main() -> None:
    """Read the file on standard input, within the limits given as arguments."""
    enter_sandbox()
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    from capsedge.spec import limits

    _rehearse()
    try:
        data = sys.stdin.buffer.read(limits.KERAS_BYTES + 1)
        if not data.startswith(SIGNATURE):
            raise Hdf5Refused("it is not an HDF5 file")
        if len(data) > limits.KERAS_BYTES:
            raise Hdf5Refused(f"it has over {limits.KERAS_BYTES >> 20} MiB")
        forbid_new_files()
        most = max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * len(data))
        _read_image(data, most, answer)
    except Hdf5Refused as refusal:
        answer.write(json.dumps({"refused": str(refusal)}).encode() + b"\n")
    except MemoryError:
        answer.write(json.dumps({"refused": "it needs too much memory"}).encode() + b"\n")
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, UnicodeError) as error:
        reason = f"it is damaged: {type(error).__name__}: {error}"
        answer.write(json.dumps({"refused": reason[:500]}).encode() + b"\n")
    answer.close()


def _read_image(data: bytes, most: int, output: BinaryIO) -> None:
    import h5py.h5f

    from capsedge.spec import limits

    try:
        image = h5py.h5f.open_file_image(data)
    except OSError as error:
        raise Hdf5Refused(f"it is damaged: {error}") from None
    walk = Hdf5Walk(most, limits.TENSORS)
    walk.group(h5py.h5g.open(image, b"/"), "")
    walk.write(output)


def _rehearse() -> None:
    """Read a file of our own, so that everything is imported before the sandbox closes."""
    import io

    import h5py

    with h5py.File("rehearsal", "w", driver="core", backing_store=False) as file:
        for name, text in ("fixed", b"a"), ("free", "a"):
            file.create_group(name).attrs["name"] = text
            file[name].attrs["layer_names"] = [text]
        file.create_dataset("packed", (2,), "f4", chunks=(2,), compression=1, shuffle=True)
        file.flush()
        _read_image(file.id.get_file_image(), 1 << 20, io.BytesIO())
    "".encode("ascii")
    "".encode("latin-1")


class Hdf5Walk:
    """Everything reachable by hard links.

    Args:
        most: limit on the bytes of all arrays together.
        count: largest number of objects.
    """

    def __init__(self, most: int, count: int) -> None:
        self._remaining, self._count = most, count
        self._visited: set[Any] = set()
        self._data: list[tuple[str, h5d.DatasetID, Any]] = []
        self.texts: dict[str, dict[str, str | list[str]]] = {}

    def group(self, group: h5g.GroupID, path: str) -> None:
        """Read a group and its content."""
        from h5py import h5d, h5g, h5l, h5o

        place = f"the group '/{path}'"
        self._once(group, place)
        if path.count("/") > _DEPTH:
            raise Hdf5Refused(f"{place} is nested over {_DEPTH} deep")
        self.texts[path] = _texts(group, place)
        for name in list(group):
            inner = f"{path}/{name.decode()}" if path else name.decode()
            if b"/" in name or name in (b".", b".."):
                raise Hdf5Refused(f"the name {name.decode()!a} in {place} is a path")
            if group.links.get_info(name).type != h5l.TYPE_HARD:
                raise Hdf5Refused(f"'/{inner}' is a link to another location")
            kind = h5o.get_info(group, name).type
            if kind == h5o.TYPE_GROUP:
                self.group(h5g.open(group, name), inner)
            elif kind == h5o.TYPE_DATASET:
                self._array(h5d.open(group, name), inner)
            else:
                raise Hdf5Refused(f"'/{inner}' is a named type")

    def _once(self, item: Any, path: str) -> None:
        from h5py import h5o

        where = h5o.get_info(item)
        self._count -= 1
        if self._count < 0:
            raise Hdf5Refused("it holds too many objects")
        if (where.fileno, where.addr) in self._visited:
            raise Hdf5Refused(f"{path} is reachable in two ways")
        self._visited.add((where.fileno, where.addr))

    def _array(self, array: h5d.DatasetID, path: str) -> None:
        import numpy as np
        from h5py import h5d, h5t

        place = f"'/{path}'"
        self._once(array, place)
        plan = array.get_create_plist()
        if plan.get_external_count():
            raise Hdf5Refused(f"the numbers of {place} are in another file")
        if plan.get_layout() not in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED):
            raise Hdf5Refused(f"{place} is assembled from other arrays")
        for k in range(plan.get_nfilters()):
            if plan.get_filter(k)[0] not in FILTERS:
                raise Hdf5Refused(f"{place} needs the filter {plan.get_filter(k)[0]}")
        kind = array.get_type()
        if kind.committed() or kind.get_class() not in (h5t.FLOAT, h5t.INTEGER):
            raise Hdf5Refused(f"{place} does not hold plain numbers")
        if not all(0 <= n < 2**40 for n in array.shape):
            raise Hdf5Refused(f"{place} claims an impossible size")
        size = int(np.prod(array.shape, dtype=object)) * kind.get_size()
        chunk = plan.get_chunk() if plan.get_layout() == h5d.CHUNKED else ()
        size = max(size, int(np.prod(chunk, dtype=object)) * kind.get_size() if chunk else 0)
        self._remaining -= size
        if self._remaining < 0:
            raise Hdf5Refused(f"{place} and the arrays before it claim too many bytes")
        self._data.append((path, array, np.dtype(kind.dtype).newbyteorder("<")))

    def write(self, output: BinaryIO) -> None:
        """Write the answer."""
        import numpy as np
        from h5py import h5s

        arrays = {p: [t.str, [int(n) for n in a.shape]] for p, a, t in self._data}
        output.write(json.dumps({"arrays": arrays, "texts": self.texts}).encode() + b"\n")
        for path, array, kind in self._data:
            values = np.empty(array.shape, kind)
            try:
                if values.size:
                    array.read(h5s.ALL, h5s.ALL, values)
            except (
                OSError
            ) as error:  # the answer has begun, and its length will show that it is incomplete
                raise SystemExit(f"'/{path}' cannot be read: {error}") from None
            output.write(values.tobytes())


def _texts(item: h5g.GroupID, path: str) -> dict[str, str | list[str]]:
    """The attributes with known names, all of which hold text."""
    from h5py import h5a, h5t

    texts: dict[str, str | list[str]] = {}
    for name in TEXTS:
        for key in _parts(item, name):
            attribute = h5a.open(item, key.encode())
            if (
                attribute.shape is None or 0 in attribute.shape
            ):  # Keras stores an empty list of names as an empty array of numbers
                texts[name] = []
                continue
            if attribute.get_type().get_class() != h5t.STRING:
                raise Hdf5Refused(f"the attribute '{key}' of {path} is not text")
            if len(attribute.shape) > 1:
                raise Hdf5Refused(f"the attribute '{key}' of {path} is not a list")
            words = _read(attribute)
            if key != name:
                earlier = texts.setdefault(name, [])
                assert isinstance(earlier, list)
                earlier += words if isinstance(words, list) else [words]
            else:
                texts[name] = words
    return texts


def _parts(item: h5g.GroupID, name: str) -> list[str]:
    """The attribute, or its pieces ``name0``, ``name1``, ...: Keras splits attributes beyond 64 KiB."""
    from h5py import h5a

    if h5a.exists(item, name.encode()):
        return [name]
    parts: list[str] = []
    while h5a.exists(item, f"{name}{len(parts)}".encode()):
        parts.append(f"{name}{len(parts)}")
    return parts


def _read(attribute: Any) -> str | list[str]:
    import numpy as np

    values = np.empty(attribute.shape, attribute.dtype)
    attribute.read(values)
    words = [w.decode() if isinstance(w, bytes) else str(w) for w in values.reshape(-1).tolist()]
    return words if attribute.shape else words[0]


if __name__ == "__main__":
    main()
