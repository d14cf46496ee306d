"""``export --freeze-couplings``: a file with constant couplings, and the accuracy that they cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from capsedge.calibration.frozen import freeze
from capsedge.calibration.quantize import split
from capsedge.calibration.source import Source, rounded
from capsedge.datasets import ImageSet
from capsedge.exporters.export_report import ExportReport
from capsedge.exporters.to_onnx import export
from capsedge.graph.proto import copy_of, operator_counts
from capsedge.graph.stated_shapes import state_shapes
from capsedge.runtime.files.writing import check_writable, temporary_folder, write_bytes


@dataclass(frozen=True)
class FrozenExport:
    """A file with frozen couplings.

    Attributes:
        report: report on the file; its comparisons are those of the routing file that it was made from.
        measured: as in the file's metadata: images, variation of the couplings by layer, agreement.
        warnings: warnings about the images, for the user.
    """

    report: ExportReport
    measured: dict[str, Any]
    warnings: tuple[str, ...]


def export_frozen(
    model: nn.Module,
    path: Path,
    calib_data: Path | ImageSet,
    calib_images: int = 512,
    **options: Any,
) -> FrozenExport:
    """Export a file with couplings frozen to their mean, and measure what that costs.

    The routing file is never left under the name of the frozen one.

    Args:
        model, path, options: as for `export`, with ``ops`` auto.
        calib_data: images to average the couplings over; the cost is measured on other images.
        calib_images: number of images drawn from them.

    Raises:
        as `export`, and UsageError where the images are wrong, UnsupportedModelError where the couplings
        cannot be frozen.
    """
    check_writable(path)
    with temporary_folder() as folder:
        routed = folder / path.name
        report = export(model, routed, **options)
        source = Source(routed)
        splits = split(source, calib_data, None, calib_images)
        frozen = copy_of(source.model)
        layers = freeze(frozen, splits.calibration)
        outcome = source.outcome(frozen, splits.evaluation)
    measured = {
        "averaged_images": len(splits.calibration),
        "data_sha256": splits.calibration.digest(),
        "layers": layers,
        **rounded(outcome),
    }
    describe_frozen(frozen, source, measured)
    state_shapes(frozen)
    data = frozen.SerializeToString()
    write_bytes(path, data)
    report = dataclasses.replace(
        report,
        path=path,
        size=len(data),
        operators=operator_counts(frozen),
        functions=len(frozen.functions),
    )
    return FrozenExport(report, measured, splits.warnings)


def describe_frozen(frozen: onnx.ModelProto, source: Source, measured: Mapping[str, Any]) -> None:
    """State in a file's metadata that its couplings are frozen, and what that was made from."""
    assert source.metadata is not None  # it was exported by this package
    origin = source.metadata.origin
    described = dataclasses.replace(
        source.metadata,
        calibration={"frozen_couplings": measured},
        origin=origin and origin.changed("couplings frozen to their mean"),
    )
    onnx.helper.set_model_props(frozen, described.to_properties())
