"""Write `capsedge/keywords.py`, the options as TypedDicts for type checkers: ``python -m tools.keywords``.

Type checkers know the fields of a dataclass, but not that a function takes them as keyword arguments. The
output is checked in; a test compares it with the dataclasses.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

from capsedge.options import Options
from capsedge.runtime.files.writing import write_bytes

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "capsedge" / "keywords.py"
KINDS = {  # the dataclasses of each TypedDict, by their modules
    "BatchKeywords": ("batch_inference.batch_options.BatchOptions", "runtime.runtime_options.RuntimeOptions"),
    "BuildKeywords": ("exporters.build_options.BuildOptions",),
    "CascadeKeywords": ("optimization.cascade_options.CascadeOptions",),
    "ExportKeywords": ("exporters.export_options.ExportOptions",),
    "ImportKeywords": ("importers.import_options.ImportOptions",),
    "KServeKeywords": ("deploy.deploy_options.KServeOptions",),
    "OptimizeKeywords": ("optimization.optimize_options.OptimizeOptions",),
    "ProfileKeywords": ("runtime.profiling.profile_options.ProfileOptions",),
    "PruneKeywords": ("optimization.prune_options.PruneOptions",),
    "QuantizeKeywords": ("calibration.quantize_options.QuantizeOptions",),
    "RuntimeKeywords": ("runtime.runtime_options.RuntimeOptions",),
    "ServeKeywords": ("serving.serve_options.ServeOptions",),
    "SweepKeywords": ("optimization.sweep_options.SweepOptions",),
    "TrainKeywords": ("models.training.train_options.TrainOptions",),
    "TritonKeywords": ("deploy.deploy_options.TritonOptions",),
    "VerifyKeywords": ("verification.verify_options.VerifyOptions",),
}  # fmt: skip
HEAD = '''"""The options of every function as keyword arguments, for type checkers (PEP 692).

Generated from the dataclasses of options by ``python -m tools.keywords``; not imported when the package runs.
"""

from __future__ import annotations

'''


class _Wider(ast.NodeTransformer):
    """What a caller may pass where the dataclass has a path or a tuple."""

    def __init__(self, aliases: dict[str, ast.expr]) -> None:
        self._aliases = aliases

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "Path":
            return ast.parse("str | os.PathLike[str]", mode="eval").body
        alias = self._aliases.get(node.id)
        return node if alias is None else self.visit(copy.deepcopy(alias))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        several = isinstance(node.slice, ast.Tuple) and ast.unparse(node.slice.elts[-1]) == "..."
        if ast.unparse(node.value) == "tuple" and several:
            assert isinstance(node.slice, ast.Tuple)
            return ast.parse(f"Sequence[{ast.unparse(node.slice.elts[0])}]", mode="eval").body
        return node


def kind_of(name: str) -> type[Options]:
    """A dataclass of options by its module and name."""
    module, _, own = name.rpartition(".")
    kind: type[Options] = getattr(importlib.import_module(f"capsedge.{module}"), own)
    return kind


def fields(kind: type[Options]) -> dict[str, str]:
    """The annotation of every field, with the aliases of its own module written out."""
    module = _source(kind)
    aliases = {
        ast.unparse(node.targets[0]): node.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    wider = _Wider(aliases)
    block = next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    return {
        ast.unparse(node.target): ast.unparse(wider.visit(node.annotation))
        for node in block.body
        if isinstance(node, ast.AnnAssign)
    }


def imports(kind: type[Options], annotations: dict[str, str]) -> set[str]:
    """The import statements that the annotations need."""
    names = (ast.walk(ast.parse(text)) for text in annotations.values())
    used = {node.id for nodes in names for node in nodes if isinstance(node, ast.Name)}
    found = {
        f"from {node.module} import {each.name}"
        for node in _source(kind).body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if each.name in used
    }
    if "os" in used:
        found.add("import os")
    if "Sequence" in used:
        found.add("from collections.abc import Sequence")
    return found


def _source(kind: type[Options]) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(kind.__module__)))


def text() -> str:
    """The content of `capsedge.keywords`."""
    needed, blocks = {"from typing import TypedDict"}, []
    for name, kinds in KINDS.items():
        lines = [f"class {name}(TypedDict, total=False):"]
        names = " and ".join(f"`{kind.rpartition('.')[2]}`" for kind in kinds)
        lines.append(f'    """The fields of {names}."""')
        lines.append("")
        for kind in map(kind_of, kinds):
            own = fields(kind)
            needed |= imports(kind, own)
            lines += [f"    {field}: {annotation}" for field, annotation in own.items()]
        blocks.append("\n".join(lines))
    raw = HEAD + "\n".join(sorted(needed)) + "\n\n\n" + "\n\n\n".join(blocks) + "\n"
    return _formatted(raw)


def _formatted(raw: str) -> str:
    """As ruff leaves it, imports sorted."""
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(TARGET), "-"]
    for words in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        command = [*ruff, *words, *name]
        raw = subprocess.run(command, input=raw, capture_output=True, text=True, check=True).stdout
    return raw


if __name__ == "__main__":
    write_bytes(TARGET, text().encode())
