"""Loading a model: an ONNX file, its bytes, or a TensorRT engine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from capsedge import zoo
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime import passport
from capsedge.runtime.backends import providers
from capsedge.runtime.backends.cores import usable_cores
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend, check_overloads
from capsedge.runtime.decoder import RECONSTRUCTION, Decoder
from capsedge.runtime.files import opening
from capsedge.runtime.files.given import MODEL, as_path
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.reading import onnx_file
from capsedge.runtime.scores import POSES
from capsedge.runtime.session import Session

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Backend
    from capsedge.runtime.ensemble import Ensemble

OPS = ("auto", "fused", "portable")
MAX_THREADS = 1024
SIDE_BY_SIDE = 2  # threads of each member of an ensemble, from which on they run at the same time
_VERSION = re.compile(r"[0-9.]{1,19}")


@overload
def load(  # type: ignore[overload-overlap] # a string is a sequence of strings, and means one file
    path: str | os.PathLike[str] = ...,
    *,
    device: str | None = ...,
    threads: int | None = ...,
    ops: str = ...,
    provider: str = ...,
    contexts: int | None = ...,
) -> Session: ...


@overload
def load(
    path: Sequence[str | os.PathLike[str]],
    *,
    device: str | None = ...,
    threads: int | None = ...,
    ops: str = ...,
    provider: str = ...,
    contexts: int | None = ...,
) -> Ensemble: ...


def load(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = zoo.DEFAULT,
    *,
    device: str | None = None,
    threads: int | None = None,
    ops: str = "auto",
    provider: str = "auto",
    contexts: int | None = None,
) -> Session | Ensemble:
    """Load a model.

    Args:
        path: an ONNX file; those of ``capsedge export`` can `predict`, any other can only `run`. Or a
            TensorRT engine of ``capsedge build``, named ``*.engine``. Or the name of a model of the zoo:
            ``digits-dynamic`` (the default), ``digits-em`` or ``digits-attention``. As a string, such a name
            always means the zoo; a file of that name is ``./digits-em``, or a `pathlib.Path`. A list of
            several is an ensemble, which averages their scores.
        device: ``cpu``, ``cuda`` or ``cuda:1``; by default the CPU, or the first GPU for an engine. The
            requested device is used or refused, never replaced.
        threads: threads of one inference; None leaves the choice to ONNX Runtime (a thread per core). The
            members of an ensemble share them.
        ops: ``auto`` runs capsedge's nodes with its operator library if that is installed, otherwise with
            the function bodies of the file; ``fused`` requires the library, ``portable`` never uses it. Its
            kernels are for the CPU, so on a GPU the function bodies run.
        provider: ONNX Runtime's provider on a GPU: ``cuda`` (the choice of ``auto``) or ``tensorrt``.
        contexts: number of calls of an engine that run at the same time, each with its own memory on the
            GPU; further calls wait. None: 4.

    Returns:
        The session, ready to run; for a list an `Ensemble`.

    Raises:
        UsageError: there is no such file or model, the file cannot be read, an argument is wrong, or the
            models of a list do not fit each other.
        EnvironmentProblem: something needed to run the model is missing: ONNX Runtime, one of its providers,
            the operator library, TensorRT, or the GPU.
        UnsupportedModelError: part of the model would not run on the requested device.
        ArtefactError: the file is damaged, refers to other files, is refused by ONNX Runtime, or is an
            engine that was built for another machine.

    Example:
        >>> with capsedge.load("digits.onnx", threads=2) as session:
        ...     session.predict("image.png")[0].label
    """
    if isinstance(path, (list, tuple)):
        options = {"device": device, "ops": ops, "provider": provider, "contexts": contexts}
        return _load_ensemble([model_path(each) for each in path], threads, options)
    path = model_path(path)  # type: ignore[arg-type]
    if ops not in OPS:
        raise UsageError(f"ops is '{ops}'.", f"Known: {', '.join(OPS)}.", "Choose one of them.")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(
            f"threads is {threads}.",
            f"It must be 1 to {MAX_THREADS}.",
            "Leave it out for one per core.",
        )
    if passport.is_engine(path):
        return _load_engine(path, device, ops, provider, contexts)
    if contexts is not None:
        raise UsageError(
            f"contexts is {contexts} for {path}.", "Only engines have contexts.", "Leave it out."
        )
    gpu = providers.parse_device(device or "cpu")
    chosen = providers.resolve(provider, gpu)
    if gpu is not None:
        if ops == "fused":
            raise UsageError(
                "ops is 'fused' on a GPU.",
                "The operator library of ONNX Runtime has kernels for the CPU.",
                "Use ops 'auto', or build an engine with `capsedge build --plugin fused`.",
            )
        ops = "portable"
    return _load_onnx(path, onnx_file.read_bytes(path), threads, ops, chosen, gpu)


def _load_ensemble(paths: Sequence[Path], threads: int | None, options: dict[str, Any]) -> Ensemble:
    """An ensemble whose members share the threads.

    Members run one after another with all threads, which is faster for few (docs/how-to/ensembles.md), and
    at the same time where each has `SIDE_BY_SIDE` threads of its own, or runs on a GPU.
    """
    # Not at the top: most loads are of one file, and threads take time to import.
    from capsedge.runtime.averaging import check_count
    from capsedge.runtime.ensemble import Ensemble

    check_count(len(paths))
    _check_different(paths)
    count = len(paths)
    on_gpu = options["device"] not in (None, "cpu") or any(map(passport.is_engine, paths))
    total = usable_cores() if threads is None else threads
    split = not on_gpu and total >= SIDE_BY_SIDE * count
    shares = [total // count + (k < total % count) if split else threads for k in range(count)]
    members: list[Session] = []
    try:
        for path, share in zip(paths, shares, strict=True):
            engine = passport.is_engine(path)
            own = options if engine else {**options, "contexts": None}
            members.append(load(path, threads=None if engine else share, **own))
        return Ensemble(members, together=split or on_gpu)
    except BaseException:
        for member in members:
            member.close()
        raise


def _check_different(paths: Sequence[Path]) -> None:
    """Refuse a file that is given twice, under whatever name.

    Raises:
        UsageError: two have the same content.
    """
    seen: dict[str, Path] = {}
    for path in paths:
        if opening.kind(path) != opening.FILE:
            continue  # loading says what it is
        checksum = sha256(path)
        if checksum in seen:
            other = seen[checksum]
            twice = (
                f"{path} is given twice." if other == path else f"{path} is the same as {other}."
            )
            raise UsageError(
                f"{twice[:-1]}, and would count twice.",
                "Members of an ensemble differ, for example in the seed of their training.",
                "Give each file once.",
            )
        seen[checksum] = path


def model_path(given: str | os.PathLike[str]) -> Path:
    """The file that `load` is given, by its path or by its name in the zoo.

    Raises:
        UsageError: there is no such model.
    """
    path = as_path(given, MODEL)
    if not isinstance(given, str):
        return path
    found = zoo.zoo_model(given)
    if found is not None:
        return found
    plain = path.name == given and not path.suffix  # neither a folder nor a suffix: a name
    if plain and opening.kind(path) is None:
        raise zoo.unknown_model(given)
    return path


def load_bytes(
    data: bytes,
    path: Path | str = "the model",
    *,
    threads: int | None = None,
    ops: str = "auto",
) -> Session:
    """Load the content of an ONNX file on the CPU.

    Args:
        data: the content.
        path: its name in errors; nothing is read from there.
        threads, ops: as for `load`.

    Raises:
        EnvironmentProblem, UnsupportedModelError, ArtefactError: as `load`.
    """
    return _load_onnx(Path(path), data, threads, ops, providers.resolve("auto", None), None)


def _load_onnx(
    path: Path, data: bytes, threads: int | None, ops: str, provider: str, gpu: int | None
) -> Session:
    summary = onnx_file.summarize(data, str(path))
    onnx_file.check_harmless(summary, str(path))
    metadata = ModelMetadata.from_properties(summary.metadata)
    library = _library(path, summary, ops)
    check_overloads(path, summary, library is not None)

    def open_file(content: bytes) -> OnnxRuntimeBackend:
        types = summary.capsedge_types
        return OnnxRuntimeBackend(content, str(path), threads, library, provider, gpu, types)

    backend = open_file(data)
    decoder = _decoder(path, data, backend, metadata, open_file)
    return Session(
        path, backend, metadata, _operators_run(library, summary), gpu=gpu, decoder=decoder
    )


def _decoder(
    path: Path,
    data: bytes,
    backend: Backend,
    metadata: ModelMetadata | None,
    open_part: Callable[[bytes], Backend],
) -> Decoder | None:
    """The decoder of a file that has one."""
    ports = {port.name: port for port in backend.outputs}
    stated = metadata.outputs if metadata else None
    poses = ports.get(POSES if stated is None else stated.poses)
    if RECONSTRUCTION not in ports or poses is None:
        return None
    return Decoder(data, path, poses, open_part)


def _operators_run(library: Path | None, summary: onnx_file.OnnxSummary) -> str:
    """The value of `Session.ops` for an ONNX file."""
    if library is None:
        return "portable"
    return "mixed" if summary.expanded_routing else "fused"


def _load_engine(
    path: Path, device: str | None, ops: str, provider: str, contexts: int | None
) -> Session:
    """A session for a TensorRT engine, whose passport states how it was built."""
    gpu = providers.parse_device(device or "cuda")
    if gpu is None or ops != "auto" or provider != "auto":
        raise UsageError(
            f"{path} is a TensorRT engine.",
            "It runs on a GPU, without ONNX Runtime and with the operators that it was built with.",
            "Leave out device, ops and provider, or load the ONNX file that it was built from.",
        )
    from capsedge.runtime.backends.tensorrt_backend import TensorRTBackend
    from capsedge.runtime.backends.tensorrt_slots import CONTEXTS

    backend = TensorRTBackend(path, gpu, contexts=CONTEXTS if contexts is None else contexts)
    built = backend.passport
    ops = "fused" if built.plugin == "fused" else "portable"
    return Session(path, backend, built.model, ops, built, gpu)


def _known_operators(path: Path, summary: onnx_file.OnnxSummary) -> None:
    """Refuse operators of a later version of capsedge that have no function body.

    Raises:
        EnvironmentProblem: names them and the version to install.
    """
    if not summary.unknown_operators:
        return
    from capsedge import __version__

    ours = summary.producer == "capsedge" and _VERSION.fullmatch(summary.producer_version)
    wrote = f"The file was written by capsedge {summary.producer_version}. " if ours else ""
    wanted = f"'capsedge>={summary.producer_version}'" if ours else "capsedge"
    raise EnvironmentProblem(
        f"{path} needs operators that this version of capsedge does not have: "
        f"{', '.join(summary.unknown_operators)}.",
        f"{wrote}This is capsedge {__version__}, and the nodes carry no function bodies that could run "
        "instead.",
        f"Install a later version, `pip install --upgrade {wanted}`, or export the file again with "
        "`capsedge export --ops auto`, which writes the bodies.",
    )


def _library(path: Path, summary: onnx_file.OnnxSummary, ops: str) -> Path | None:
    """The library to register for ``ops``."""
    _known_operators(path, summary)
    if not summary.capsedge_nodes:
        if ops == "fused":
            raise UsageError(
                f"{path} has no capsedge nodes for the operator library to run.",
                "It was exported with `--ops portable`, or by another tool.",
                "Load it with ops 'auto', or export it again with `capsedge export --ops auto`.",
            )
        return None
    library = None if ops == "portable" else find_library()
    if library is not None:
        return library
    if ops == "fused":
        raise EnvironmentProblem(
            "The operator library of capsedge is not installed.",
            "It is compiled when capsedge is installed on a machine with a C++17 compiler.",
            "Install a compiler, then `pip install --force-reinstall --no-deps capsedge`; "
            "or use ops 'auto'.",
        )
    if summary.missing_functions:
        raise EnvironmentProblem(
            f"{path} runs only with the operator library of capsedge.",
            f"Its {', '.join(summary.missing_functions)} nodes have no function body, and "
            + ("ops is 'portable'." if ops == "portable" else "the library is not installed."),
            "Export it again with `capsedge export --ops auto`, or load it where the library is installed.",
        )
    return None
