"""Imported networks: capsedge's file compared with the author's PyTorch in eager mode and a plain export.

    python -m benchmarks.imported [--networks yl_1993 fsanet] [--batch 1 16] [--threads 2]
    python -m benchmarks.imported --list networks.json

Without ``--list``: plain implementations in the authors' sizes, with random weights (`imported_networks`).
The list names the authors' own code and weights; that code is run::

    [{"name": "Moeinh77", "code": "author.py:build", "weights": "model.pth",
      "answers": {"iterations": 2, "variant": "new"}}]

Answers are arguments of `capsedge.import_checkpoint`, paths are relative to the list, and ``"batch": [1]`` is
given if the batch is fixed. The plain export runs in ONNX Runtime. All take turns in one run, each in its own
process; times are minima, ratios are relative to capsedge's file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

import capsedge
from benchmarks.common import machine
from capsedge.importers.import_options import ImportOptions
from capsedge.importers.reference_check import matching_output
from capsedge.models import CapsuleModel, CapsuleOutput
from capsedge.models.user.code import on_cpu
from capsedge.models.user.module import UserModuleSpec, load_user_module
from capsedge.runtime.profiling.compare import CAPSEDGE, Entrant, Entry, compare
from capsedge.runtime.profiling.compare_models import TORCH_WORKER
from capsedge.runtime.profiling.worker import RunLimits, Specification

_HERE = Path(__file__).with_name("imported_networks.py")
_PIXELS = {"height": 32, "width": 32, "scale": 1 / 255}
# The answers for each network.
NETWORKS: dict[str, dict[str, Any]] = {
    "yl_1993_small": {"iterations": 2, "variant": "new", "preprocessing": _PIXELS},
    "yl_1993": {"iterations": 2, "variant": "new"},
    "yl_1993_signs": {"iterations": 2, "variant": "new", "preprocessing": _PIXELS},
    "fsanet": {"variant": "omasaht"},
}


@dataclass(frozen=True)
class Network:
    """A network to measure.

    Attributes:
        name: name in the report.
        code: ``author.py:build`` for the author's module, or for the plain implementation.
        weights: the file that is imported.
        answers: arguments for `capsedge.import_checkpoint`.
        batch: batch sizes to measure, if its batch is fixed.
    """

    name: str
    code: str
    weights: Path
    answers: dict[str, Any]
    batch: tuple[int, ...] = ()


def plain_export(module: nn.Module, model: CapsuleModel, example: Tensor, path: Path) -> None:
    """Export the author's module with ``torch.onnx.export`` alone; its output is named as in ours."""
    with torch.no_grad(), on_cpu():
        wanted, answer = model(example), module(example)
    kind, value = matching_output(answer, _shapes(wanted))
    declared = model.config.outputs
    scores = model.score_name if declared is None else declared.values[0]
    name = {"poses": "poses", "scores": scores}[kind]
    outputs = answer if isinstance(answer, (tuple, list)) else (answer,)
    names = [
        name if output.data_ptr() == value.data_ptr() else f"other {k}"
        for k, output in enumerate(outputs)
    ]
    with on_cpu():  # because public code asks for a GPU
        torch.onnx.export(
            module, (example,), str(path), dynamo=False, opset_version=17,
            input_names=["images"], output_names=names,
        )  # fmt: skip


def _shapes(output: CapsuleOutput) -> dict[str, tuple[int, ...]]:
    return {"poses": tuple(output.poses.shape), "scores": tuple(output.scores.shape)}


def _differs(model: CapsuleModel, plain: Path, example: Tensor) -> float:
    """How far a plain export is from the network, relative to the largest value."""
    answer = onnxruntime.InferenceSession(str(plain)).run(None, {"images": example.numpy()})
    with torch.no_grad():
        wanted = model(example)
    kind, value = matching_output([torch.from_numpy(a) for a in answer], _shapes(wanted))
    own: Tensor = getattr(wanted, kind)
    return float((value - own).abs().max() / own.abs().max())


def converted(network: Network) -> capsedge.ImportReport:
    """Import the network with its answers: options of the import, or its description."""
    answers = dict(network.answers)
    known = ImportOptions.__dataclass_fields__
    options = {name: answers.pop(name) for name in known if name in answers}
    return capsedge.import_checkpoint(
        network.weights,
        **options,
        description=capsedge.Description(**answers),
    )


def measure(
    network: Network, batch: int, threads: int, seconds: float, folder: Path
) -> dict[str, Any]:
    """Measure the times of all three."""
    model = converted(network).model
    ours = folder / f"{network.name}.onnx"
    capsedge.export(model, ours)
    own = UserModuleSpec(network.code, str(network.weights))
    plain = folder / f"{network.name}-plain-{batch}.onnx"
    pixels = model.config.preprocessing
    shape = (batch, pixels.channels, pixels.height, pixels.width)
    example = torch.rand(shape, generator=torch.Generator().manual_seed(5))
    plain_export(load_user_module(own).module, model, example, plain)
    source = json.dumps({"module": own.module, "weights": own.weights})
    entrants = [
        Entrant("capsedge", Specification(CAPSEDGE, str(ours), "", threads=threads), network.name),
        # Checked on its own: ONNX Runtime's Sigmoid may make it differ, and it is timed regardless.
        Entrant("plain export", Specification("ort", str(plain), "", threads=threads), "plain"),
        Entrant(
            "author's PyTorch",
            Specification("torch", str(plain), "", threads=threads, module=source),
            network.name,
            TORCH_WORKER,
        ),
    ]
    found = compare(entrants, {"images": example.numpy()}, RunLimits(0.3, seconds, 20))
    return {
        "network": network.name,
        "batch": batch,
        "threads": threads,
        "plain_export_differs": _differs(model, plain, example),
        "entries": [_entry(entry, min(found.entries[0].samples)) for entry in found.entries],
    }


def _entry(entry: Entry, first: float) -> dict[str, Any]:
    """One entrant's times; none if its answers differ too much."""
    least = min(entry.samples, default=None)
    return {
        "name": entry.name,
        "version": entry.version,
        "difference": entry.difference,
        "problem": entry.problem,
        "least_ms": None if least is None else 1e3 * least,
        "median_ms": None if entry.latency is None else entry.latency.median,
        "times_capsedge": None if least is None else least / first,
        "peak_bytes": entry.peak_bytes,
    }


def markdown(document: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "| network | batch | capsedge, ms | plain export | author's PyTorch | difference | plain differs |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in document["results"]:
        ours, plain, author = r["entries"]
        times = [e["times_capsedge"] for e in (plain, author)]
        ratios = " | ".join("differs" if t is None else f"{t:.1f}x" for t in times)
        lines.append(
            f"| {r['network']} | {r['batch']} | {ours['least_ms']:.2f} | {ratios} | "
            f"{author['difference']:.1g} | "
            f"{r['plain_export_differs']:.1g} |"
        )
    return "\n".join([*lines, ""])


def header(document: dict[str, Any]) -> str:
    """The text above the table."""
    machine = document["machine"]
    return f"""# Imported networks against their authors' PyTorch

Measured on {machine["cpu"]}, {machine["cores"]} cores, {machine["system"]}, Python {machine["python"]}, with
`{document["command"]}`, interleaved. The first column of times is the minimum over all rounds for
capsedge's file; the others are multiples of it: the author's module exported by `torch.onnx.export` alone, in
ONNX Runtime, and the module in PyTorch's eager mode. Differences are relative to the largest value; those of
the plain export of EM networks come from ONNX Runtime's Sigmoid.

"""


def built_in(names: list[str], folder: Path) -> list[Network]:
    """Networks implemented in this package, with random weights."""
    found = []
    for name in names:
        torch.manual_seed(1)
        code = f"{_HERE}:{name}"
        weights = folder / f"{name}.pt"
        torch.save(load_user_module(UserModuleSpec(code)).module.state_dict(), weights)
        found.append(Network(name, code, weights, NETWORKS[name]))
    return found


def listed(path: Path) -> list[Network]:
    """The authors' own networks, with their weights."""
    found = []
    for entry in json.loads(path.read_text()):
        file, _, function = entry["code"].rpartition(":")
        found.append(
            Network(
                entry["name"],
                f"{(path.parent / file).resolve()}:{function}",
                path.parent / entry["weights"],
                entry["answers"],
                tuple(entry.get("batch", ())),
            )
        )
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--list", type=Path, help="authors' networks; this runs their code")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of each entrant, over all rounds"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("out/benchmarks"))
    options = parser.parse_args()
    document: dict[str, Any] = {
        "machine": machine(),
        "command": " ".join(["python -m benchmarks.imported", *sys.argv[1:]]),
        "versions": {p: version(p) for p in ("torch", "onnx", "onnxruntime", "numpy")},
        "results": [],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        networks = listed(options.list) if options.list else built_in(options.networks, folder)
        for network in networks:
            for batch in network.batch or options.batch:
                found = measure(network, batch, options.threads, options.seconds, folder)
                document["results"].append(found)
                print(markdown({"results": [found]}), flush=True)
                (options.output / "imported.json").write_text(json.dumps(document, indent=1))
                (options.output / "imported.md").write_text(header(document) + markdown(document))


if __name__ == "__main__":
    main()
