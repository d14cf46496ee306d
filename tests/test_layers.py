"""The layers of the package: which room may import which, and which room may import what is heavy.

CONTRIBUTING.md draws the same tree. Imports inside functions count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

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
    "runtime.routing_trace",
    "runtime.scores",
    "runtime.metadata",
    "runtime.maker",
    "runtime.passport",
    "runtime.reading",
    "runtime.machine.environment",
    "runtime.backends",
    "runtime.inspect",
    "runtime.tensors",
    "runtime.vision",
    "runtime.probing",
    "runtime.predictions",
    "runtime.runner",
    "runtime.decoder",
    "runtime.capabilities",
    "runtime.session",
    "runtime.score_checks",
    "runtime.ensemble",
    "zoo",
    "runtime.load",
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

Imports = dict[str, frozenset[str]]  # by module


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements, those of functions too; expressions, which `ast.walk` visits too, hold no imports."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, name, []))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _statements(part.body)


def _imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports: dotted names, of the package's own without `capsedge.`."""
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports are absolute"
            whole = node.module in ("capsedge", "capsedge.runtime", "capsedge.exporters")
            names = [f"{node.module}.{a.name}" if whole else node.module for a in node.names]
        else:
            continue
        yield from (name.removeprefix("capsedge.") for name in names)


@pytest.fixture(scope="module")
def imports() -> Imports:
    """What every module of the package imports, by its name in it."""
    found = {}
    for top in ("capsedge",):
        for path in sorted((ROOT / top).rglob("*.py")):
            inner = path.relative_to(ROOT / top)
            if inner.parts[0] == "native" or any(p.is_symlink() for p in path.parents):
                continue
            name = ".".join((*([] if top == "capsedge" else [top]), *inner.with_suffix("").parts))
            name = name.removesuffix("__init__").rstrip(".") or "capsedge"
            found[name] = frozenset(_imported(ast.parse(path.read_text())))
    return found


@cache
def room(module: str) -> str:
    """The room that a module stands in: the longest name of the list that begins it."""
    found = [r for r in ROOMS if module == r or module.startswith(f"{r}.")]
    assert found, f"{module} is in no room of tests/test_layers.py"
    return max(found, key=len)


def test_imports_go_one_way(imports: Imports) -> None:
    ours = {r.split(".")[0] for r in ROOMS}
    wrong = [
        f"{name} imports {other}"
        for name, others in imports.items()
        for other in others
        if other.split(".")[0] in ours and "runtime" not in (name, other)
        if ROOMS.index(room(other)) > ROOMS.index(room(name))
    ]
    assert wrong == []


def test_what_is_heavy_has_its_rooms(imports: Imports) -> None:
    wrong = []
    for package, rooms in HEAVY.items():
        users = {n for n, found in imports.items() if package in {o.split(".")[0] for o in found}}
        wrong += [f"{name} imports {package}" for name in users if not {name, room(name)} & rooms]
        wrong += [] if users else [f"nothing imports {package}"]
    assert wrong == []


def test_every_room_is_there(imports: Imports) -> None:
    rooms = {room(name) for name in imports if name != "runtime"}
    assert rooms == set(ROOMS) - {"__version__"}
