"""Write the folder of a network in C (``capsedge build --target c``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters.c import folder, measurement, naming, network_inputs
from capsedge.exporters.c.fit import check_fit, excess, memory_rows
from capsedge.exporters.c.folder_report import measured_text
from capsedge.exporters.c.graph import Translation, prepare
from capsedge.exporters.c.plan import plan
from capsedge.exporters.c.program import Constants, Program, ProgramValue
from capsedge.exporters.c.reconstruct import translate_decoder
from capsedge.exporters.c.source import CLibrary, COutput, Function
from capsedge.graph import ir
from capsedge.graph.check import checked
from capsedge.graph.check_steps import Bounds
from capsedge.runtime.files.text import format_bytes, printable
from capsedge.runtime.files.writing import check_replaceable, write_folder
from capsedge.runtime.metadata.cascade_metadata import CASCADE_KEY
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.onnx_file import summary
from capsedge.runtime.result_summary import Report
from capsedge.spec import limits
from capsedge.spec.version import VERSION
from capsedge.spec.vocabularies import POSES, RECONSTRUCTION


@dataclass(frozen=True, repr=False)
class CReport(Report):
    """Report on the written folder; ``to_dict`` is the document that ``--json`` prints.

    Attributes:
        path: the folder.
        description: the contents of ``NAME.json`` in it.
        missing: Debian packages that would enable more measurements.
    """

    path: Path
    description: dict[str, Any]
    missing: tuple[str, ...] = ()

    def _lines(self) -> list[str]:
        memory = self.description["memory"]
        flash, ram = (format_bytes(memory[f"{k}_bytes"]) for k in ("constant", "arena"))
        return [f"{self.path.name}: {flash} of constants, {ram} of RAM"]

    def rows(self) -> list[tuple[str, str]]:
        """The folder, its memory, and what was measured."""
        name = self.description["name"]
        return [
            ("folder", f"{self.path}, with {name}.c and {name}.h"),
            *memory_rows(name, self.description["memory"]),
            ("products", f"{self.description['products']:,} multiply-adds"),
            *((m["core"], measured_text(m)) for m in self.description.get("measured", [])),
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {"schema": 1, "folder": str(self.path), **self.description}


def write_c(
    source: Path | str,
    target: Path | str,
    *,
    name: str | None = None,
    batch: int | None = None,
    fit: Mapping[str, int] | None = None,
    measure: bool = False,
) -> CReport:
    """Write a network as a folder of C.

    Args:
        source: ONNX file of ``capsedge export`` or ``capsedge quantize``.
        target: the folder; replaced if an earlier run wrote it.
        name: prefix of all symbols; made from the file's name by default.
        batch: images of a call; the file's, or 1.
        fit: the most bytes of ``flash`` and of ``ram`` that it may take. Convolutions whose tiles would take
            too much are computed directly.
        measure: compile it for Cortex-M and count its instructions in QEMU, if these are installed. The
            description then has ``measured``, which depends on their versions.

    Raises:
        EnvironmentProblem: there is no compiler to measure with, or it fails.
        UsageError: an option is wrong, the folder holds other files, or the network does not fit.
        UnsupportedModelError: an operator has no translation.
        ArtefactError: the file is damaged.
    """
    source, target = Path(source), Path(target)
    prefix = naming.prefix_of(source.stem) if name is None else naming.check_prefix(name)
    check_replaceable(target, folder.earlier_files(target))
    data, _ = summary.read_harmless(source)
    files, description = generate_c_folder(data, source, prefix, batch, fit)
    missing: list[str] = []
    if measure:
        found, missing = measurement.measure(files, description)
        description["measured"] = [asdict(each) for each in found]
        files[f"{prefix}.json"] = naming.ascii_json(description).encode("ascii")
    write_folder(target, files, folder.earlier_files(target))
    return CReport(target, description, tuple(missing))


def generate_c_folder(
    data: bytes,
    file: Path,
    prefix: str,
    batch: int | None = None,
    fit: Mapping[str, int] | None = None,
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """All files of the folder by their path, and the contents of ``NAME.json``; nothing is written.

    Args:
        data: an ONNX file that ``read_harmless`` accepted.
        file: its path, for errors; its name is in comments.
        prefix, batch, fit: as for `write_c`, the prefix checked.

    Raises:
        UsageError, UnsupportedModelError, ArtefactError: as `write_c`.
    """
    library, metadata = read_library(data, file, prefix, batch, fit)
    if fit:
        check_fit(library, fit, file)
    return folder.contents(library, metadata, file, data)


def read_library(
    data: bytes,
    file: Path,
    prefix: str,
    batch: int | None = None,
    fit: Mapping[str, int] | None = None,
) -> tuple[CLibrary, ModelMetadata | None]:
    """Read everything needed to write the source from an ONNX file that ``read_harmless`` accepted.

    With ``fit``, as many convolutions are computed in tiles as fit, those first that save most; the network
    may not fit even without.

    Raises:
        UsageError, UnsupportedModelError, ArtefactError: as `write_c`.
    """
    bounds = Bounds(batch or 1, limits.C_VALUES, limits.C_SUM, bodies=False)
    data = checked(data, str(file), bounds)
    model = onnx.load_model_from_string(data)

    def translated(direct: frozenset[str]) -> tuple[CLibrary, ModelMetadata | None]:
        library, metadata = translate(data, model, prefix, batch, printable(file.name), direct)
        return replace(library, fit=dict(fit or {})), metadata

    found = translated(frozenset())
    saved = found[0].run.program.saved
    if not fit or not saved or not excess(found[0], fit):
        return found
    direct = frozenset(saved)
    found = translated(direct)
    for name in sorted(saved, key=lambda name: -saved[name]):
        if len(direct) > 1 and not excess((tried := translated(direct - {name}))[0], fit):
            found, direct = tried, direct - {name}
    return found


def translate(
    data: bytes,
    model: onnx.ModelProto,
    prefix: str,
    batch: int | None,
    file: str,
    direct: Collection[str] = (),
) -> tuple[CLibrary, ModelMetadata | None]:
    """Translate the network and collect everything needed to write the folder.

    Args:
        data: the ONNX file.
        model: the same, parsed.
        prefix: prefix of the symbols.
        batch: None for the file's, or 1.
        file: its name, for comments.
        direct: names of nodes whose convolutions must not be computed in tiles.
    """
    properties = {p.key: p.value for p in model.metadata_props}
    if CASCADE_KEY in properties:
        raise UnsupportedModelError(
            "A cascade cannot be written as C.",
            "It is two networks and a condition.",
            "Build each of its two networks separately.",
        )
    _check_types(model)
    metadata = ModelMetadata.from_properties(properties)
    network_inputs.check_types(model)
    fixed = _fixed(model, batch)
    inputs = network_inputs.inputs_of(fixed)
    poses = _poses(metadata, model)
    capsules = _capsules(fixed, poses)
    decoded = any(o.name == RECONSTRUCTION for o in model.graph.output) and capsules is not None
    constants = Constants()
    decoder = translate_decoder(data, poses, capsules, constants) if decoded and capsules else None
    names = [o.name for o in model.graph.output if decoder is None or o.name != RECONSTRUCTION]
    constants = Constants()  # in the order of the run
    parameters = {i.name: i.parameter for i in inputs}
    run = Translation(
        prepare(fixed, names), constants, parameters, fast=lambda name: name not in direct
    )
    taken = [i.parameter for i in inputs] if len(inputs) > 1 else []
    outputs = _write_outputs(run, names, metadata, taken)
    network_inputs.check_used(run.program, inputs, run.inputs)
    if decoded and capsules and decoder is not None:
        decoder = translate_decoder(data, poses, capsules, constants)
    labels = metadata.class_names if metadata is not None else ()
    heading = (
        f"{naming.in_comment(file)}, written as C by capsedge {naming.in_comment(VERSION)}; do not edit.",
        "Every sum has a fixed order: with -ffp-contract=off, results are the same bits on every machine.",
    )
    library = CLibrary(
        prefix, naming.in_comment(file), inputs, outputs, tuple(labels),
        metadata.preprocessing if metadata is not None and network_inputs.is_plain(inputs) else None,
        Function(run.program, plan(run.program.steps)),
        None if decoder is None else Function(decoder[0], plan(decoder[0].steps)),
        capsules or (0, 0), () if decoder is None else decoder[1], constants, heading,
    )  # fmt: skip
    return library, metadata


def _check_types(model: onnx.ModelProto) -> None:
    """Refuse weights of 4 bits and FP16, naming the node that has them."""
    small = {
        onnx.TensorProto.INT4: "INT4",
        onnx.TensorProto.UINT4: "UINT4",
        onnx.TensorProto.FLOAT16: "FP16",
    }
    kinds = {t.name: small[t.data_type] for t in model.graph.initializer if t.data_type in small}
    for node in model.graph.node:
        for name in node.input:
            if name in kinds:
                raise UnsupportedModelError(
                    f"The node '{printable(node.name or node.output[0])}' ({printable(node.op_type)}) "
                    "cannot be written as C.",
                    f"Its weight '{printable(name)}' is {kinds[name]}.",
                    "Build the FP32 file, or quantize it to INT8 with `capsedge quantize`.",
                )


def _fixed(model: onnx.ModelProto, batch: int | None) -> onnx.ModelProto:
    """A copy in which every input dimension is a number."""
    copy = ir.copy_of(model)
    for value in network_inputs.input_values(copy):
        dims = value.type.tensor_type.shape.dim
        if not len(dims):
            raise UnsupportedModelError(
                "The file cannot be written as C.",
                f"Its input '{printable(value.name)}' is a single number, without a batch.",
                "Export it with an input of at least one dimension, the batch.",
            )
        if not dims[0].HasField("dim_value"):
            dims[0].dim_value = batch or 1
        elif batch is not None and dims[0].dim_value != batch:
            raise UsageError(
                f"The model is fixed at batch {dims[0].dim_value}, not {batch}.",
                "It was exported with `--batch`.",
                f"Build with `--batch {dims[0].dim_value}`, or export with a free batch.",
            )
        if dims[0].dim_value > limits.C_BATCH:
            raise UnsupportedModelError(
                f"The batch of {dims[0].dim_value:,} images is too large for C.",
                f"The source grows with every image of a call; the limit is {limits.C_BATCH:,}.",
                "Export it with a free batch, and call it for one image after the other.",
            )
        if not all(d.dim_value > 0 for d in dims):
            raise UnsupportedModelError(
                "The file cannot be written as C.",
                f"Its input '{printable(value.name)}' has a free dimension other than the batch.",
                "Export it with fixed sizes, without an asterisk in `--example`.",
            )
    for value in (*copy.graph.output, *copy.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.Clear()
    return copy


def _poses(metadata: ModelMetadata | None, model: onnx.ModelProto) -> str:
    declared = (
        metadata.outputs.poses if metadata is not None and metadata.outputs is not None else POSES
    )
    return declared if any(o.name == declared for o in model.graph.output) else ""


def _capsules(model: onnx.ModelProto, poses: str) -> tuple[int, int] | None:
    """Classes and elements of a pose."""
    shape = ir.shapes_of(onnx.shape_inference.infer_shapes(model, data_prop=True)).get(poses, ())
    if len(shape) < 3 or any(size is None for size in shape[1:]):
        return None
    return int(shape[1] or 0), int(np.prod([int(d or 0) for d in shape[2:]]))


_MEANINGS = {
    "lengths": "length of every class capsule, 0 to 1: the score",
    "logits": "score of every class, which a softmax makes a probability",
    "poses": "pose of every class capsule",
    "reconstruction": "picture of every class",
}


def _meaning(name: str, metadata: ModelMetadata | None) -> str:
    declared = metadata.outputs if metadata is not None else None
    if declared is not None:
        if name == declared.scores:
            return f"score of every class ({declared.kind})"
        if name in declared.values:
            return f"values: {', '.join(declared.names)}"
        if name == declared.poses:
            return _MEANINGS["poses"]
    return _MEANINGS.get(name, "output of this name")


def _write_outputs(
    run: Translation, names: list[str], metadata: ModelMetadata | None, taken: list[str]
) -> tuple[COutput, ...]:
    """Make the program deliver every output to the caller as soon as it is computed.

    Args:
        taken: names that no output may have.
    """
    program, outputs = run.program, []
    fields: list[str] = []
    for name in names:
        field = naming.c_field_name(name, [*taken, *fields])
        fields.append(field)
        value = run.outputs[name]
        _deliver(program, value, field)
        outputs.append(COutput(name, field, value.shape, _meaning(name, metadata)))
    return tuple(outputs)


def _deliver(program: Program, value: ProgramValue, field: str) -> None:
    """Insert the copy to the caller after the last step that writes the value."""
    before = len(program.steps)
    program.begin(field, "Output")
    value = program.ordered(value)
    size = f"{value.size} * sizeof(float)"
    program.step(
        f"if (outputs->{field}) memcpy(outputs->{field}, {program.pointer(value)}, {size});",
        [value],
        [],
    )
    added = program.steps[before:]
    del program.steps[before:]
    buffer = added[0].reads[0] if added[0].reads else None
    writers = [
        t for t, step in enumerate(program.steps) if buffer is not None and buffer in step.writes
    ]
    at = writers[-1] + 1 if writers else len(program.steps)
    program.steps[at:at] = added
