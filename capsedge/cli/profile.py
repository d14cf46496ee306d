"""``capsedge profile``: where every microsecond goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsedge.cli import _common
from capsedge.cli._places import READS, WRITES
from capsedge.cli._tables import print_table
from capsedge.errors import ExitCode, UnsupportedModelError, UsageError
from capsedge.runtime.charts import check_chart
from capsedge.runtime.files.writing import check_writable

if TYPE_CHECKING:
    from capsedge.runtime.profiling import ProfileReport
    from capsedge.runtime.profiling.comparison import Comparison, Entrant
    from capsedge.runtime.profiling.measure import Limits
    from capsedge.runtime.profiling.tables import Table
    from capsedge.runtime.session import Session

CONVERTED = {
    "openvino": "OpenVINO",
    "litert": "LiteRT",
    "mnn": "MNN",
}  # peers that read no functions


def command(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            help="ONNX files of any tool, or TensorRT engines; the zoo's digit model by default."
        ),
        READS,
    ] = None,
    compare: Annotated[
        str,
        typer.Option(
            help="Peers to run the same models in turns with: torch, ort, openvino, litert, mnn."
        ),
    ] = "",
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, as in 1,8.")] = "1",
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, help="Threads of one inference; one a physical core by default."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or cuda:1; by default the CPU, for an engine the GPU."),
    ] = None,
    ops: Annotated[
        str,
        typer.Option("--ops", help="auto, fused (operator library) or portable (function bodies)."),
    ] = "auto",
    warmup: Annotated[float, typer.Option(help="Seconds of runs that are not counted.")] = 0.5,
    duration: Annotated[float, typer.Option(help="Seconds of counted runs.")] = 3.0,
    iterations: Annotated[int, typer.Option(help="Counted runs at least.")] = 10,
    operators: Annotated[
        bool, typer.Option("--operators/--no-operators", help="Time every operator.")
    ] = True,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Checkpoint for --compare torch; the zoo's by default."),
        READS,
    ] = None,
    peer_model: Annotated[
        Path | None,
        typer.Option(help="The file that peers run instead, for example the portable export."),
        READS,
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the report as one HTML file."), WRITES
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write the report's charts as a PNG."), WRITES
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the report as Markdown."), WRITES
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a few runs as a trace for Perfetto."), WRITES
    ] = None,
    as_json: _common.Json = False,
) -> None:
    """Measure latency, memory and time by layer; put backends and models side by side."""
    import capsedge
    from capsedge.runtime.profiling import ProfileReport, profile
    from capsedge.runtime.profiling.comparison import check_installed
    from capsedge.runtime.profiling.profiler import checked_limits

    peers = [p.strip() for p in compare.split(",") if p.strip()]
    check_installed(peers)
    for option, value, needed in (
        ("--peer-model", peer_model, bool(peers)),
        ("--checkpoint", checkpoint, "torch" in peers),
    ):
        if value is not None and not needed:
            raise UsageError(
                f"{option} without its peer.",
                "It is for what --compare names.",
                "Add --compare torch."
                if option == "--checkpoint"
                else "Add --compare ort,openvino.",
            )
    batches = _common.batch_sizes(batch)
    limits = checked_limits(warmup, duration, iterations)
    for target in (html, markdown, trace):
        if target is not None:
            check_writable(target)
    if png is not None:
        check_chart(png)
    if trace is not None and not operators:
        raise UsageError(
            "--trace with --no-operators.", "A trace shows operators.", "Leave --no-operators out."
        )
    sessions = [
        capsedge.load(path, device=device, threads=threads, ops=ops)
        for path in models or [_default()]
    ]
    side_by_side = bool(peers) or len(sessions) > 1
    entrants = _entrants(sessions, peers, checkpoint, peer_model) if side_by_side else []
    runs, peaks, machine = [], None, {}
    for session in sessions:
        found = profile(
            session,
            batch=batches,
            warmup=warmup,
            duration=duration,
            iterations=iterations,
            operators=operators,
            progress=_common.log,
        )
        runs += found.runs
        peaks, machine = peaks or found.peaks, found.machine
    comparisons = [_compare(sessions[0], entrants, n, limits) for n in batches if entrants]
    report = ProfileReport(machine, peaks, runs, comparisons)
    _write(report, html, png, markdown, trace)
    if as_json:
        _common.print_json(report.to_dict())
    else:
        _show(report)
    if any(found.failed for found in comparisons):
        _common.log("error: a peer computes something else; it was not timed.")
        raise typer.Exit(int(ExitCode.PARITY))


def _default() -> Path:
    from capsedge.zoo import default_model

    return default_model()


def _entrants(
    sessions: list[Session], peers: list[str], checkpoint: Path | None, peer_model: Path | None
) -> list[Entrant]:
    """Every model in capsedge, and every model in every peer."""
    from capsedge.runtime.profiling.comparison import CAPSEDGE, Entrant
    from capsedge.runtime.profiling.profiler import session_device, session_threads
    from capsedge.runtime.profiling.worker import Specification, ops_argument
    from capsedge.runtime.reading.onnx_file import read_bytes

    if peer_model is not None and len(sessions) > 1:
        raise UsageError(
            "--peer-model with several models.",
            "It stands for one model in the peers.",
            "Compare one model at a time.",
        )
    if peer_model is not None:
        read_bytes(peer_model)  # a file that is missing is no failure of the peer
    found = []
    for session in sessions:
        model = str(session.path)
        suffix = f", {session.path.name}" if len(sessions) > 1 else ""
        threads, device = session_threads(session), session_device(session)
        if peers and device != "cpu":
            raise UsageError(
                "--compare on a GPU.",
                "The peers run on the CPU.",
                "Use --device cpu, or give several models or engines without --compare.",
            )
        mine = Specification(
            CAPSEDGE, model, "", threads=threads, ops=ops_argument(session), device=device
        )
        found.append(Entrant(f"capsedge {session.ops}{suffix}", mine, model))
        for peer in peers:
            file = session.path if peer_model is None or peer == "torch" else peer_model
            if peer in CONVERTED:
                _check_portable(file, peer)
            theirs = Specification(peer, str(file), "", threads=threads)
            if peer == "torch":
                source = str(_checkpoint(session, checkpoint))
                theirs = replace(theirs, checkpoint=source)
                found.append(Entrant(f"torch{suffix}", theirs, model, "capsedge.cli._torch_peer"))
            else:
                found.append(Entrant(f"{peer}{suffix}", theirs, model))
    return found


def _check_portable(file: Path, peer: str) -> None:
    """Refuse what a peer cannot read: functions, and the files of another runtime."""
    from capsedge.runtime.profiling.peers import OWN_FILES
    from capsedge.runtime.reading.onnx_file import read_bytes, summarize

    name = CONVERTED[peer]
    again = (
        f"Export it again with `capsedge export --for {peer} -o {peer}.onnx`, and add "
        f"--peer-model {peer}.onnx."
    )
    if file.suffix in OWN_FILES.values():
        if OWN_FILES.get(peer) != file.suffix:
            raise UsageError(f"{name} cannot read {file}.", "It is another runtime's file.", again)
        return
    if summarize(read_bytes(file), str(file)).capsedge_nodes:
        raise UnsupportedModelError(
            f"{name} cannot read {file}.",
            f"Its capsedge nodes are ONNX functions, which {name} does not know.",
            again,
        )


def _checkpoint(session: Session, named: Path | None) -> Path:
    from capsedge.runtime.files.writing import sha256
    from capsedge.verification.reference import check_origin, find_checkpoint

    if named is None:
        return find_checkpoint(session.metadata)
    if not named.is_file():
        raise UsageError(
            f"There is no checkpoint {named}.", "", "Check the name after --checkpoint."
        )
    check_origin(session.metadata, named, sha256(named))
    return named


def _compare(session: Session, entrants: list[Entrant], batch: int, limits: Limits) -> Comparison:
    from capsedge.runtime.profiling.comparison import compare
    from capsedge.runtime.profiling.profiler import random_inputs

    return compare(entrants, random_inputs(session, batch), limits, _common.log)


def _write(
    report: ProfileReport,
    html: Path | None,
    png: Path | None,
    markdown: Path | None,
    trace: Path | None,
) -> None:
    from capsedge.runtime.files.writing import write_text

    if html is not None:
        report.save_html(html)
    if png is not None:
        report.save_png(png)
    if markdown is not None:
        write_text(markdown, report.to_markdown())
    if trace is not None:
        report.save_trace(trace)
    for target in (html, png, markdown, trace):
        if target is not None:
            _common.log(f"wrote {target}")


def _show(report: ProfileReport) -> None:
    from capsedge.runtime.profiling import tables

    _print(tables.latency(report.runs))
    _print(tables.startup(report.runs))
    for run in report.runs:
        _print(tables.groups(run))
        _print(tables.layers(run))
        for warning in run.warnings:
            _common.log(f"warning, {run.model}, batch {run.batch}: {warning}")
    if report.peaks is not None:
        _common.say(tables.peaks(report.peaks))
    for found in report.comparisons:
        _print(tables.comparison(found))
        _common.say(
            "Versions: " + "; ".join(dict.fromkeys(entry.version for entry in found.entries)) + "."
        )


def _print(table: Table | None) -> None:
    if table is not None:
        print_table(table.title, table.columns, table.rows)
