"""Write files and folders completely or not at all, never over an input; paths and checksums.

This is the only place that writes files: under a temporary name, which is then renamed. Only plain
files are replaced. A symbolic link stays, and the file that it points to is replaced; the mode and
owner of the older file are kept.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from capsedge.errors import ArtefactError, CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.files import reading

# Errors caused by the chosen path; all others are failures of the machine.
_TARGET_ERRORS = frozenset(
    (
        errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
        errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EBUSY, errno.ETXTBSY, errno.EOPNOTSUPP,
    )
)  # fmt: skip
FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
REJECTED = ".rejected"  # after the name of an output that failed its gate and was kept aside
_PREFIX, _SUFFIX = ".capsedge-", ".tmp"
_LINKS = 40  # followed at most, as Linux does


def write_bytes(target: Path | str, data: bytes | memoryview) -> None:
    """Write a file completely or not at all."""
    with atomic_writer(target) as file:
        file.write(data)


@contextmanager
def atomic_writer(target: Path | str) -> Iterator[BinaryIO]:
    """A file to write piece by piece; it takes its place when the block ends, and not if the block fails."""
    resolved, older = _resolve_target(target)
    _remove_stale(resolved.parent)
    with writable_errors(target), _replacing(resolved, older is None) as handle:
        with open(handle, "wb", closefd=False) as file:
            yield file
        if older is not None:
            reading.take_over(handle, older)


def write_text(target: Path | str, text: str) -> None:
    """Write a UTF-8 file completely or not at all; raises as ``write_bytes`` does."""
    # File names may contain bytes that are not text; they are escaped, as in messages.
    write_bytes(target, text.encode(errors="backslashreplace"))


def check_writable(target: Path | str) -> None:
    """Check before long work whether ``target`` can be written, without changing anything."""
    folder = _resolve_target(target)[0].parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"Cannot write {target}.",
            f"You have no permission to write to the folder {folder}.",
            "Choose another location.",
        )


# Suffixes of files that this package or its users write; a folder of such a name is a mistake.
_OF_FILES = frozenset((
    ".avi", ".c", ".csv", ".engine", ".gif", ".h", ".html", ".jpeg", ".jpg", ".js", ".json", ".jsonl", ".mjs",
    ".mkv", ".mov", ".mp4", ".onnx", ".parquet", ".png", ".pt", ".pth", ".safetensors", ".svg", ".tar", ".ts",
    ".txt", ".wasm", ".webm", ".yaml", ".yml", ".zip",
))  # fmt: skip


def check_folder_name(folder: Path) -> None:
    """Refuse a new folder that is named like a file.

    Raises:
        UsageError: it is.
    """
    if folder.suffix.lower() in _OF_FILES and reading.path_kind(folder) is None:
        raise UsageError(
            f"{folder} would be a folder.",
            f"Several files are written into it, and its name is that of a {folder.suffix} file.",
            f"Name a folder, for example {folder.with_suffix('')}.",
        )


def check_creatable(folder: Path) -> None:
    """Check before long work that a missing folder can be created, without changing anything."""
    check_folder_name(folder)
    above = folder
    while (kind := reading.path_kind(above)) is None and above != above.parent:
        above = above.parent
    if kind != reading.FOLDER or not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(
            f"Cannot create the folder {folder}.",
            f"You have no permission to write to the folder {above}."
            if kind == reading.FOLDER
            else f"{above} is a {kind}, not a folder.",
            "Choose another location.",
        )


def with_suffix_appended(path: Path, suffix: str) -> Path:
    """The file whose name has the suffix appended."""
    return Path(f"{path}{suffix}")


def make_folder(folder: Path) -> None:
    """Create a folder for outputs, and its parents, if they do not exist."""
    check_folder_name(folder)
    with writable_errors(folder, f"Cannot create the folder {folder}."):
        folder.mkdir(parents=True, exist_ok=True)


def check_apart(
    outputs: Iterable[Path | str], inputs: Iterable[Path | str], flat: Iterable[Path | str] = ()
) -> None:
    """Refuse outputs that would replace an input, or each other, under any name or link.

    Args:
        inputs: files, and folders of data sets.
        flat: the same, for folders of which only the files are read, not those in sub-folders.
    """
    folders, seen = {3: list(inputs), 1: list(flat)}, dict[object, Path | str]()
    files = {_identity(path): path for paths in folders.values() for path in paths}
    for output in outputs:
        resolved, older = _resolve_target(output)
        identity = _identity(resolved)
        if identity in files or (older is not None and _is_read(older, folders)):
            other = files.get(identity, output)
            raise UsageError(
                f"Cannot write {output}.",
                "It is an input of the same command"
                + ("." if str(other) == str(output) else f", named {other}."),
                "Choose another file for the output.",
            )
        if identity in seen:
            raise UsageError(
                f"Cannot write {output}.",
                f"Another output of the same command is written there: {seen[identity]}.",
                "Use a separate file for each.",
            )
        seen[identity] = output


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed with its content when the block ends."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="capsedge-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_space(error, tempfile.tempdir or "") from error
    with folder as name:
        try:
            yield Path(name)
        except Exception as error:
            if isinstance(error, CapsedgeError) and not (
                isinstance(error, ArtefactError) and error.__cause__ is not None
            ):
                raise
            if (isinstance(error, OSError) and error.errno in FULL) or reading.is_full(name):
                raise _no_space(error, name) from error
            raise


def sha256(path: Path | str) -> str:
    """SHA-256 of a file, in hexadecimal. Raises UsageError if it cannot be read."""
    import hashlib

    digest = hashlib.sha256()
    with reading.open_regular_file(path) as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _resolve_target(target: Path | str) -> tuple[Path, os.stat_result | None]:
    """The file behind a name, with links followed, and what is there now."""
    target = Path(target)
    older: os.stat_result | None = None
    with writable_errors(target):
        with suppress(FileNotFoundError):
            older = os.stat(target)
        resolved = Path(os.path.realpath(target))
        if older is not None:
            kind = reading.path_kind(target)
            if kind != reading.FILE:
                raise UsageError(f"Cannot write {target}.", f"It is a {kind}.", "Pass a file.")
        if _of_kernel(target):
            raise UsageError(
                f"Cannot write {target}.",
                "It is the kernel's name for an open file.",
                "Pass a file.",
            )
        folder = reading.path_kind(resolved.parent)
        if folder != reading.FOLDER:
            raise UsageError(
                f"Cannot write {target}.",
                f"There is no folder {resolved.parent}."
                if folder is None
                else f"{resolved.parent} is a {folder}, not a folder.",
                "Create it, or choose another location."
                if folder is None
                else "Choose another location.",
            )
    return resolved, older


def _of_kernel(path: Path) -> bool:
    """Whether a link on the path lies in /proc, as for /dev/stdout, and so leads to an open file."""
    for _ in range(_LINKS):
        folder = os.path.realpath(path.parent)
        if folder == "/proc" or folder.startswith("/proc/"):
            return True
        try:
            path = Path(folder, os.readlink(os.path.join(folder, path.name)))
        except OSError:
            return False
    return False


@contextmanager
def writable_errors(target: Path | str, what: str = "") -> Iterator[None]:
    """Turn the block's failures to write into readable errors."""
    try:
        os.fsencode(target)
        yield
    except BrokenPipeError:  # of standard output, which the block prints to
        raise
    except OSError as error:
        why = f"{error.strerror or error}."
        if error.errno in _TARGET_ERRORS or isinstance(error, FileExistsError):
            raise UsageError(
                what or f"Cannot write {target}.", why, "Choose another location."
            ) from error
        raise EnvironmentProblem(
            f"Writing {target} failed.",
            why,
            "Free some space, or choose another location.",
        ) from error
    except ValueError as error:
        reading.check_possible_path(target, error)
        raise


@contextmanager
def _replacing(target: Path, fresh: bool) -> Iterator[int]:
    """A new file next to the target, open and locked; it is renamed when the block ends, and removed if it
    fails.

    The lock shows other processes that it is in use; ``_remove_stale`` removes those without one.
    """
    # The kernel applies the umask. A file that replaces another stays private until it has the other's mode.
    mode = 0o666 if fresh else 0o600
    while True:
        name = target.parent / f"{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}"
        handle = -1
        try:
            handle = os.open(name, reading.CREATE, mode)
            reading.lock(handle)
            if os.fstat(handle).st_nlink == 0:
                continue  # removed as stale before it was locked
            yield handle
            os.fsync(handle)
            if not reading.RENAMES_OPEN_FILES:
                os.close(handle)
                handle = -1
            os.replace(name, target)
            return
        finally:
            if handle >= 0:
                os.close(handle)
            with suppress(OSError):
                os.unlink(name)


def _remove_stale(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not (entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)):
                continue
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    reading.remove_unused(entry.path)


def _identity(path: Path | str) -> object:
    """The identity of a file, the same for all its names."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _is_read(older: os.stat_result, folders: Mapping[int, Iterable[Path | str]]) -> bool:
    """Whether a reader would read the file from one of the folders, given by the depth of the read."""
    for depth, folder in ((depth, f) for depth, paths in folders.items() for f in paths):
        if not os.path.isdir(folder):
            continue
        for entry in _data_files(Path(folder), depth):
            if entry.inode() == older.st_ino or entry.is_symlink():
                with suppress(OSError):
                    # DirEntry.stat has no identity on Windows.
                    if os.path.samestat(os.stat(entry.path), older):
                        return True
    return False


def _data_files(folder: Path, depth: int) -> Iterator[os.DirEntry[str]]:
    """Files of a folder of images or a data set, and of the folders in it."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if depth > 1:
                    yield from _data_files(Path(entry.path), depth - 1)
            elif entry.name.lower().endswith(_DATA) or "_batch" in entry.name:
                yield entry


_DATA = (
    ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".npz", ".gz", "-ubyte"
)  # fmt: skip


def _no_space(error: Exception, folder: str) -> EnvironmentProblem:
    why = error.strerror if isinstance(error, OSError) else "Its disk is full"
    return EnvironmentProblem(
        f"The folder of temporary files{' ' + folder if folder else ''} cannot be written.",
        f"{why or error}.",
        "Free some space, or name another folder: TMPDIR=/path.",
    )


# --- Folders ---


def write_folder(
    target: Path, files: Mapping[str, bytes | Path], replaced: Collection[str]
) -> None:
    """Write a folder that holds exactly these files.

    Args:
        target: the folder; a link to one stays a link.
        files: contents, or files to copy, by their paths in the folder, ``/`` between names.
        replaced: the paths that an earlier folder may hold, as in `check_replaceable`.
    """
    check_replaceable(target, replaced)
    resolved = Path(os.path.realpath(target))
    with writable_errors(target):
        resolved.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=resolved.parent, prefix=".capsedge-") as aside:
            fresh, older = Path(aside, "new"), Path(aside, "old")
            for name, content in files.items():
                _write(fresh / name, content)
            if resolved.exists():
                os.rename(resolved, older)
            try:
                os.rename(fresh, resolved)
            except BaseException:
                if older.exists():
                    os.rename(older, resolved)
                raise


def check_replaceable(target: Path, replaced: Collection[str]) -> None:
    """Refuse a target that is not a folder, holds more than what may be replaced, or is named like a file."""
    check_folder_name(target)
    kind = reading.path_kind(target)
    if kind is None:
        return
    if kind != reading.FOLDER:
        raise UsageError(f"Cannot write {target}.", f"It is a {kind}.", "Pass a folder.")
    for folder, inside, names in os.walk(target):
        links = [name for name in inside if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            inner = Path(folder, name).relative_to(target).as_posix()
            if inner not in replaced:
                raise UsageError(
                    f"Cannot replace the folder {target}.",
                    f"It holds {inner}, which was not written by an earlier run, or was changed since.",
                    "Choose a new or empty folder.",
                )


def unchanged_files(folder: Path, recorded: Mapping[str, str]) -> list[str]:
    """The files of a folder that still have the SHA-256 recorded for their path."""
    paths = []
    for path, checksum in recorded.items():
        with suppress(CapsedgeError, OSError, ValueError):
            if sha256(folder / path) == checksum:
                paths.append(path)
    return paths


def _write(path: Path, content: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)


# --- What callers may pass as a file: a path or, for models, its bytes ---

ModelLike: TypeAlias = "str | os.PathLike[str] | bytes"

MODEL, MODEL_OR_BYTES = "the path of a model", "the path of a model or its bytes"
WEIGHTS, DATA = "the path of a file of weights", "the path of a data set"
OUTPUT, FILE, SESSION = "the path of a file to write", "the path of a file", "a session"

_MODULE, _STATE, _ARRAY, _ONNX = "a module", "a state dict", "an array", "an ONNX model in memory"
_BUILD = "Build the network, load the weights with load_state_dict, and "
_FIXES = {
    (MODEL, _MODULE): "Export it first: capsedge.export(module, 'model.onnx', example=...).",
    (MODEL, _STATE): _BUILD + "export it: capsedge.export(module, 'model.onnx', example=...).",
    (MODEL, _ARRAY): "Arrays are for a loaded model: capsedge.load('model.onnx').run(array).",
    (MODEL, _ONNX): "Save it with onnx.save(model, 'model.onnx') and pass that path.",
    (MODEL_OR_BYTES, _ONNX): "Pass model.SerializeToString().",
    (WEIGHTS, _MODULE): "It is loaded already: pass it to capsedge.export.",
    (WEIGHTS, _STATE): _BUILD + "pass it to capsedge.export; or save the weights with torch.save.",
    (DATA, _ARRAY): "Save it with numpy.savez('data.npz', images=array) and pass that path.",
}


@contextmanager
def as_file(model: ModelLike) -> Iterator[Path]:
    """The model's file, which may be named by its name in the zoo; for bytes, a temporary ``model.onnx``."""
    from capsedge.runtime.zoo import zoo_model

    if not isinstance(model, bytes):
        bundled = zoo_model(model) if isinstance(model, str) else None
        yield bundled or as_path(model, MODEL_OR_BYTES)
        return
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        write_bytes(path, model)
        yield path


def as_path(value: object, expected: str) -> Path:
    """A path, from what a caller passed.

    Args:
        expected: what should have been passed, one of the constants above.
    """
    if isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str):
        return Path(value)
    raise path_error(value, expected)


def path_error(value: object, expected: str) -> UsageError:
    """The error for an unexpected value, which says how to convert it if possible."""
    kind = type_in_words(value)
    usual = "Pass a string or a pathlib.Path."
    if expected == SESSION:
        usual = "Load one: capsedge.load('model.onnx')."
    of_models = _FIXES.get((MODEL, kind), usual) if expected == MODEL_OR_BYTES else usual
    return UsageError(
        f"{kind[0].upper()}{kind[1:]} is not {expected}.",
        "",
        _FIXES.get((expected, kind), of_models),
    )


def type_in_words(value: object) -> str:
    """A description of a value; types of frameworks are recognized by attributes, without imports."""
    if value is None or isinstance(value, (str, os.PathLike)):
        return "None" if value is None else "a path"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Mapping):
        weights = value and all(hasattr(v, "shape") for v in value.values())
        return _STATE if weights else f"a value of type {type(value).__name__}"
    for attribute, words in (
        ("state_dict", _MODULE),
        ("SerializeToString", _ONNX),
        ("__array__", _ARRAY),
    ):
        if hasattr(value, attribute):
            return words
    return f"a value of type {type(value).__name__}"
