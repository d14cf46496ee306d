"""The same file in every runtime: whether it converts, whether it is correct, and how fast it is.

    python -m benchmarks.portability --environments DIR

Each runtime runs in its own process, under the interpreter in ``DIR/RUNTIME`` (``tools/runtimes.sh DIR``
creates them), or under this one if there is none. A runtime that is missing, crashes or is wrong still has a
row in the table. Writes ``portability.json`` and, with ``--document``, the table into a page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine, replace_between
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.profiling.startup import Worker
from capsedge.runtime.profiling.worker import RunLimits, Specification, take_times

WORKER = Path(__file__).with_name("runtimes.py")
RUNTIMES = (
    "onnxruntime", "openvino", "litert", "mnn", "tract", "onnx.reference", "ncnn", "executorch",
)  # fmt: skip
ZOO = ("digits-dynamic", "digits-em", "digits-attention")
MODELS = (*ZOO, "capsnet-mnist", "em-smallnorb", "attention-cifar10-simple")
INT8 = ("onnxruntime", "openvino", "litert", "tract")  # runtimes that the INT8 files are run on
PRECISIONS = ("fp32", "int8")
IMAGES = 20
TOLERANCE = 1e-3  # relative to an output's largest magnitude; larger differences are wrong
INT8_TOLERANCE = 0.1  # larger, because runtimes round to 8-bit values differently
DOCUMENT = Path("docs/benchmarks/runtimes.md")
BEGIN, END = "<!-- portability: begin -->", "<!-- portability: end -->"


@dataclass(frozen=True)
class Row:
    """One runtime with one model in one precision.

    Attributes:
        converts: whether it accepted the file and answered.
        difference: largest difference over all outputs from the same file in ONNX Runtime, relative to each
            output's largest magnitude.
        flips: number of images in ``IMAGES`` with a different decision.
        median_ms, ours_ms: median times for one image, in this runtime and with our fused operators.
        problem: why it does not convert, or what is wrong.
    """

    runtime: str
    version: str
    model: str
    precision: str
    converts: bool
    difference: float | None = None
    flips: int | None = None
    median_ms: float | None = None
    ours_ms: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Prepared:
    """The files of one model in one precision, and the correct results.

    Attributes:
        files: the file for each runtime; ``""`` is for those without a file of their own.
        inputs: images by input name, as an ``.npz`` file.
        outputs: outputs by name, as computed by ONNX Runtime, the scores first.
        ours_ms: median time with the fused operators.
    """

    files: dict[str, Path]
    inputs: Path
    outputs: dict[str, NDArray[Any]]
    ours_ms: float


def interpreter(runtime: str, environments: Path | None) -> str:
    """The interpreter for a runtime: the one in its folder, otherwise this one."""
    if environments is not None:
        for folder in ("bin/python", "Scripts/python.exe"):
            place = environments / runtime / folder
            if place.exists():
                return str(place)
    return sys.executable


def judge(found: dict[str, NDArray[Any]], wanted: dict[str, NDArray[Any]]) -> tuple[float, int]:
    """The largest relative difference, and the number of decisions that differ.

    Outputs are matched by name, otherwise by their number of elements, otherwise by order.

    Raises:
        ValueError: an output is missing, or has a different number of elements.
    """
    worst, flips = 0.0, 0
    for number, (name, reference) in enumerate(wanted.items()):
        size = reference[0].size
        fitting = {
            n: (n != name, k != number) for k, n in enumerate(found) if found[n][0].size == size
        }
        if not fitting:
            shapes = ", ".join(f"{n} {list(f.shape[1:])}" for n, f in found.items())
            raise ValueError(f"no output with {size} elements for {name}: {shapes}")
        value = found[min(fitting, key=fitting.__getitem__)]
        value = value.reshape(reference.shape).astype(np.float64)
        largest = max(float(np.abs(reference).max()), 1e-30)
        difference = float(np.abs(value - reference).max()) / largest
        worst = max(worst, difference if np.isfinite(difference) else float("inf"))
        if number == 0:
            flips = int((value.argmax(-1) != reference.argmax(-1)).sum())
    return worst, flips


def row(
    runtime: str, model: str, precision: str, prepared: Prepared, python: str,
    seconds: float = 1.0, limit: float = 600.0,
) -> Row:  # fmt: skip
    """Run one runtime on one model."""
    file = prepared.files.get(runtime, prepared.files[""])
    with tempfile.TemporaryDirectory() as folder:
        asked = Specification(
            runtime, str(file), str(prepared.inputs), str(Path(folder) / "answer.npz"),
            threads=2, single=True,
        )  # fmt: skip
        try:
            # Another interpreter must not see this one's packages.
            with Worker(asked, (python, "-I", str(WORKER)), limit) as worker:
                found, said = worker.outputs(), worker.first["version"]
                samples, _ = worker.round(RunLimits(0.0, seconds, 3))
        except EnvironmentProblem as error:
            text = f"{error.what} {error.why}".strip().replace(str(file), file.name)
            return Row(runtime, "", model, precision, False, ours_ms=prepared.ours_ms, problem=text)
    about = (runtime, said, model, precision, True)
    times: dict[str, Any] = {
        "median_ms": 1e3 * float(np.median(samples)),
        "ours_ms": prepared.ours_ms,
    }
    try:
        difference, flips = judge(found, prepared.outputs)
    except ValueError as error:
        return Row(*about, **times, problem=str(error))
    allowed = TOLERANCE if precision == "fp32" else INT8_TOLERANCE
    wrong = "" if difference <= allowed else f"wrong: {difference:.2g} off"
    return Row(*about, difference, flips, **times, problem=wrong)


def prepare(model: str, folder: Path) -> dict[str, Prepared]:
    """Export a model in both precisions; with untrained weights, the INT8 files are made without a gate."""
    import capsedge
    from capsedge.datasets import from_iterable
    from capsedge.exporters.export import export
    from capsedge.exporters.export_options import ExportOptions
    from capsedge.models.find import find_model

    source = find_model(model).model
    fused, portable = folder / f"{model}.onnx", folder / f"{model}.portable.onnx"
    export(source, fused)
    export(source, portable, ExportOptions(target="litert"))
    session = capsedge.load(fused, threads=2)
    rng = np.random.default_rng(0)
    shape = [d for d in session.inputs[0].shape[1:] if isinstance(d, int)]
    images = rng.random((IMAGES, *shape)).astype(np.float32)
    inputs = folder / f"{model}.npz"
    named: dict[str, Any] = {session.inputs[0].name: images}
    np.savez(inputs, **named)
    samples = take_times(lambda: session.run(images[:1]), RunLimits(0.2, 1.0, 3))
    ours = 1e3 * float(np.median(samples))

    program = write_program(source, images[:1], folder / f"{model}.pt2")
    found = {
        "fp32": Prepared(
            {"": portable, "executorch": program}, inputs, _answers(portable, images), ours
        )
    }
    calibration = from_iterable(iter(rng.random((64, *shape)).astype(np.float32)), None)
    file = write_int8(fused, folder / f"{model}.int8.onnx", calibration, "litert")
    found["int8"] = Prepared({"": file}, inputs, _answers(file, images), ours)
    return found


def write_int8(model: Path, output: Path, calibration: Any, target: str) -> Path:
    """Write a file with everything in INT8 that the target's runtime supports, without a gate."""
    from capsedge.calibration.float_model import FloatModel, uniform_assignment

    source = FloatModel(model, runtime=None if target == "ort-cpu" else target)
    table = source.calibrate(calibration, "mse", None)
    made, _ = source.emit(uniform_assignment(source.quantizable(target), "int8"), table, target)
    output.write_bytes(made.SerializeToString())
    return output


def write_program(source: Any, images: NDArray[np.float32], output: Path) -> Path:
    """Write the ``torch.export`` program for images at one batch size, in standard operators."""
    import torch

    from capsedge.models.ops import decompositions

    exported = torch.export.export(_outputs_of(source), (torch.from_numpy(images),))
    torch.export.save(exported.run_decompositions(decompositions()), output)
    return output


def _outputs_of(source: Any) -> Any:
    """The model as a module that returns its scores and poses in the form ``torch.export`` needs."""
    from torch import nn

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = source

        def forward(self, images: Any) -> Any:
            found = self.model(images)
            return found.scores, found.poses

    return Outputs().eval()


def _answers(file: Path, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The outputs of a batch-1 file in ONNX Runtime, without the operator library; the scores first."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    single = [session.run(names, {"images": images[k : k + 1]}) for k in range(len(images))]
    return {n: np.stack([a[i] for a in single])[:, 0] for i, n in enumerate(names)}


def markdown(document: dict[str, Any]) -> str:
    """The table, and a description of what it was measured on."""
    lines = [
        f"{document['machine']['cpu']}, 2 threads, batch 1, {IMAGES} images; `{document['command']}`.",
        "",
        "| runtime | model | precision | converts | difference | flips | ms | ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in document["rows"]:
        said = "yes" if r["converts"] and not r["problem"] else _cell(r["problem"])
        numbers = [
            "" if r["difference"] is None else f"{r['difference']:.1e}",
            "" if r["flips"] is None else str(r["flips"]),
            "" if r["median_ms"] is None else f"{r['median_ms']:.2f}",
            "" if r["ours_ms"] is None else f"{r['ours_ms']:.2f}",
        ]
        name = r["version"] or r["runtime"]
        lines.append(
            f"| {name} | {r['model']} | {r['precision']} | {said} | " + " | ".join(numbers) + " |"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    """An error as a table cell."""
    short = " ".join(text.split())
    short = short if len(short) <= 160 else short[:157] + "..."
    return short.replace("|", "\\|").replace("<", "&lt;")


def write_table(text: str, path: Path = DOCUMENT) -> None:
    """Put the table between the markers of a document.

    Raises:
        ValueError: the document has no markers.
    """
    replace_between(path, BEGIN, END, text)


def order(r: dict[str, Any]) -> tuple[int, int, int]:
    """The sort key of a row in the table."""
    places = ((RUNTIMES, "runtime"), (PRECISIONS, "precision"), (MODELS, "model"))
    a, b, c = (k.index(r[n]) if r[n] in k else len(k) for k, n in places)
    return a, b, c


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=RUNTIMES)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument(
        "--environments",
        type=Path,
        default=os.environ.get("CAPSEDGE_RUNTIMES"),
        help="folder of virtual environments by runtime (CAPSEDGE_RUNTIMES)",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed runs of each")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--document", type=Path, help="page whose table is replaced")
    options = parser.parse_args()
    environments = None if options.environments is None else Path(options.environments)
    options.output.mkdir(parents=True, exist_ok=True)
    place = options.output / "portability.json"
    rows: list[dict[str, Any]] = []
    if place.exists():
        before = json.loads(place.read_text())
        if before["machine"] == machine():
            rows = before["rows"]
    document = {"machine": machine(), "command": "python -m benchmarks.portability", "rows": rows}
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            print(f"exporting {model}", file=sys.stderr, flush=True)
            prepared = prepare(model, Path(folder))
            for precision in options.precisions:
                for runtime in options.runtimes:
                    if precision == "int8" and runtime not in INT8:
                        continue
                    python = interpreter(runtime, environments)
                    made = row(
                        runtime, model, precision, prepared[precision], python, options.seconds
                    )
                    print(
                        f"{runtime}, {model}, {precision}: {made.problem or 'right'}",
                        file=sys.stderr,
                    )
                    key = (runtime, model, precision)
                    rows[:] = [r for r in rows if (r["runtime"], r["model"], r["precision"]) != key]
                    rows.append(asdict(made))
                    rows.sort(key=order)
                    # Written after each step, so that a long run loses nothing if it is interrupted.
                    place.write_text(json.dumps(document, indent=1))
    text = markdown(document)
    if options.document is not None:
        write_table(text, options.document)
    print(text)


if __name__ == "__main__":
    main()
