"""``capsedge verify``: compares an exported model with its PyTorch source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options, _output
from capsedge.cli._options import Argument, UserModuleOptions, grouped
from capsedge.cli._output import comparing, stage_reporter
from capsedge.cli._paths import (
    READS,
    READS_DATA,
    READS_MODEL_OR_FOLDER,
    READS_OR_NAME,
    WRITES,
)
from capsedge.errors import EnvironmentProblem, ExitCode, UsageError
from capsedge.options import Option
from capsedge.runtime.files.writing import check_writable
from capsedge.verification.verify_options import VerifyOptions

if TYPE_CHECKING:
    from capsedge.models.user.module import UserModule, UserModuleSpec
    from capsedge.verification.certificate import Certificate
    from capsedge.verification.verify_ensemble import EnsembleCertificate

Models = Annotated[
    list[str],
    Argument(
        metavar="MODEL...",
        help="ONNX file, TensorRT engine, name from the zoo (digits-em), or folder of `capsedge build "
        "--target c`; several for an ensemble.",
        complete="zoo",
    ),
    READS_MODEL_OR_FOLDER,
]
Checkpoints = Annotated[
    list[Path] | None,
    Option(
        "--checkpoint",
        metavar="NAME|FILE",
        help="Checkpoint, .safetensors or .pt, that it was exported from, or its name in the zoo; by default "
        "the one that the file names. Repeat it for the members of an ensemble.",
        complete="trained",
    ),
    READS_OR_NAME,
]
Data = Annotated[
    Path | None,
    Option(
        "--data",
        help="Data set folder (its test split), npz, idx or images; by default the bundled samples.",
        panel="Images to evaluate on",
    ),
    READS_DATA,
]
Inputs = Annotated[
    Path | None,
    Option(
        "--inputs",
        help=(
            "Instead of --data: .npz or .npy with an array for each input, by name, batch first. "
            "Without either, a file that does not take images gets random values."
        ),
        panel="Images to evaluate on",
    ),
    READS,
]
Output = Annotated[
    Path | None, Option("-o", "--output", help="Write the certificate as JSON."), WRITES
]


@grouped
def command(
    user_module: UserModuleOptions,
    options: VerifyOptions,
    models: Models,
    checkpoint: Checkpoints = None,
    data: Data = None,
    inputs: Inputs = None,
    output: Output = None,
    as_json: _options.Json = False,
) -> None:
    """Compare a file with its PyTorch source.

    It compares numbers, decisions and, with labels, accuracy.

    The last line is PASSED or FAILED; the exit code is 4 if a tolerance is exceeded.
    """
    from capsedge.verification.artefact_kind import is_folder

    if len(models) == 1:
        is_folder(models[0], options.made_from)
    try:
        from capsedge.models.find import find_checkpoint_of
        from capsedge.verification.verify import verify
        from capsedge.verification.verify_ensemble import verify_ensemble
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            "Verification runs the PyTorch model, but PyTorch is not installed.",
            f"There is no package '{error.name}'.",
            "Run this on a workstation, after: pip install 'capsedge[export]'",
        ) from error
    checkpoints = [find_checkpoint_of(str(each)) for each in checkpoint or ()]
    if output is not None:
        check_writable(output)
    source = user_module.spec(checkpoint=checkpoints or None)
    stage = stage_reporter(as_json)
    certificate: Certificate | EnsembleCertificate
    if len(models) > 1:
        _check_ensemble(user_module, inputs, options.made_from)
        stage("loading the files and comparing them with their references")
        with comparing() as progress:
            certificate = verify_ensemble(
                checkpoints or None, models, options, data=data, progress=progress
            )
    else:
        reference = _reference(checkpoints, source)
        stage("loading the file and comparing it with its reference")
        with comparing() as progress:
            certificate = verify(
                reference,
                models[0],
                options,
                data=data,
                inputs=inputs,
                progress=progress,
            )
    if output is not None:
        certificate.save(output)
        _output.log(f"wrote {output}")
    _output.print_report(certificate, as_json)
    if not certificate.passed:
        raise SystemExit(int(ExitCode.PARITY))


def _check_ensemble(
    user_module: UserModuleOptions, inputs: Path | None, made_from: Path | None
) -> None:
    given = {"inputs": inputs, "reference": made_from, "module": user_module.module}
    option = next((name for name, value in given.items() if value is not None), None)
    if option is not None:
        raise UsageError(
            f"An ensemble cannot be verified with --{option}.",
            "Its members take images, and record their own checkpoints.",
            "Verify the members one by one, or compare modules in Python with capsedge.verify_ensemble.",
        )


def _reference(checkpoints: list[Path], source: UserModuleSpec | None) -> UserModule | Path | None:
    """What one file is compared with; None for the checkpoint that it names.

    Raises:
        UsageError: there are several checkpoints, or the user's module cannot be loaded.
    """
    if len(checkpoints) > 1:
        raise UsageError(
            f"There are {len(checkpoints)} checkpoints for one file.",
            "",
            "Pass only the one that the file was exported from.",
        )
    if source is None:
        return checkpoints[0] if checkpoints else None
    from capsedge.models.user.module import load_user_module

    return load_user_module(source)
