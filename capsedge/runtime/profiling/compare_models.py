"""Several models, and peers that run the same models: ``capsedge profile``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.runtime.backends.backend import GraphBackend
from capsedge.runtime.onnx_file.summary import read_model_bytes, summarize
from capsedge.runtime.profiling.compare import CAPSEDGE, Entrant, compare
from capsedge.runtime.profiling.profile import (
    ProfileReport,
    limits_of,
    profile,
    random_inputs,
    session_device,
)
from capsedge.runtime.profiling.profile_options import ProfileOptions
from capsedge.runtime.profiling.worker import (
    CONVERTED_SUFFIXES,
    Specification,
    graphs_argument,
    ops_argument,
)
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import distinct_names
from capsedge.runtime.session.session import Session

# Peers that cannot read ONNX functions.
CONVERTED = {"openvino": "OpenVINO", "litert": "LiteRT", "mnn": "MNN"}
TORCH_WORKER = (sys.executable, "-m", "capsedge.verification.reference")


def profile_models(
    sessions: Sequence[Session],
    options: ProfileOptions = ProfileOptions(),
    *,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    peers: Sequence[str] = (),
    checkpoints: Sequence[Path] = (),
    peer_model: Path | None = None,
    module: str = "",
    progress: Progress = silent,
) -> ProfileReport:
    """Profile several models, then compare them and their peers.

    Args:
        sessions: one per model.
        peers: other runtimes of the same models: ``torch``, ``ort``, ``openvino``, ``litert``, ``mnn``;
            they must be installed (`check_installed`).
        checkpoints: for the peer ``torch``, one per session.
        module: instead of checkpoints, the user's own network (``Specification.module``).
        peer_model: another file for the other peers to run.

    Returns:
        Runs of all models, and comparisons if there are peers or several models; for one ONNX file on a GPU,
        of the ways to run it: function bodies or kernels, with and without CUDA graphs. An entrant with
        different outputs is listed by ``Comparison.failed`` and not timed.
    """
    side_by_side = bool(peers) or len(sessions) > 1
    entrants = _entrants(sessions, peers, checkpoints, peer_model, module) if side_by_side else []
    report = ProfileReport({}, None, [])
    names = distinct_names([session.path for session in sessions])
    for session, name in zip(sessions, names, strict=True):
        one = profile(session, options, inputs=inputs, progress=progress)
        report.runs += [replace(run, model=name) for run in one.runs]
        report.peaks, report.machine = report.peaks or one.peaks, one.machine
    if not entrants:
        entrants = _ways(sessions[0])
    if len(entrants) > 1:
        feeds = (
            [dict(inputs)]
            if inputs
            else [random_inputs(sessions[0], size) for size in options.batch]
        )
        report.comparisons += [
            compare(entrants, each, limits_of(options), progress) for each in feeds
        ]
    return report


def _entrants(
    sessions: Sequence[Session],
    peers: Sequence[str],
    checkpoints: Sequence[Path],
    peer_model: Path | None,
    module: str,
) -> list[Entrant]:
    """Every model in capsedge, and every model in every peer."""
    if peer_model is not None and len(sessions) > 1:
        raise UsageError(
            "--peer-model does not work with several models.",
            "It replaces one model in the peers.",
            "Compare one model at a time.",
        )
    if peer_model is not None:
        read_model_bytes(peer_model)  # a missing file is not a failure of the peer
    entrants = []
    names = distinct_names([session.path for session in sessions])
    for number, (session, name) in enumerate(zip(sessions, names, strict=True)):
        model = str(session.path)
        suffix = f", {name}" if len(sessions) > 1 else ""
        threads, device = session.backend.threads, session_device(session)
        if peers and device != "cpu":
            raise UsageError(
                "--compare does not work on a GPU.",
                "The peers run on the CPU.",
                "Use --device cpu, or profile several models or engines without --compare.",
            )
        mine = Specification(
            CAPSEDGE, model, "", threads=threads, ops=ops_argument(session), device=device,
            graphs=graphs_argument(session),
        )  # fmt: skip
        entrants.append(Entrant(f"capsedge {session.backend.ops}{suffix}", mine, model))
        for peer in peers:
            file = session.path if peer_model is None or peer == "torch" else peer_model
            if peer in CONVERTED:
                _check_portable(file, peer)
            theirs = Specification(peer, str(file), "", threads=threads)
            if peer == "torch":
                named = "" if module else str(checkpoints[number])
                theirs = replace(theirs, checkpoint=named, module=module)
                entrants.append(Entrant(f"torch{suffix}", theirs, model, TORCH_WORKER))
            else:
                entrants.append(Entrant(f"{peer}{suffix}", theirs, model))
    return entrants


def _ways(session: Session) -> list[Entrant]:
    """How ONNX Runtime can run a model on a GPU: bodies or kernels, without and with graphs."""
    backend, device = session.backend, session_device(session)
    if backend.engine_metadata is not None or not isinstance(backend, GraphBackend):
        return []
    kernels = {"portable": "portable"}
    if backend.ops != "portable":
        kernels[backend.ops] = "auto"
    captures: dict[str, bool | None] = {"": False}
    if not backend.no_graph_reason:
        captures[", CUDA graphs"] = None
    model = str(session.path)
    return [
        Entrant(
            f"capsedge {name}{suffix}",
            Specification(
                CAPSEDGE, model, "", threads=backend.threads, ops=ops, device=device, graphs=graphs
            ),
            model,
        )
        for name, ops in kernels.items()
        for suffix, graphs in captures.items()
    ]


def _check_portable(file: Path, peer: str) -> None:
    """Refuse files that a peer cannot read: those with functions, and those of another runtime."""
    name = CONVERTED[peer]
    again = (
        f"Export it again with `capsedge export --target {peer} -o {peer}.onnx`, and add "
        f"--peer-model {peer}.onnx."
    )
    if file.suffix in CONVERTED_SUFFIXES.values():
        if CONVERTED_SUFFIXES.get(peer) != file.suffix:
            raise UsageError(f"{name} cannot read {file}.", "It belongs to another runtime.", again)
        return
    if summarize(read_model_bytes(file), str(file)).capsedge_nodes:
        raise UnsupportedModelError(
            f"{name} cannot read {file}.",
            f"Its capsedge nodes are ONNX functions, which {name} does not know.",
            again,
        )
