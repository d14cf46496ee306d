"""``capsedge profile``: measures latency, memory and time by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._options import UserModuleOptions, grouped
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import READS, READS_MODEL, WRITES
from capsedge.errors import ExitCode, UsageError
from capsedge.runtime.files.writing import check_writable
from capsedge.runtime.profiling.profile_options import ProfileOptions
from capsedge.runtime.result_summary import check_chart
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.spec.vocabularies import PEERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capsedge.runtime.profiling.profile import ProfileReport
    from capsedge.runtime.session import Session

Models = Annotated[
    list[Path] | None,
    Argument(
        help="ONNX files from any tool, or TensorRT engines; the zoo's digit model by default."
    ),
    READS_MODEL,
]
Inputs = Annotated[
    Path | None,
    Option(
        "--inputs",
        help="Input arrays, .npy or .npz, batch first, instead of random ones of size --batch.",
    ),
    READS,
]
Compare = Annotated[
    tuple[str, ...],
    Option("--compare", help="Other backends to measure in alternation.", choices=PEERS),
]
Checkpoint = Annotated[
    Path | None,
    Option("--checkpoint", help="Checkpoint for --compare torch; the zoo's by default."),
    READS,
]
PeerModel = Annotated[
    Path | None,
    Option(
        "--peer-model",
        help="Another file for the backends of --compare, for example the portable export.",
    ),
    READS_MODEL,
]
Html = Annotated[Path | None, Option("--html", help="Write the report as one HTML file."), WRITES]
Png = Annotated[Path | None, Option("--png", help="Write the report's charts as a PNG."), WRITES]
Markdown = Annotated[
    Path | None, Option("--markdown", help="Write the report as Markdown."), WRITES
]
Trace = Annotated[
    Path | None, Option("--trace", help="Write a few runs as a trace for Perfetto."), WRITES
]


@grouped
def command(
    options: ProfileOptions,
    runtime: RuntimeOptions,
    user_module: UserModuleOptions,
    models: Models = None,
    compare: Compare = (),
    inputs: Inputs = None,
    checkpoint: Checkpoint = None,
    peer_model: PeerModel = None,
    html: Html = None,
    png: Png = None,
    markdown: Markdown = None,
    trace: Trace = None,
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
    _check_reports(html, png, markdown, trace, options.operators)
    sessions = [load(path, runtime) for path in models or [default_model()]]
    report = profile_models(
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
    _write(report, html, png, markdown, trace)
    _output.print_report(report, as_json)
    if any(found.failed for found in report.comparisons):
        _output.log("error: a peer computes different outputs and was not timed.")
        raise SystemExit(int(ExitCode.PARITY))


def _arrays(source: Path, sessions: list[Session]) -> dict[str, NDArray[Any]]:
    """The arrays of a file by the names of the first model's inputs; a single one needs no name."""
    from capsedge.datasets.array_files import by_name, read_arrays

    names = [port.name for port in sessions[0].inputs]
    arrays = dict(zip(names, by_name(read_arrays(source), names, str(source)), strict=True))
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


def _check_reports(
    html: Path | None,
    png: Path | None,
    markdown: Path | None,
    trace: Path | None,
    operators: bool,
) -> None:
    for target in (markdown, trace):
        if target is not None:
            check_writable(target)
    for target in (html, png):
        if target is not None:
            check_chart(target)
    if trace is not None and not operators:
        raise UsageError(
            "--trace and --no-operators cannot be used together.",
            "A trace shows the operators.",
            "Leave out --no-operators.",
        )


def _checkpoints(sessions: list[Session], named: Path | None) -> list[Path]:
    from capsedge.verification.reference import checkpoint_of

    return [checkpoint_of(session, named) for session in sessions]


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
            _output.log(f"wrote {target}")
