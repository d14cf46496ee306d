"""The layers of the package: which room may import which, and which room may import what is heavy.

CONTRIBUTING.md draws the same tree. Imports inside functions count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

# From the ground up: a room imports those above it in this list, never those below.
ROOMS = (
    "__version__",
    "errors",
    "schema",
    "runtime.quantities",
    "runtime.files",
    "runtime.summary",
    "runtime.charts",
    "runtime.origin",
    "runtime.lineage",
    "runtime.nothing",
    "runtime.cascade",
    "runtime.trace",
    "runtime.scores",
    "runtime.metadata",
    "runtime.maker",
    "runtime.passport",
    "runtime.arrays",
    "runtime.reading",
    "runtime.machine.environment",
    "runtime.backends",
    "runtime.inspect",
    "runtime.inputs",
    "runtime.vision",
    "runtime.probing",
    "runtime.answers",
    "runtime.running",
    "runtime.preparing",
    "runtime.decoder",
    "runtime.explaining",
    "runtime.hints",
    "runtime.predicting",
    "runtime.session",
    "runtime.score_checks",
    "runtime.averaging",
    "runtime.ensemble",
    "zoo",
    "runtime.loading",
    "runtime.description",
    "runtime.classification",
    "runtime.machine",
    "runtime.profiling",
    "samples",
    "datasets",
    "batches",
    "viz",
    "judging",
    "graph",
    "calibration",
    "ops",
    "models",
    "legacy_torch_file",
    "torch_file",
    "checkpoint",
    "weights",
    "formats",
    "families",
    "exporters.tensorrt",
    "exporters",
    "pipelines",
    "deploy",
    "serving",
    "integrations",
    "verification",
    "importing",
    "training",
    "pruning",
    "capsedge",
    "cli",
    "__main__",
)
# The rooms, or the modules, that may import a package that not every machine has.
HEAVY = {
    "torch": {
        "ops",
        "models",
        "legacy_torch_file",
        "torch_file",
        "checkpoint",
        "weights",
        "exporters",
        "pipelines",
        "verification",
        "importing",
        "training",
        "pruning",
        "cli.prune",
    },
    "onnx": {
        "graph",
        "calibration",
        "exporters",
        "exporters.tensorrt",
        "pipelines",
        "verification",
    },
    "onnx_ir": {"graph", "exporters.tensorrt"},
    "onnxscript": {"graph", "exporters"},
    "onnx_graphsurgeon": {"exporters.tensorrt"},
    "safetensors": {"checkpoint", "weights"},
    "h5py": {"formats.hdf5_worker"},
    "matplotlib": {"runtime.charts", "viz"},
    "pyarrow": {"batches"},
    "fsspec": {"batches.storage"},
    "ray": {"batches.cluster", "integrations.ray"},
    "mlserver": {"serving"},
    "grpc": {"serving"},
    "uvicorn": {"serving"},
    "httptools": {"serving"},
    "tensorrt": {"runtime.backends"},
    "onnxruntime": {
        "runtime.backends.onnxruntime_backend",
        "runtime.machine.doctor",  # says whether it imports
        "runtime.profiling",  # sessions of plain ONNX Runtime, as a peer
        "calibration.executed",  # reads back the graph that ONNX Runtime optimized
        "graph.recognize.values",  # runs pieces of a graph, nothing optimized
        "graph.recognize.proof",  # runs the original as it came
        "exporters.checks",  # runs what is exported without anything of ours in between
    },
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package by its name in it, parsed."""
    for top in ("capsedge", "runtime", "exporters", "calibration"):
        for path in sorted((ROOT / top).rglob("*.py")):
            inner = path.relative_to(ROOT / top)
            if inner.parts[0] == "native" or any(p.is_symlink() for p in path.parents):
                continue
            name = ".".join((*([] if top == "capsedge" else [top]), *inner.with_suffix("").parts))
            yield (
                name.removesuffix("__init__").rstrip(".") or "capsedge",
                ast.parse(path.read_text()),
            )


def imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports: dotted names, of the package's own without `capsedge.`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports are absolute"
            whole = node.module in ("capsedge", "capsedge.runtime", "capsedge.exporters")
            names = [f"{node.module}.{a.name}" if whole else node.module for a in node.names]
        else:
            continue
        yield from (name.removeprefix("capsedge.") for name in names)


def room(module: str) -> str:
    """The room that a module stands in: the longest name of the list that begins it."""
    found = [r for r in ROOMS if module == r or module.startswith(f"{r}.")]
    assert found, f"{module} is in no room of tests/test_layers.py"
    return max(found, key=len)


EDGES = sorted({(name, other) for name, tree in modules() for other in imported(tree)})


@pytest.mark.sample(30)
@pytest.mark.parametrize("place", [r for r in ROOMS if r != "__version__"])
def test_imports_go_one_way(place: str) -> None:
    wrong = [
        f"{name} imports {other}"
        for name, other in EDGES
        if name != "runtime" and other != "runtime" and room(name) == place
        if other.split(".")[0] in {r.split(".")[0] for r in ROOMS}
        if ROOMS.index(room(other)) > ROOMS.index(place)
    ]
    assert not wrong


@pytest.mark.parametrize("package", HEAVY)
def test_what_is_heavy_has_its_rooms(package: str) -> None:
    users = {name for name, other in EDGES if other.split(".")[0] == package}
    assert users, f"nothing imports {package}"
    assert not {name for name in users if not {name, room(name)} & HEAVY[package]}


@pytest.mark.thorough
def test_every_room_is_there() -> None:
    rooms = {room(name) for name, _ in modules() if name != "runtime"}
    assert rooms == set(ROOMS) - {"__version__"}
