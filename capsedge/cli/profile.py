"""``capsedge profile``: measures latency, memory and time by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._options import Argument, Only, UserModuleOptions, grouped
from capsedge.cli._paths import READS, READS_MODEL, WRITES
from capsedge.errors import ExitCode, UsageError
from capsedge.options import Option
from capsedge.runtime.files.writing import check_writable
from capsedge.runtime.profiling.profile_options import ProfileOptions
from capsedge.runtime.result_summary import check_chart
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.spec.vocabularies import PEERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capsedge.runtime.profiling.profile import ProfileReport
    from capsedge.runtime.session.session import Session

Models = Annotated[
    list[Path] | None,
    Argument(
        help="ONNX files from any tool, names from the zoo (digits-em), or TensorRT engines; "
        "digits-dynamic by default.",
        complete="zoo",
    ),
    READS_MODEL,
]
Inputs = Annotated[
    Path | None,
    Option(
        "--inputs",
        help="Input arrays, .npy or .npz, batch first, instead of random ones of size --batch.",
        panel="Measurement",
    ),
    READS,
]
Compare = Annotated[
    tuple[str, ...],
    Option(
        "--compare",
        help="Other backends to measure in alternation.",
        choices=PEERS,
        panel="Comparison",
    ),
]
Checkpoint = Annotated[
    Path | None,
    Option(
        "--checkpoint",
        help="Checkpoint for --compare torch; the zoo's by default.",
        panel="Comparison",
    ),
    READS,
]
PeerModel = Annotated[
    Path | None,
    Option(
        "--peer-model",
        help="Another file for the backends of --compare, for example the portable export.",
        panel="Comparison",
        complete="zoo",
    ),
    READS_MODEL,
]
Reports = Annotated[
    list[Path] | None,
    Option(
        "--report",
        help="Write the report as *.html, *.md or *.png (charts), or a few runs as *.json, a trace for "
        "Perfetto.",
    ),
    WRITES,
]
_HTML, _CHARTS, _TEXT, _TRACE = ".html", ".png", ".md", ".json"


@grouped
def command(
    options: ProfileOptions,
    runtime: Annotated[RuntimeOptions, Only("device", "threads", "ops", "graphs")],
    user_module: UserModuleOptions,
    models: Models = None,
    compare: Compare = (),
    inputs: Inputs = None,
    checkpoint: Checkpoint = None,
    peer_model: PeerModel = None,
    report: Reports = None,
    as_json: _options.Json = False,
) -> None:
    """Measure latency, memory and the time of every layer.

    Several models, or other backends with --compare, are measured side by side.
    """
    from capsedge.runtime.load import load
    from capsedge.runtime.profiling.compare import check_installed
    from capsedge.runtime.profiling.compare_models import profile_models
    from capsedge.runtime.zoo import default_model

    peers = list(compare)
    check_installed(peers)
    source = user_module.spec(checkpoint=checkpoint)
    _check_peers(peers, checkpoint, peer_model, user_module.module)
    _check_reports(report or [], options.operators)
    sessions = [load(path, runtime) for path in models or [default_model()]]
    profiled = profile_models(
        sessions,
        options,
        inputs=None if inputs is None else _arrays(inputs, sessions),
        peers=peers,
        checkpoints=_checkpoints(sessions, checkpoint)
        if "torch" in peers and source is None
        else [],
        module=source.to_json() if source is not None else "",
        peer_model=peer_model,
        progress=_output.log,
    )
    _write(profiled, report or [])
    _output.print_report(profiled, as_json)
    if any(found.failed for found in profiled.comparisons):
        _output.log("error: a peer computes different outputs and was not timed.")
        raise SystemExit(int(ExitCode.PARITY))


def _arrays(source: Path, sessions: list[Session]) -> dict[str, NDArray[Any]]:
    """The arrays of a file by the names of the first model's inputs; a single one needs no name."""
    from capsedge.datasets.array_files import arrays_by_input, read_arrays

    names = [port.name for port in sessions[0].inputs]
    arrays = dict(zip(names, arrays_by_input(read_arrays(source), names, str(source)), strict=True))
    if any(a.ndim == 0 for a in arrays.values()):
        raise UsageError(
            f"{source} holds single numbers instead of batches.",
            "",
            "Pass arrays with the batch as the first axis.",
        )
    return arrays


def _check_peers(
    peers: list[str], checkpoint: Path | None, peer_model: Path | None, module: str | None
) -> None:
    for option, value, needed, fix in (
        ("--peer-model", peer_model, bool(peers), "Add --compare ort,openvino."),
        ("--checkpoint", checkpoint, "torch" in peers, "Add --compare torch."),
        ("--module", module, "torch" in peers, "Add --compare torch."),
    ):
        if value is not None and not needed:
            raise UsageError(
                f"{option} needs --compare.", "It configures the peers of --compare.", fix
            )


def _check_reports(files: list[Path], operators: bool) -> None:
    for file in files:
        suffix = file.suffix.lower()
        if suffix not in (_HTML, _CHARTS, _TEXT, _TRACE):
            raise UsageError(
                f"A report cannot be written to {file}.",
                "The suffix decides what is written: .html, .md, .png, or .json for a trace.",
                "For example: --report report.html.",
            )
        if suffix in (_HTML, _CHARTS):
            check_chart(file)
        else:
            check_writable(file)
        if suffix == _TRACE and not operators:
            raise UsageError(
                f"{file} and --no-operators cannot be used together.",
                "A trace shows the operators.",
                "Leave out --no-operators.",
            )


def _checkpoints(sessions: list[Session], named: Path | None) -> list[Path]:
    from capsedge.verification.reference import checkpoint_of

    return [checkpoint_of(session, named) for session in sessions]


def _write(report: ProfileReport, files: list[Path]) -> None:
    from capsedge.runtime.files.writing import write_text

    for file in files:
        suffix = file.suffix.lower()
        if suffix == _HTML:
            report.save_html(file)
        elif suffix == _CHARTS:
            report.save_png(file)
        elif suffix == _TEXT:
            write_text(file, report.to_markdown())
        else:
            report.save_trace(file)
        _output.log(f"wrote {file}")
