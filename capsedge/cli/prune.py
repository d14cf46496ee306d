"""``capsedge prune``: removes channels, capsules and units from a trained checkpoint."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options, _process
from capsedge.cli._options import Argument, grouped
from capsedge.cli._output import bar, log, log_next, print_report, require_packages
from capsedge.cli._paths import READS_DATA, READS_OR_NAME, PathRole
from capsedge.optimization.prune_options import PruneOptions
from capsedge.options import Option
from capsedge.runtime.files.writing import REJECTED, with_suffix_appended
from capsedge.spec import limits

if TYPE_CHECKING:
    from capsedge.optimization.prune_report import Round

Checkpoint = Annotated[
    str,
    Argument(
        metavar="MODEL|CHECKPOINT",
        help="A checkpoint, or a name from the zoo (digits-em).",
        complete="trained",
    ),
    READS_OR_NAME,
]
Data = Annotated[
    Path | None,
    Option(
        "--data",
        help=(
            "Labelled data set folder (for a segmentation with images/ and masks/): training images for "
            "pruning and fine-tuning, test images for the final check. Without it, only what does not "
            "affect any output is removed."
        ),
    ),
    READS_DATA,
]
Output = Annotated[
    Path,
    Option("-o", "--output", help="The smaller checkpoint (.safetensors)."),
    PathRole(written=lambda path: [path, with_suffix_appended(path, REJECTED)]),
]
Threads = Annotated[
    int | None,
    Option(
        "--threads",
        min=1,
        max=limits.RUN_THREADS,
        help="Threads for PyTorch; by default its own choice.",
    ),
]


@grouped
def command(
    checkpoint: Checkpoint,
    output: Output,
    options: PruneOptions,
    data: Data = None,
    threads: Threads = None,
    as_json: _options.Json = False,
) -> None:
    """Remove channels, capsules and units from a checkpoint.

    If the pruned network loses too much accuracy, or a segmentation too much mean Dice, its file is named
    .rejected and the exit code is 4.
    """
    require_packages("torch", what="Pruning needs torch.", fix="pip install 'capsedge[export]'")
    import torch

    from capsedge.models.find import find_checkpoint_of
    from capsedge.optimization.prune import prune

    if threads:
        torch.set_num_threads(threads)
    with _process.resumable("epochs"), bar() as progress:
        report = prune(
            find_checkpoint_of(checkpoint), output, options, data=data,
            progress=progress, round_done=_log_round,
        )  # fmt: skip
    print_report(report, as_json)
    if as_json:
        return
    source, target = shlex.quote(str(report.output)), shlex.quote(f"{report.output.stem}.onnx")
    log_next(f"capsedge export --checkpoint {source} -o {target}")


def _log_round(number: int, done: Round) -> None:
    from capsedge.calibration.accuracy import drop_in_words

    log(
        f"round {number}: {done.multiply_adds:,} multiply-adds, {done} ({drop_in_words(done.drop)})"
    )
