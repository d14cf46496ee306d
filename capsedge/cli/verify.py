"""``capsedge verify``: compares an exported model with its PyTorch source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._options import UserModuleOptions, grouped
from capsedge.cli._output import comparing, print_table, stage_reporter
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import (
    READS,
    READS_DATA,
    READS_MODEL_OR_FOLDER,
    READS_OR_NAME,
    WRITES,
)
from capsedge.errors import EnvironmentProblem, ExitCode, UsageError
from capsedge.runtime.files.writing import check_writable
from capsedge.runtime.origin import SUMMARY_FIELDS
from capsedge.verification.verify_options import VerifyOptions

if TYPE_CHECKING:
    from capsedge.models.user_module import UserModule, UserModuleSpec
    from capsedge.verification.certificate import Certificate
    from capsedge.verification.verify_ensemble import EnsembleCertificate

LISTED = 10  # flips printed; the certificate lists more


Models = Annotated[
    list[str],
    Argument(
        metavar="MODEL...",
        help="ONNX file, TensorRT engine, name from the zoo (digits-em), or folder of `capsedge build "
        "--target c`; several for an ensemble.",
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
    ),
    READS_OR_NAME,
]
Data = Annotated[
    Path | None,
    Option(
        "--data",
        help="Data set folder (its test split), npz, idx or images; by default the bundled samples.",
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
        from capsedge.verification.verify_ensemble import EnsembleCertificate, verify_ensemble
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
    if as_json:
        _output.print_json(certificate.to_dict())
    elif isinstance(certificate, EnsembleCertificate):
        _show_ensemble(certificate, output)
    else:
        _show(certificate, output)
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
    from capsedge.models.user_module import load_user_module

    return load_user_module(source)


def _show(certificate: Certificate, saved: Path | None) -> None:
    document = certificate.to_dict()
    print_table("Chain", ("", "", ""), [_link(link) for link in document["chain"]])
    if document["chain"][-1]["kind"] == "cascade":
        _output.say("The cascade is compared with its large network's reference, by decisions.")
    samples = document["samples"]
    for title, part in (
        (f"Samples: {samples['measured_on']}", "samples"),
        (f"Hard cases: {len(document['hard_cases']['names'])}", "hard_cases"),
    ):
        if part == "hard_cases" and not document[part]["names"]:
            _output.say("None of the hard cases lies within the range of the inputs.")
            continue
        _show_part(title, document[part])
        _output.warn(*document[part].get("warnings", ()))
        if ignored := document[part].get("ignored"):
            _output.say(
                f"note: the {ignored} of the samples are not used, because the file is a regression"
            )
    if document["routing_errors"] is not None:
        _show_routing_errors(document["routing_errors"])
    _say_verdict(certificate, saved)


def _say_verdict(certificate: Certificate | EnsembleCertificate, saved: Path | None) -> None:
    """Print the failures, the location of the certificate, and the verdict as the last line."""
    for failure in certificate.failures:
        _output.say(failure)
    if saved is not None:
        _output.say(f"certificate: {saved}")
    _output.say(certificate.verdict)


def _link(link: dict[str, Any]) -> tuple[str, str, str]:
    facts = [f"sha256 {link['sha256'][:16]}"] if link["sha256"] else ["in memory"]
    if link.get("user_module"):
        facts.append(f"the user's own {link.get('code', 'module')}")
    for key in ("weights", "architecture", "precision", "ops", "device", "compiler"):
        if link.get(key):
            facts.append(f"{key} {link[key]}")
    if cascade := link.get("cascade"):
        facts.append(
            f"the large network decides {cascade['share']:.2%} of the images it was measured on"
        )
    if claim := link.get("typical_input"):
        facts.append(f"typical input: {claim}")
    if origin := link.get("claimed_origin"):
        claim = f"family {origin['family']}, licence: {origin['licence']}, {origin['comparison']}"
        facts.append(f"{SUMMARY_FIELDS}: {claim}")
    if parent := link.get("claimed_parent"):
        facts.append(
            f"{SUMMARY_FIELDS}: pruned from {parent['parent']}, sha256 {parent['sha256'][:16]}"
        )
    return link["kind"], link["file"], ", ".join(facts)


def _show_part(title: str, part: dict[str, Any]) -> None:
    print_table(
        title,
        ("output", "max abs", "mean abs", "relative", "NMSE", "atol", "rtol", "worst/allowed", ""),
        [
            (
                o["name"],
                *(f"{o[k]:.2e}" for k in ("max_abs", "mean_abs", "relative", "nmse")),
                *(f"{o[k]:g}" for k in ("atol", "rtol")),
                "inf" if o["worst_over_tolerance"] is None else f"{o['worst_over_tolerance']:.3f}",
                "ok" if o["passed"] else "over",
            )
            for o in part["outputs"]
        ],
    )
    if "estimates" in part:
        print_table(
            "Values",
            ("value", "unit", "mean error", "largest error", "range"),
            [
                (
                    v["name"],
                    v["unit"],
                    *(f"{v[k]:.3g}" for k in ("mean_error", "largest_error", "range")),
                )
                for v in part["estimates"]["values"]
            ],
        )
    d = part["decisions"]
    if d is None:
        return
    rows = [(f"{d['kind']} agreement", f"{100 * d['agreement']:.4g} % of {d['images']}")]
    rows += _flips(d)
    if "pose_angle_max_degrees" in d:
        rows.append(("angle between poses, max", f"{d['pose_angle_max_degrees']:.2e} degrees"))
        rows.append(("length error, max", f"{d['length_error_max']:.2e}"))
    if "accuracy_artefact" in d:
        rows.append(("accuracy of the reference", f"{100 * d['accuracy_reference']:.2f} %"))
        rows.append(("accuracy of the artefact", f"{100 * d['accuracy_artefact']:.2f} %"))
    print_table("Decisions", ("", ""), rows)


def _flips(decisions: dict[str, Any]) -> list[tuple[str, str]]:
    """The number of flips, and each with its image and its classes."""
    ties = f" (and {decisions['ties']} ties)" if decisions["ties"] else ""
    rows = [("flips", f"{decisions['flips']}{ties}")]
    for flip in decisions["flips_by_margin"][:LISTED]:
        margin = "-" if flip["margin"] is None else f"{flip['margin']:.3g}"
        before, after = (_classes(flip, side) for side in ("reference", "artefact"))
        image = flip.get("name", f"image {flip['image']}")
        rows.append((f"  {image}", f"{before} -> {after}, margin {margin}"))
    return rows


def _classes(flip: dict[str, Any], side: str) -> str:
    """The classes of a decision, such as `cat (3), dog (5)`; without names, their numbers."""
    pairs = zip(flip[side], flip[f"{side}_classes"], strict=True)
    return ", ".join(n if n == str(j) else f"{n} ({j})" for j, n in pairs) or "no class"


def _show_routing_errors(errors: dict[str, Any]) -> None:
    def cell(value: dict[str, Any] | None) -> str:
        if value is None:
            return "-"
        error = "not finite" if value["error"] is None else f"{value['error']:.2e}"
        return f"{error} of {value['budget']:.1e}" + (" OVER" if value["over"] else "")

    if errors["rows"]:
        print_table(
            "Routing errors (error of the allowed error, against FP64; iteration 0: the layer's input)",
            ("layer", "iteration", "couplings", "pose", "length"),
            [
                (
                    r["layer"],
                    str(r["iteration"]),
                    *(cell(r[k]) for k in ("couplings", "pose", "length")),
                )
                for r in errors["rows"]
            ],
        )
    _output.say(errors["verdict"])
    if errors["note"] and errors["note"] != errors["verdict"]:
        _output.say(errors["note"])


# --- Ensembles ---


def _show_ensemble(certificate: EnsembleCertificate, saved: Path | None) -> None:
    """Print the members, the ensemble, the failures, and the verdict as the last line."""
    document = certificate.to_dict()
    labelled = any("accuracy" in row for row in document["alone"])
    columns = ["file", "sha256", "checkpoint", "against its source", "as the ensemble"]
    rows = [
        _member_row(member, row, labelled)
        for member, row in zip(document["members"], document["alone"], strict=True)
    ]
    title = f"Members; accuracy on {certificate.measured_on}" if labelled else "Members"
    print_table(title, [*columns, *(["accuracy"] if labelled else [])], rows)
    print_table(
        f"Ensemble: mean {certificate.averaged}; {certificate.measured_on}",
        ("", ""),
        _ensemble_rows(document),
    )
    _say_verdict(certificate, saved)


def _member_row(member: dict[str, Any], alone: dict[str, Any], labelled: bool) -> list[str]:
    first, last = member["chain"][0], member["chain"][-1]
    agreement = alone.get("agreement_with_ensemble")
    cells = [last["file"], last["sha256"][:16], first["file"], member["verdict"]]
    cells.append("-" if agreement is None else f"{100 * agreement:.4g} %")
    return [*cells, *([f"{100 * alone['accuracy']:.2f} %"] if labelled else [])]


def _ensemble_rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    if document["estimates"] is not None:
        return [
            (v["name"], f"mean error {v['mean_error']:.3g} {v['unit']} of {v['range']:.3g}")
            for v in document["estimates"]["values"]
        ]
    d = document["decisions"]
    rows = [
        (f"{d['kind']} agreement with the sources", f"{100 * d['agreement']:.4g} %"),
        *_flips(d),
    ]
    if "accuracy_artefact" in d:
        rows.append(("accuracy of the sources", f"{100 * d['accuracy_reference']:.2f} %"))
        rows.append(("accuracy of the ensemble", f"{100 * d['accuracy_artefact']:.2f} %"))
    return rows
