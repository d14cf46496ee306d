"""The tables of an ensemble's certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.cli._output import print_table, say

if TYPE_CHECKING:
    from capsedge.verification.verify_ensemble import EnsembleCertificate


def show(certificate: EnsembleCertificate, saved: Path | None) -> None:
    """Print the members, the ensemble, what failed, and the verdict as the last line."""
    document = certificate.to_dict()
    labelled = any("accuracy" in row for row in document["alone"])
    columns = ["file", "sha256", "checkpoint", "against its source", "as the ensemble"]
    rows = [
        _member(member, row, labelled)
        for member, row in zip(document["members"], document["alone"], strict=True)
    ]
    print_table("Members", [*columns, *(["accuracy"] if labelled else [])], rows)
    print_table(
        f"Ensemble: mean {certificate.averaged}, {certificate.images} images",
        ("", ""),
        _ensemble(document),
    )
    for failure in certificate.failures:
        say(failure)
    if saved is not None:
        say(f"certificate: {saved}")
    say(certificate.verdict)


def _member(member: dict[str, Any], alone: dict[str, Any], labelled: bool) -> list[str]:
    first, last = member["chain"][0], member["chain"][-1]
    agreement = alone.get("agreement_with_ensemble")
    cells = [last["file"], last["sha256"][:16], first["file"], member["verdict"]]
    cells.append("-" if agreement is None else f"{100 * agreement:.4g} %")
    return [*cells, *([f"{100 * alone['accuracy']:.2f} %"] if labelled else [])]


def _ensemble(document: dict[str, Any]) -> list[tuple[str, str]]:
    if document["estimates"] is not None:
        return [
            (v["name"], f"mean error {v['mean_error']:.3g} {v['unit']} of {v['range']:.3g}")
            for v in document["estimates"]["values"]
        ]
    d = document["decisions"]
    rows = [
        (f"{d['kind']} agreement with the sources", f"{100 * d['agreement']:.4g} %"),
        ("flips", str(d["flips"])),
    ]
    if "accuracy_artefact" in d:
        rows.append(("accuracy of the sources", f"{100 * d['accuracy_reference']:.2f} %"))
        rows.append(("accuracy of the ensemble", f"{100 * d['accuracy_artefact']:.2f} %"))
    return rows
