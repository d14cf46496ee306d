"""``capsedge inspect``: shows the contents of a model file or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._output import print_table
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import READS
from capsedge.errors import UsageError
from capsedge.runtime.files import reading
from capsedge.runtime.files.formats import is_engine
from capsedge.runtime.files.text import format_bytes

if TYPE_CHECKING:
    from capsedge.runtime.inspection import EngineInspection, Inspection, RoutingLayer
    from capsedge.runtime.metadata import ModelMetadata
    from capsedge.runtime.onnx_file.forecast import Forecast as ForecastData
    from capsedge.runtime.onnx_file.structure import Shape
    from capsedge.runtime.table_indices import InputBounds


File = Annotated[
    Path,
    Argument(
        help="An ONNX file from any tool, a .safetensors checkpoint, a TensorRT engine, or a folder of "
        "`capsedge build --target c`."
    ),
    READS,
]
Forecast = Annotated[
    bool, Option("--forecast", help="Forecast memory and traffic by layer, from shapes.")
]
Layers = Annotated[
    bool, Option("--layers", help="Layers of a TensorRT engine; needs its GPU and TensorRT.")
]
ForDevice = Annotated[
    str | None,
    Option(
        "--device",
        help="With --forecast: check whether the model fits a device, such as orin-nano-8gb.",
    ),
]


def command(
    file: File,
    batch: _options.BatchSizes = "1,8",
    forecast: Forecast = False,
    layers: Layers = False,
    device: ForDevice = None,
    as_json: _options.Json = False,
) -> None:
    """Show what a file holds: metadata, operators, sizes, memory."""
    from capsedge.runtime.inspection import Inspection, inspect

    batches = _options.batch_sizes(batch)
    if reading.path_kind(file) == reading.FOLDER:
        _c_folder(file, {"forecast": forecast, "layers": layers, "device": device}, as_json)
        return
    _check(file, forecast, layers, device)
    if forecast:
        _forecast(file, batches, device, as_json)
        return
    found = inspect(file, batch=batches)
    if not isinstance(found, Inspection):
        _engine(found, layers, as_json)
    elif as_json:
        _output.print_json(found.to_dict())
    else:
        _show(found, batches)


def _check(file: Path, forecast: bool, layers: bool, device: str | None) -> None:
    engine = is_engine(file)
    if device is not None and not forecast:
        raise UsageError(
            "--device needs --forecast.", "It selects the device of a forecast.", "Add --forecast."
        )
    if engine and forecast:
        raise UsageError(
            f"{file} is a TensorRT engine.",
            "A forecast needs the shapes that an ONNX file holds.",
            "Pass the ONNX file that the engine was built from.",
        )
    if layers and not engine:
        raise UsageError(
            f"--layers does not apply to {file}.",
            "Only TensorRT engines have layers to list.",
            "Leave out --layers.",
        )


def _c_folder(folder: Path, options: Mapping[str, object], as_json: bool) -> None:
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise UsageError(f"--{given} does not apply to a folder of C.", "", f"Leave out --{given}.")
    from capsedge.exporters.c.fit import memory_rows
    from capsedge.exporters.c.folder import read_report
    from capsedge.exporters.c.measurement import measured_text

    description, memory, layers, measured = read_report(folder)
    if as_json:
        _output.print_json(description)
        return
    rows = [
        ("made from", str(description["source"].get("file", ""))),
        ("precision", str(description.get("precision") or "not stated")),
        ("input", " x ".join(map(str, description["input"]["shape"]))),
        *memory_rows(str(description.get("name", "")), memory),
    ]
    for each in measured:
        rows += [(f"measured for {each.core}", measured_text(asdict(each))), ("", each.compiler)]
        rows += [("", each.emulator)] if each.emulator else []
    print_table("Network in C", ("", ""), rows)
    counted = [each for each in measured if each.instructions]
    print_table(
        "Layers",
        (
            "node",
            "operator",
            "multiply-adds",
            *(each.core for each in counted),
            "constants",
            "scratch",
            "live",
        ),
        [
            (
                x.node,
                x.operator,
                f"{x.products:,}",
                *(f"{each.instructions[k]:,}" for each in counted),
                *map(format_bytes, (x.constant_bytes, x.scratch_bytes, x.live_bytes)),
            )
            for k, x in enumerate(layers)
        ],
    )


def _engine(found: EngineInspection, layers: bool, as_json: bool) -> None:
    from capsedge.runtime.inspection import labelled_layers

    listed = labelled_layers(Path(found.path)) if layers else []
    if as_json:
        _output.print_json(found.to_dict() | ({"layers": listed} if layers else {}))
        return
    engine_info = found.engine_metadata
    print_table("Engine", ("", ""), _engine_facts(found))
    if engine_info.model is not None:
        print_table("Model", ("", ""), _model(engine_info.model))
    if layers:
        print_table(
            f"Layers, batch {engine_info.batch[1]}"
            + (f", length {engine_info.length[1]}" if engine_info.length else ""),
            ("belongs to", "layer", "kind", "computes with"),
            [(x["belongs_to"], x["name"], x["kind"], x["types"]) for x in listed],
        )


def _engine_facts(found: EngineInspection) -> list[tuple[str, str]]:
    from capsedge.runtime.engine_metadata import range_words

    def counts(kinds: Mapping[str, int]) -> str:
        return ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "not stated"

    engine_info = found.engine_metadata
    here = {True: "yes", False: "no", None: "not known"}[found.runs_here]
    return [
        ("file", found.path),
        ("size", format_bytes(engine_info.engine_bytes)),
        ("sha256", engine_info.engine_sha256),
        ("runs here", f"{here}: {found.because}" if found.because else here),
        *([("timed for", found.timed_for)] if found.timed_for else []),
        ("built for", engine_info.built_for),
        ("built with", f"{engine_info.built_with}, {engine_info.machine.architecture}"),
        ("batch", range_words(engine_info.batch)),
        *([("length", range_words(engine_info.length))] if engine_info.length else []),
        ("precision", engine_info.precision),
        ("layers", counts(engine_info.layers)),
        ("products", counts(engine_info.products)),
        ("routing runs in", engine_info.plugin_library or "TensorRT's own operators"),
        ("made from", f"{engine_info.source}, sha256 {engine_info.source_sha256}"),
        ("build it again", engine_info.rebuild),
    ]


def _forecasts(file: Path, batches: list[int], device: str | None) -> list[ForecastData]:
    """Use the shapes stated in the file; if some are missing, those inferred by onnx, if installed."""
    from capsedge.runtime.files.writing import as_file
    from capsedge.runtime.onnx_file.forecast import UnknownSizes, forecast
    from capsedge.runtime.onnx_file.summary import read_harmless

    try:
        return [forecast(file, n, device) for n in batches]
    except UnknownSizes as error:
        try:
            from capsedge.graph.write_shapes import with_shapes
        except ModuleNotFoundError:
            raise UnknownSizes(
                error.what,
                f"{error.why} The package onnx could infer it, but is not installed.",
                "pip install 'capsedge[build]'",
            ) from None
        with as_file(with_shapes(read_harmless(file)[0], str(file))) as complete:
            try:
                return [forecast(complete, n, device) for n in batches]
            except UnknownSizes as found:
                words = (found.what, found.why, found.fix)
                raise UnknownSizes(*(w.replace(str(complete), str(file)) for w in words)) from None


def _forecast(file: Path, batches: list[int], device: str | None, as_json: bool) -> None:
    found = _forecasts(file, batches, device)
    if as_json:
        _output.print_json(
            {"schema": 1, "path": str(file), "forecasts": [f.to_dict() for f in found]}
        )
        return
    for f in found:
        print_table(
            f"Forecast, batch {f.batch}",
            ("layer", "operations", "traffic", "of which weights", "live activations"),
            [
                (
                    x.name,
                    f"{x.operations / 1e6:.2f} M",
                    format_bytes(x.traffic),
                    format_bytes(x.weights),
                    format_bytes(x.live),
                )
                for x in f.layers
            ],
        )
        rows = [
            ("weights", format_bytes(f.weights)),
            ("activations, peak", f"{format_bytes(f.peak)} in {f.peak_layer}"),
            ("activations, planned block", format_bytes(f.planned)),
            ("inputs", format_bytes(f.inputs)),
            ("traffic", format_bytes(f.traffic)),
        ]
        if f.device is not None:
            d = f.device
            rows += [
                (d.name, "fits" if d.fits else "does not fit in three quarters of its memory"),
                ("largest batch there", f"{d.largest_batch:,}"),
                (
                    "traffic at its bandwidth",
                    f"{d.least_ms:.3f} ms at {d.bandwidth / 1e9:.0f} GB/s",
                ),
            ]
        print_table("Sum", ("", ""), rows)


def _show(found: Inspection, batches: list[int]) -> None:
    print_table("File", ("", ""), _facts(found))
    for title, values in (("Inputs", found.inputs), ("Outputs", found.outputs)):
        if values:
            allowed = [_allowed(found.bounds.get(v.name)) for v in values]
            rows = [(v.name, v.type, _dimensions(v.shape)) for v in values]
            if any(allowed):
                bounded = [(*row, words) for row, words in zip(rows, allowed, strict=True)]
                print_table(title, ("name", "type", "shape", "allowed"), bounded)
            else:
                print_table(title, ("name", "type", "shape"), rows)
    operators = [
        (domain, operator, str(count))
        for domain, counts in found.operators.items()
        for operator, count in counts.items()
    ]
    if operators:
        print_table("Operators", ("domain", "operator", "nodes"), operators)
    if found.functions:
        print_table(
            "Function bodies",
            ("function", "overload", "nodes", "calls"),
            [
                (f"{f['domain']}.{f['name']}", f["overload"], str(f["nodes"]), str(f["calls"]))
                for f in found.functions
            ],
        )
    if found.largest:
        print_table(
            "Largest intermediate values",
            ("value", "type", "shape", *(f"batch {n}" for n in batches)),
            [
                (v.name, v.type, _dimensions(v.shape), *(format_bytes(v.bytes[n]) for n in batches))
                for v in found.largest
            ],
        )
    if found.routing:
        print_table(
            "Memory of the votes (votes: FP32 tensor of an unfused graph; moved: bytes of a fused kernel)",
            (
                "layer",
                "operator",
                "positions x children x parents x pose",
                *(f"{kind}, batch {n}" for n in batches for kind in ("votes", "moved")),
            ),
            [_layer(layer, batches) for layer in found.routing],
        )


def _layer(layer: RoutingLayer, batches: list[int]) -> tuple[str, ...]:
    if not layer.votes:
        return (layer.name, layer.operator, "not stated in the file", *["?"] * (2 * len(batches)))
    sizes = (layer.positions, layer.children, layer.parents, layer.pose)
    cells = (format_bytes(of[n]) for n in batches for of in (layer.votes, layer.fused))
    return (layer.name, layer.operator, " x ".join(map(str, sizes)), *cells)


def _allowed(bounds: InputBounds | None) -> str:
    """The values and lengths that an input allows; empty for any."""
    if bounds is None:
        return ""
    values = [] if bounds.entries is None else [f"0 to {bounds.entries - 1:,}"]
    lengths = [
        f"at most {most:,} along axis {axis}" for axis, most in enumerate(bounds.longest) if most
    ]
    return ", ".join([*values, *lengths])


def _dimensions(shape: Shape | None) -> str:
    return "unknown" if shape is None else "x".join(map(str, shape)) or "scalar"


def _facts(found: Inspection) -> list[tuple[str, str]]:
    facts = [("file", found.path), ("size", format_bytes(found.bytes)), ("sha256", found.sha256)]
    stored = ", ".join(
        f"{t.elements:,} {t.type} in {t.tensors} ({format_bytes(t.bytes)})" for t in found.tensors
    )
    facts += [("parameters", f"{found.parameters:,}"), ("tensors", stored or "none")]
    if found.external_data:
        facts.append(("external data", "some weights are in other files beside this one"))
    if found.training:
        names = ", ".join(found.training[:3]) + (" ..." if len(found.training) > 3 else "")
        facts.append(
            ("training mode", f"{names}: the result of an image depends on the others of its batch")
        )
    branching = sorted({"If", "Loop", "Scan"} & set(found.operators.get("standard", ())))
    if branching:
        facts.append(("CUDA graphs", f"none: {', '.join(branching)} cannot be captured"))
    if found.kind == "onnx":
        opsets = ", ".join(
            f"{domain or 'ai.onnx'} {version}" for domain, version in found.opsets.items()
        )
        facts.append(("format", f"ONNX IR {found.ir_version}, opset {opsets}"))
        facts.append(("producer", found.producer or "not stated"))
    if found.metadata is not None:
        facts += _model(found.metadata)
    elif found.kind == "onnx":
        ours = found.producer == "capsedge"
        facts.append(("metadata", "none" if ours else "none: a file from another tool"))
    if found.origin is not None:
        facts += found.origin.facts()
    if found.pruned is not None:
        facts += found.pruned.facts()
    for key, value in (found.configuration or {}).items():
        facts.append((f"config {key}", str(value)))
    return facts


def _model(meta: ModelMetadata) -> list[tuple[str, str]]:
    """The network, as described by the file's metadata."""
    facts = [
        ("architecture", meta.architecture or "not stated"),
        ("routing", meta.routing_text),
        ("task", meta.task),
        *_outputs(meta),
        ("precision", meta.precision),
        ("checkpoint", meta.checkpoint_sha256 or "not stated"),
    ]
    if meta.preprocessing is not None:
        p = meta.preprocessing
        scaling = f"scale {p.scale:.6g}, mean {list(p.mean)}, std {list(p.std)}"
        if p.per_image:
            scaling += f", per image {p.per_image}"
        if p.order != "RGB":
            scaling += f", channels {p.order}"
        size_of_image = "x".join(map(str, p.shape))
        facts.append(("input image", f"{size_of_image}, {p.resize}, {scaling}"))
    if meta.typical_input is not None:
        facts += meta.typical_input.facts()
    if meta.training_split is not None:
        facts.append(("held out", meta.training_split.summary))
    if meta.cascade is not None:
        facts += meta.cascade.facts()
    facts += [(f"parity {key}", _flat(value)) for key, value in meta.parity.items()]
    return facts if meta.origin is None else facts + meta.origin.facts()


def _flat(value: Any) -> str:
    """A metadata value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return str(value)


def _outputs(meta: ModelMetadata) -> list[tuple[str, str]]:
    """The contents of the outputs: classes or values."""
    facts = []
    if meta.class_names or meta.outputs is None:
        facts.append(("classes", f"{len(meta.class_names)}: {', '.join(meta.class_names)}"))
    declared = meta.outputs
    if declared is None:
        facts.append(("scores", "the output called lengths or logits, as in files of capsedge"))
        return facts + _why(meta)
    if declared.scores:
        facts.append(("scores", f"{declared.scores} ({declared.kind})"))
        facts += _why(meta)
        facts.append(("poses", declared.poses or "none"))
    else:
        named = zip(declared.names, declared.units, strict=True)
        values = ", ".join(f"{name} ({unit})" if unit else name for name, unit in named)
        facts.append(("values", f"{values} in {', '.join(declared.values)}"))
    return facts


def _why(meta: ModelMetadata) -> list[tuple[str, str]]:
    """Why this output was chosen for the scores, as stated in the file."""
    return [] if meta.chosen_scores is None else [("why these scores", meta.chosen_scores.reason)]
