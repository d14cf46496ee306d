"""Loading a model: an ONNX file, its bytes, or a TensorRT engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from capsedge.errors import UsageError
from capsedge.options import takes_options
from capsedge.runtime import zoo
from capsedge.runtime.backends import BACKENDS
from capsedge.runtime.backends.backend import Backend, ModelFile, usable_cores
from capsedge.runtime.files import reading
from capsedge.runtime.files.writing import MODEL, as_path, sha256
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.decoder import decoder_of
from capsedge.runtime.session.session import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import RuntimeKeywords
    from capsedge.runtime.session.ensemble import Ensemble

SIDE_BY_SIDE = 2  # with at least this many threads each, members of an ensemble run in parallel


@overload
def load(  # type: ignore[overload-overlap] # a string is a sequence of strings, and means one file
    path: str | os.PathLike[str] = ...,
    options: RuntimeOptions = ...,
    **_keywords: Unpack[RuntimeKeywords],
) -> Session: ...


@overload
def load(
    path: Sequence[str | os.PathLike[str]],
    options: RuntimeOptions = ...,
    **_keywords: Unpack[RuntimeKeywords],
) -> Ensemble: ...


@takes_options(RuntimeOptions)
def load(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = zoo.DEFAULT,
    options: RuntimeOptions = RuntimeOptions(),
    **_keywords: Unpack[RuntimeKeywords],
) -> Session | Ensemble:
    """Load a model.

    Args:
        path: an ONNX file; files from ``capsedge export`` can `predict`, others can only `run`. Or a TensorRT
            engine of ``capsedge build``, named ``*.engine``. Or the name of a model of the zoo:
            ``digits-dynamic`` (the default), ``digits-em`` or ``digits-attention``. As a string, such a name
            always means the zoo; a file of that name is ``./digits-em``, or a `pathlib.Path`. A list of
            several is an ensemble, which averages their scores.

    Returns:
        The session, ready to run; for a list an `Ensemble`.

    Raises:
        UsageError: there is no such file or model, the file cannot be read, an argument is wrong, or the
            models of a list do not fit each other.
        EnvironmentProblem: something needed to run the model is missing: ONNX Runtime, one of its providers,
            the operator library, TensorRT, or the GPU.
        UnsupportedModelError: part of the model would not run on the requested device.
        ArtefactError: the file is damaged, refers to other files, is refused by ONNX Runtime, or is an engine
            built for another machine.

    Example:
        >>> with capsedge.load("digits.onnx", threads=2) as session:
        ...     session.predict("image.png")[0].label
    """
    if isinstance(path, (list, tuple)):
        return _load_ensemble([ModelFile(model_path(each)) for each in path], options)
    return _load(ModelFile(model_path(path)), options)  # type: ignore[arg-type]


def load_bytes(
    data: bytes,
    path: Path | str = "the model",
    *,
    threads: int | None = None,
    ops: str = "auto",
) -> Session:
    """Load the content of an ONNX file on the CPU."""
    return _load(ModelFile(Path(path), data), RuntimeOptions(threads=threads, ops=ops))


def _load(file: ModelFile, options: RuntimeOptions) -> Session:
    backend = _open(file, options)
    try:
        return Session(file.path, backend, decoder_of(file, backend))
    except BaseException:
        backend.close()
        raise


def _open(file: ModelFile, options: RuntimeOptions) -> Backend:
    """The file in the first backend that accepts it."""
    for backend in BACKENDS.values():
        kind = backend()
        if kind.accepts(file):
            return kind.open(file, options)
    raise UsageError(
        f"No backend can run {file.path}.",
        f"Known backends: {', '.join(BACKENDS)}.",
        "Pass an ONNX file, or an engine from `capsedge build`.",
    )


def _load_ensemble(files: Sequence[ModelFile], options: RuntimeOptions) -> Ensemble:
    """An ensemble whose members share the threads.

    Members run one after another with all threads, which is faster for few (docs/how-to/ensembles.md), and
    at the same time where each has `SIDE_BY_SIDE` threads of its own, or runs on a GPU.
    """
    # Not at the top: most loads are of one file, and threads take time to import.
    from capsedge.runtime.session.ensemble import Ensemble, check_count

    check_count(len(files))
    _check_different([file.path for file in files])
    count = len(files)
    on_gpu = options.device not in (None, "cpu") or any(file.is_engine for file in files)
    total = usable_cores() if options.threads is None else options.threads
    split = not on_gpu and total >= SIDE_BY_SIDE * count
    members: list[Session] = []
    try:
        for k, file in enumerate(files):
            share = total // count + (k < total % count) if split else options.threads
            contexts = options.contexts if file.is_engine else None
            members.append(_load(file, replace(options, threads=share, contexts=contexts)))
        return Ensemble(members, together=split or on_gpu)
    except BaseException:
        for member in members:
            member.close()
        raise


def _check_different(paths: Sequence[Path]) -> None:
    """Refuse a file that is given twice, even under different names."""
    seen: dict[str, Path] = {}
    for path in paths:
        if reading.path_kind(path) != reading.FILE:
            continue  # loading says what it is
        checksum = sha256(path)
        if checksum in seen:
            other = seen[checksum]
            twice = (
                f"{path} is given twice." if other == path else f"{path} is the same as {other}."
            )
            raise UsageError(
                f"{twice[:-1]} and would count twice.",
                "Members of an ensemble differ, for example in their training seed.",
                "Pass each file once.",
            )
        seen[checksum] = path


def model_path(model: str | os.PathLike[str]) -> Path:
    """The file that `load` is given, by its path or by its name in the zoo."""
    path = as_path(model, MODEL)
    if not isinstance(model, str):
        return path
    of_zoo = zoo.zoo_model(model)
    if of_zoo is not None:
        return of_zoo
    plain = path.name == model and not path.suffix  # neither a folder nor a suffix: a name
    if plain and reading.path_kind(path) is None:
        raise zoo.unknown_model(model)
    return path
