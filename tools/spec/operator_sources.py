"""Find the files of the source tree that compute an operator, and the tests of each.

By the names that the code uses: an operator's type, its PyTorch name, and the functions in the tables of
bodies, CPU kernels and C translators.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from capsedge.spec.operators import OPERATORS, Operator
from tools.spec.cpp_operators import snake

ROOT = Path(__file__).resolve().parents[2]
_OPS = "capsedge/models/ops"
_BODIES = "capsedge/graph/bodies"
_FUSION = "capsedge/graph/fusion"
_NATIVE = "capsedge/runtime/native"
_CPU = f"{_NATIVE}/kernels/cpu/operators"
_CUDA = f"{_NATIVE}/kernels/cuda"
_C = "capsedge/exporters/c"


@dataclass(frozen=True)
class Implementation:
    """One implementation of an operator.

    Attributes:
        what: which.
        files: its files, from the root of the repository; empty if there is none.
        names: functions in them.
        tests: files of tests that name the operator.
        without: what is said where there is none.
    """

    what: str
    files: tuple[str, ...]
    names: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    without: str = "none"


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _files(pattern: str) -> list[Path]:
    return sorted(p for p in ROOT.glob(pattern) if p.is_file())


def _with(pattern: str, wanted: str) -> tuple[str, ...]:
    """The files of a pattern whose text has what a regular expression wants."""
    found = (p for p in _files(pattern) if re.search(wanted, _text(p), re.MULTILINE))
    return tuple(p.relative_to(ROOT).as_posix() for p in found)


def _tests(o: Operator, *patterns: str) -> tuple[str, ...]:
    """Files of tests that name the operator, in ONNX or in PyTorch."""
    names = [o.name, *([o.torch] if o.torch else [])]
    wanted = rf"\b({'|'.join(names)})\b"
    return tuple(path for pattern in patterns for path in _with(pattern, wanted))


def implementations(name: str) -> list[Implementation]:
    """Everything that computes an operator, from the oracle to C."""
    o = OPERATORS[name]
    return [_oracle(o), _torch(o), _body(o), _fusion(o), _cpu(o), *_gpu(o), _c(o)]


def _oracle(o: Operator) -> Implementation:
    function = snake(o.name)
    return Implementation(
        "float64 oracle",
        _with("tests/conformance/oracle.py", rf"^def {function}\("),
        (function,),
        ("tests/conformance/test_conformance.py",),
    )


def _torch(o: Operator) -> Implementation:
    if not o.torch:
        return Implementation("PyTorch", (), without="none: the exporter makes the node")
    files = _with(f"{_OPS}/*.py", rf"^def {o.torch}\(")
    return Implementation("PyTorch", files, (o.torch,), _tests(o, "tests/models/ops/test_*.py"))


def _body(o: Operator) -> Implementation:
    """By the line of ``_BUILDERS``, whose modules may have another name there."""
    listed = _text(ROOT / _BODIES / "__init__.py")
    entry = re.search(rf'^    "{o.name}": (\w+)\.(\w+),', listed, re.MULTILINE)
    if entry is None:
        return Implementation("function body", ())
    alias = re.search(rf"import (\w+) as {entry[1]}$", listed, re.MULTILINE)
    file = f"{_BODIES}/{alias[1] if alias else entry[1]}.py"
    return Implementation("function body", (file,), (entry[2],), _tests(o, "tests/graph/test_*.py"))


def _fusion(o: Operator) -> Implementation:
    files = _with(f"{_FUSION}/*.py", rf'"{o.name}"')
    steps = ("matcher", "optimize_graph")  # which find nothing themselves
    return Implementation(
        "found in other tools' files",
        tuple(f for f in files if Path(f).stem not in steps),
        tests=_tests(o, "tests/graph/fusion/test_*.py"),
        without="not looked for",
    )


def _cpu(o: Operator) -> Implementation:
    maker = f"make_{snake(o.name)}"
    files = _with(f"{_CPU}/*.cpp", rf"\b{maker}\(")
    more = (f"{_CPU}/quantized_routing.cpp",) if o.int8 else ()
    tests = _tests(o, "tests/native/test_kernels.py", "tests/native/test_quantized.py")
    return Implementation("CPU kernel", (*files, *more), (maker,), tests)


def _gpu(o: Operator) -> tuple[Implementation, Implementation]:
    """All routing operators have the kernels of the same file, between which `choice.cpp` chooses."""
    without = "none: the function body runs"
    if not o.has_cuda_kernel:
        return (
            Implementation("CUDA kernel", (), without=without),
            Implementation("TensorRT plugin", (), without=without),
        )
    own = f"{_CUDA}/{snake(o.name)}.h"
    kernel = own if (ROOT / own).exists() else f"{_CUDA}/kernels.cu"
    tests = _tests(o, "tests/native/test_cuda.py", "tests/native/test_cuda_plans.py")
    plugin = _tests(o, "tests/native/test_tensorrt_plugin.py")
    return (
        Implementation("CUDA kernel", (kernel, f"{_NATIVE}/kernels/cuda_node.cpp"), (), tests),
        Implementation("TensorRT plugin", (f"{_NATIVE}/tensorrt/plugin.cpp",), (), plugin),
    )


def _c(o: Operator) -> Implementation:
    tests = _tests(o, "tests/exporters/c/test_capsules.py")
    for path in _files(f"{_C}/*.py"):
        function = _translators(path).get(o.name)
        if function:
            file = path.relative_to(ROOT).as_posix()
            return Implementation(
                "C and WebAssembly", (file, *_kernels(path, function)), (function,), tests
            )
    return Implementation("C and WebAssembly", (), (), tests, "none: the function body is written")


@cache
def _translators(path: Path) -> dict[str, str]:
    """The functions that a module's ``TRANSLATORS`` names, by operator."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(_text(path))):
        table = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TRANSLATORS"
        if not table or not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            if isinstance(key, ast.Constant):
                found[str(key.value)] = ast.unparse(value)
            elif isinstance(value, ast.Call) and isinstance(value.args[0], ast.Tuple):
                names, function = value.args  # of dict.fromkeys
                found |= dict.fromkeys(ast.literal_eval(names), ast.unparse(function))
    return found


def _kernels(path: Path, function: str) -> tuple[str, ...]:
    """The files of C that a translator copies."""
    for node in ast.parse(_text(path)).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            listed = re.search(
                r'kernels=\[f?"(\w+?)(?:_\{suffix\})?"', ast.unparse(node).replace("'", '"')
            )
            file = f"{_C}/kernels/{listed[1]}.c" if listed else ""
            return (file,) if file and (ROOT / file).exists() else ()
    return ()
