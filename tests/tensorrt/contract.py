"""Which names of TensorRT the code uses, and whether a release of its bindings has them.

Run as a program with a release on the path, this prints the names that it lacks as JSON; so it imports
nothing but the standard library. Objects are told by the names of the variables that hold them, which the
code keeps to.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "capsedge/exporters/tensorrt/engine_builder.py",
    "capsedge/exporters/tensorrt/write_engine.py",
    "capsedge/runtime/backends/tensorrt_engine.py",
    "capsedge/runtime/backends/tensorrt_library.py",
)
OBJECTS = {
    "builder": "Builder",
    "network": "INetworkDefinition",
    "tensor": "ITensor",
    "parser": "OnnxParser",
    "error": "ParserError",
    "config": "IBuilderConfig",
    "profile": "IOptimizationProfile",
    "cache": "ITimingCache",
    "registry": "IPluginRegistry",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "inspector": "EngineInspector",
    "_profiler": "IProfiler",
    "runtime": "Runtime",
    "_runtime": "Runtime",
    "_engine": "ICudaEngine",
}
# What a method returns, where its result is used without a name.
RETURNS = {"get_timing_cache": "ITimingCache"}
OWN = {("tensorrt_library.py", "error"), ("tensorrt_library.py", "runtime")}


def uses(source: Path) -> set[tuple[str, ...]]:
    """Names below the package: ``("MemoryPoolType", "WORKSPACE")``, ``("Builder", "create_network")``."""
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted and dotted[0] == "trt":
                found.add(tuple(dotted[1:]))
                continue
            owner = node.value
            if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
                if owner.func.attr in RETURNS:
                    found.add((RETURNS[owner.func.attr], node.attr))
                continue
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name in OBJECTS and (source.name, name) not in OWN:
                found.add((OBJECTS[name], node.attr))
    return found


def _dotted(node: ast.Attribute) -> list[str]:
    parts: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        parts.insert(0, at.attr)
        at = at.value
    return [at.id, *parts] if isinstance(at, ast.Name) else []


def all_uses() -> set[tuple[str, ...]]:
    """Of all sources."""
    return {use for source in SOURCES for use in uses(ROOT / source)}


def fake_uses() -> set[tuple[str, ...]]:
    """What the stand-in for TensorRT claims that there is."""
    tree = ast.parse((ROOT / "tests/tensorrt/fake.py").read_text(encoding="utf-8"))
    found: set[tuple[str, ...]] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.add((node.name,))
            for item in node.body:
                names: list[str] = []
                if isinstance(item, ast.FunctionDef):
                    names = [item.name]
                elif isinstance(item, ast.Assign):
                    names = [
                        n.id for t in item.targets for n in ast.walk(t) if isinstance(n, ast.Name)
                    ]
                elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    names = [item.target.id]
                found |= {(node.name, n) for n in names if not n.startswith("_")}
    return found


def main() -> None:
    """What the bindings on the path lack, and how a few of them behave."""
    import tensorrt_bindings as trt

    def missing(uses: set[tuple[str, ...]]) -> list[str]:
        lacking = []
        for use in sorted(uses):
            at: object = trt
            for part in use:
                if not hasattr(at, part):
                    lacking.append(".".join(use))
                    break
                at = getattr(at, part)
        return lacking

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(
            self, phase_name: str, parent_phase: str | None, num_steps: int
        ) -> None: ...

        def step_complete(self, phase_name: str, step: int) -> bool:
            return True

        def phase_finish(self, phase_name: str) -> None: ...

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: object, message: str) -> None: ...

    Monitor(), Logger()
    flag = int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    print(
        json.dumps(
            {
                "version": trt.__version__,
                "missing": missing(all_uses()),
                "fake": missing(fake_uses()),
                "strongly_typed": flag,
                "types": [
                    name
                    for name in ("FLOAT", "HALF", "INT8", "INT64")
                    if hasattr(trt.DataType, name)
                ],
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
