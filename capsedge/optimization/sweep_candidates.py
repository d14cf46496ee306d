"""Make the files that a sweep compares, and record them with their measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from capsedge.calibration.float_model import FloatModel, uniform_assignment
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UsageError
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.exporters.frozen_couplings import describe_frozen, freeze
from capsedge.graph.ir import copy_of
from capsedge.graph.write_shapes import write_shapes
from capsedge.models.find import NamedModel
from capsedge.runtime.files import documents, reading
from capsedge.runtime.files.documents import MalformedJson, decode
from capsedge.runtime.files.writing import make_folder, sha256, write_bytes, write_text

# --- State from which an interrupted sweep can be resumed ---


@dataclass(frozen=True)
class Quality:
    """How good a file is.

    Attributes:
        accuracy: share of correct decisions; of a segmentation the mean Dice of its masks.
        iou: of a segmentation the mean IoU; None for others.
    """

    accuracy: float
    iou: float | None = None

    def __str__(self) -> str:
        if self.iou is None:
            return f"{100 * self.accuracy:.2f} %"
        return f"Dice {self.accuracy:.4f}, IoU {self.iou:.4f}"


SCHEMA = 1
STATE = "sweep-state.json"


@dataclass(frozen=True)
class _Made:
    """A file, and its accuracy in the search once measured; of masks their mean Dice, and mean IoU."""

    sha256: str
    accuracy: float | None = None
    iou: float | None = None


@dataclass(frozen=True)
class _SweepDocument:
    schema: int
    images: str
    files: dict[str, _Made]


class SweepState:
    """The files in a folder, by name.

    Args:
        folder: the folder, created if it does not exist.
        images: digest of the images on which files were calibrated and compared.

    Raises:
        UsageError: the folder holds a sweep on other images.
        ArtefactError: its state is damaged.
    """

    def __init__(self, folder: Path, images: str) -> None:
        make_folder(folder)
        self._path = folder / STATE
        self._images = images
        self._files: dict[str, _Made] = {}
        if reading.path_kind(self._path) is not None:
            self._read()

    def _read(self) -> None:
        try:
            document = decode(_SweepDocument, documents.read(self._path))
            if document.schema != SCHEMA:
                raise MalformedJson(f"schema {document.schema}, not {SCHEMA}")
        except MalformedJson as error:
            raise ArtefactError(
                f"{self._path} cannot be read.", f"{error}.", "Choose another folder for the files."
            ) from error
        if document.images != self._images:
            raise UsageError(
                f"{self._path.parent} holds a sweep that used other images.",
                "Its files were calibrated and compared on those images.",
                "Choose another folder for the files.",
            )
        self._files = dict(document.files)

    def has(self, path: Path) -> bool:
        """Whether a file was made and has not changed."""
        recorded = self._files.get(path.name)
        return (
            recorded is not None
            and reading.path_kind(path) == reading.FILE
            and sha256(path) == recorded.sha256
        )

    def measured(self, path: Path) -> Quality | None:
        """What was measured of a file that has not changed; None if nothing was."""
        made = self._files[path.name] if self.has(path) else None
        return None if made is None or made.accuracy is None else Quality(made.accuracy, made.iou)

    def add(self, path: Path, measured: Quality | None = None) -> None:
        """Record a file that was written, and what was measured of it."""
        known = {} if measured is None else asdict(measured)
        self._files[path.name] = _Made(sha256(path), **known)
        files = {name: asdict(file) for name, file in self._files.items()}
        document = {"schema": SCHEMA, "images": self._images, "files": files}
        write_text(self._path, json.dumps(document, indent=2) + "\n")


# --- Candidates: exported, frozen and quantized, each with its accuracy in the search ---

ROUTED, FROZEN = "routed", "frozen"
COUPLINGS = (ROUTED, FROZEN)


@dataclass(frozen=True)
class CandidateKind:
    """The properties that distinguish a candidate.

    Attributes:
        model: name of the checkpoint.
        iterations: routing iterations.
        couplings: ``routed`` or ``frozen``.
        precision: ``fp32``, ``fp16`` or ``int8``.
    """

    model: str
    iterations: int
    couplings: str
    precision: str

    def __str__(self) -> str:
        frozen = ", frozen couplings" if self.couplings == FROZEN else ""
        passes = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'}"
        return f"{self.model}, {passes}{frozen}, {self.precision}"


@dataclass(frozen=True)
class SweepCandidate:
    """A file, and how good it is on the images of the search."""

    kind: CandidateKind
    path: Path
    measured: Quality


@dataclass
class CandidateMaker:
    """Makes the candidates of one checkpoint, and reuses those of an earlier run.

    Attributes:
        network: the model.
        sha256: checksum of its checkpoint.
        folder: the folder for the files.
        state: the files of earlier runs.
        calibration, search: images for calibrating and comparing candidates.
        warnings: candidates that could not be made, for the user.
    """

    network: NamedModel
    sha256: str
    folder: Path
    state: SweepState
    calibration: ImageSet
    search: ImageSet
    warnings: list[str] = field(default_factory=list)

    def candidates(
        self, iterations: int, couplings: Sequence[str], precisions: Sequence[str]
    ) -> Iterator[SweepCandidate]:
        """The candidates with one number of iterations, one after another."""
        routed = self._exported(iterations)
        for kind in couplings:
            base = routed if kind == ROUTED else self._frozen(routed, iterations)
            if base is None:
                continue
            source: FloatModel | None = None
            for precision in precisions:
                path = base.with_name(base.name.replace("-fp32.onnx", f"-{precision}.onnx"))
                measured = self.state.measured(path)
                if measured is None:
                    source = source or FloatModel(base)
                    measured = self._measured(source, path, precision)
                yield SweepCandidate(
                    CandidateKind(self.network.name, iterations, kind, precision), path, measured
                )

    def _exported(self, iterations: int) -> Path:
        """The FP32 file with routing."""
        name = Path(self.network.name).name  # checkpoints of one name differ in the checksum
        path = self.folder / f"{name}-{self.sha256[:8]}-{iterations}-fp32.onnx"
        if not self.state.has(path):
            model = self.network.model
            export(model, path, ExportOptions(iterations=iterations, checkpoint_sha256=self.sha256))
            self.state.add(path)
        return path

    def _measured(self, source: FloatModel, path: Path, precision: str) -> Quality:
        """Write a file in a precision, unless it exists, and measure it."""
        if precision == "fp32":
            model = source.model
        elif precision == "fp16":
            model, _ = source.to_fp16(self.calibration)
        else:
            table = source.calibrate(self.calibration, "mse", None)
            model, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
        if precision != "fp32":
            described = {
                "target": "ort-cpu",
                "method": "mse" if precision == "int8" else "magnitudes",
                "images": len(self.calibration),
                "data": self.calibration.source,
                "data_sha256": self.calibration.digest(),
            }
            source.with_metadata(model, precision, described)
            write_shapes(model)
            write_bytes(path, model.SerializeToString())
        warnings = source.check_reference(self.search)
        self.warnings += [warning for warning in warnings if warning not in self.warnings]
        outcome = source.outcome(model, self.search)
        iou = None if outcome.masks is None else outcome.masks["mean_iou"]
        measured = Quality(float(outcome.accuracy or 0), iou)
        self.state.add(path, measured)
        return measured

    def _frozen(self, routed: Path, iterations: int) -> Path | None:
        """The file with frozen couplings; None if the routing has none to freeze."""
        if iterations < 2 or self.network.model.config.routing == "em":
            why = "EM routing" if self.network.model.config.routing == "em" else "one iteration"
            self.warnings.append(f"{self.network.name}: {why} has no couplings to freeze")
            return None
        path = routed.with_name(routed.name.replace("-fp32.onnx", "-frozen-fp32.onnx"))
        if not self.state.has(path):
            source = FloatModel(routed)
            frozen = copy_of(source.model)
            measured = {
                "averaged_images": len(self.calibration),
                "data_sha256": self.calibration.digest(),
                "layers": freeze(frozen, self.calibration),
            }
            describe_frozen(frozen, source, measured)
            write_shapes(frozen)
            write_bytes(path, frozen.SerializeToString())
            self.state.add(path)
        return path
