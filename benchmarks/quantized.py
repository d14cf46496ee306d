"""INT8 from capsedge, INT8 from ONNX Runtime's own quantizer, and plain FP32: speed, size, accuracy.

    python -m benchmarks.quantized
    python -m benchmarks.quantized --accuracy ../shared/data/mnist --models digits-dynamic digits-em

Speed is measured on CapsNet-MNIST (in the paper's size, with random weights, which do not affect speed), each
file in its own process, with interleaved rounds. ``--accuracy`` compares trained digit models on all test
images instead; both quantizers calibrate on the same training images. Writes quantized.json and quantized.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.common import machine, statistics
from capsedge.runtime.profiling.compare import Entrant, compare
from capsedge.runtime.profiling.worker import RunLimits, Specification

FILES = {
    "capsedge int8": ("capsedge", "int8.onnx"),
    "capsedge fp32": ("capsedge", "fp32.onnx"),
    "capsedge int8, no operator library": ("ort", "int8.onnx"),
    "plain export": ("ort", "plain.onnx"),
    "plain export, onnxruntime quantizer, all": ("ort", "naive.onnx"),
    "plain export, onnxruntime quantizer, convolutions only": ("ort", "convolutions.onnx"),
}
CALIBRATION = 64


class Reader:
    """Calibration images, in the form that ONNX Runtime's quantizer reads."""

    def __init__(self, images: np.ndarray) -> None:
        self._batches = iter([images[k : k + 1] for k in range(len(images))])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next image, or None."""
        image = next(self._batches, None)
        return None if image is None else {"images": image}


def library_default(plain: Path, output: Path, images: np.ndarray, only: list[str] | None) -> None:
    """Quantize with ``onnxruntime.quantization`` and all its defaults; ``only`` limits the node types."""
    from onnxruntime.quantization import quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = output.with_suffix(".prepared.onnx")
    quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
    more = {} if only is None else {"op_types_to_quantize": only}
    quantize_static(str(ready), str(output), Reader(images), **more)


def ours(model: Path, output: Path, images: Any) -> None:
    """Quantize with capsedge: everything in INT8, without the gate."""
    from capsedge.calibration.float_model import FloatModel, uniform_assignment

    source = FloatModel(model)
    table = source.calibrate(images, "mse", None)
    made, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    output.write_bytes(made.SerializeToString())


def prepare(name: str, folder: Path, calibration: Any, batch: int) -> np.ndarray:
    """Write all files of a model; returns images."""
    import torch

    from capsedge.datasets import ImageSet
    from capsedge.exporters.export import export
    from capsedge.exporters.export_options import REWRITES, ExportOptions
    from capsedge.models import build
    from capsedge.models.checkpoint import load_checkpoint
    from capsedge.runtime.zoo import zoo_checkpoints

    torch.manual_seed(0)
    trained = {path.stem: path for path in zoo_checkpoints()}
    model = load_checkpoint(trained[name]) if name in trained else build(name).eval()
    export(model, folder / "fp32.onnx")
    export(model, folder / "plain.onnx", ExportOptions(ops="portable", no_rewrite=tuple(REWRITES)))
    p = model.config.preprocessing
    rng = np.random.default_rng(0)
    if calibration is None:
        pixels = rng.integers(0, 256, (CALIBRATION, p.height, p.width, p.channels), dtype=np.uint8)
        calibration = ImageSet("random", pixels, None, p)
    prepared = np.concatenate(list(calibration.batches(64)))
    ours(folder / "fp32.onnx", folder / "int8.onnx", calibration)
    library_default(folder / "plain.onnx", folder / "naive.onnx", prepared, None)
    library_default(folder / "plain.onnx", folder / "convolutions.onnx", prepared, ["Conv"])
    return rng.random((batch, p.channels, p.height, p.width), dtype=np.float32)


def speed(
    folder: Path, images: np.ndarray, threads: int, rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Measure one row per file: each in its own process, in turns."""
    entrants = []
    for label, (peer, file) in FILES.items():
        ops = "fused" if peer == "capsedge" else "auto"
        specification = Specification(peer, str(folder / file), threads=threads, ops=ops)
        entrants.append(Entrant(label, specification, label))
    found = compare(
        entrants, {"images": images}, RunLimits(seconds / 2, seconds, rounds), rounds=rounds
    )
    rows: list[dict[str, Any]] = [
        {
            "file": entry.name,
            "bytes": (folder / entry.model).stat().st_size,
            "version": entry.version,
            **statistics(entry.samples),
        }
        for entry in found.entries
    ]
    plain = next(r for r in rows if r["file"] == "plain export")
    for row in rows:
        row["times_plain"] = plain["median_ms"] / row["median_ms"]
        row["size_ratio"] = row["bytes"] / plain["bytes"]
    return rows


def accuracy(model: str, folder: Path, data: Path, limit: int | None) -> list[dict[str, Any]]:
    """Measure one row per file: its decisions on the test images."""
    import onnxruntime

    from capsedge.calibration import accuracy as evaluate
    from capsedge.datasets import read_images
    from capsedge.runtime.load import load

    session = load(folder / "fp32.onnx")
    assert session.metadata is not None
    test = read_images(data, session.metadata.preprocessing, "test")
    test = test if limit is None else test.draw(limit)
    criterion = evaluate.Criterion.of(session)
    assert criterion.scores is not None
    reference = evaluate.criterion_outputs(session, test, criterion)
    rows = []
    for label, (kind, file) in FILES.items():
        if "no operator library" in label or file == "plain.onnx":
            continue
        if kind == "ort":
            plain = onnxruntime.InferenceSession(
                str(folder / file), providers=["CPUExecutionProvider"]
            )
            names = [criterion.scores]
            scores = [plain.run(names, {"images": x})[0] for x in test.batches(32)]
            found = {criterion.scores: scores}
        else:
            found = evaluate.criterion_outputs(load(folder / file), test, criterion)
        outcome = evaluate.compare(reference, found, test, criterion)
        size = (folder / file).stat().st_size
        rows.append({"model": model, "file": label, "bytes": size, **outcome.to_dict()})
    return rows


def markdown(document: dict[str, Any]) -> str:
    """The tables."""
    m = document["machine"]
    lines = [f"Measured on {m['cpu']}, {m['cores']} cores, with `{document['command']}`.", ""]
    if document["speed"]:
        lines += [
            "| file | median ms | p10 - p90 | times plain FP32 | size |",
            "|---|---|---|---|---|",
        ]
        for r in document["speed"]:
            lines.append(
                f"| {r['file']} | {r['median_ms']:.2f} | {r['p10_ms']:.2f} - {r['p90_ms']:.2f} | "
                f"{r['times_plain']:.2f}x | {r['size_ratio']:.3f} |"
            )
    if document["accuracy"]:
        lines += ["| model | file | accuracy | points lost | agreement |", "|---|---|---|---|---|"]
        for r in document["accuracy"]:
            lines.append(
                f"| {r['model']} | {r['file']} | {100 * r['accuracy']:.2f} % | "
                f"{r['drop_points']:.2f} | {100 * r['agreement']:.2f} % |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["capsnet-mnist"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each file, over all rounds")
    parser.add_argument("--accuracy", type=Path, metavar="DATA", help="compare decisions instead")
    parser.add_argument("--limit", type=int, help="at most so many test images")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/benchmarks"))
    options = parser.parse_args()
    document: dict[str, Any] = {
        "machine": machine(),
        "command": " ".join(["python -m benchmarks.quantized", *sys.argv[1:]]),
        "onnx": onnx.__version__,
        "speed": [],
        "accuracy": [],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for model in options.models:
            folder = Path(name) / model
            folder.mkdir()
            calibration = None
            if options.accuracy is not None:
                from capsedge.datasets import read_images
                from capsedge.models import get_config

                prep = get_config(model).preprocessing
                calibration = read_images(options.accuracy, prep, "train").draw(256)
            images = prepare(model, folder, calibration, options.batch)
            if options.accuracy is not None:
                document["accuracy"] += accuracy(model, folder, options.accuracy, options.limit)
            else:
                document["speed"] += speed(
                    folder, images, options.threads, options.rounds, options.seconds
                )
    (options.output / "quantized.json").write_text(json.dumps(document, indent=1))
    (options.output / "quantized.md").write_text(markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
