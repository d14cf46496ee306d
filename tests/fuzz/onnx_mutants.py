"""Mutants of valid ONNX files through the verbs: ``python -m tests.fuzz.onnx_mutants FOLDER``.

A mutant is a protobuf that still parses, with other sizes, operators, attributes, weights, outputs or
metadata. Each goes through ``inspect`` and ``infer``, and in turn through one of the verbs that take longer;
with ``--build``, through ``build --target c`` instead.
A mutant fails if a verb ends with exit code 1 (a bug) or one that is not documented, or takes the process
with it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from capsedge.errors import ExitCode
from tests.fuzz.target import Budget, Outcome, Target

EVERY = 24  # mutants for one that goes through a slow verb
_SIZES = (-1, 0, 1, 2, 3, 7, 63, 64, 65, 2**31 - 1, 2**31, 2**62)
_NUMBERS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"))
_OPERATORS = (
    "Relu", "Softmax", "Identity", "Transpose", "Squeeze", "Flatten", "Shape", "ReduceMean", "ReduceMax",
    "ArgMax", "Add", "MatMul", "Concat", "Squash", "DynamicRouting", "EMRouting", "Unknown", "Loop", "If",
)  # fmt: skip
_SLOW = ("verify", "quantize", "optimize", "profile")
_DOCUMENTED = frozenset(int(code) for code in ExitCode if code != ExitCode.BUG)
Random = np.random.Generator


def _pick(items: Sequence[Any], random: Random) -> Any:
    return items[int(random.integers(len(items)))]


# Mutations. One that finds nothing to change raises IndexError or ValueError.


def _size(model: onnx.ModelProto, random: Random) -> None:
    """Another size of an input, an output or a value between."""
    graph = model.graph
    value = _pick([*graph.input, *graph.output, *graph.value_info], random)
    dims = value.type.tensor_type.shape.dim
    kind = random.integers(4)
    if kind == 0:
        dims.add().dim_value = int(_pick(_SIZES, random))
    elif kind == 1:
        del dims[int(random.integers(len(dims)))]
    elif kind == 2:
        _pick(dims, random).dim_param = str(_pick(("N", "batch", "", "H"), random))
    else:
        _pick(dims, random).dim_value = int(_pick(_SIZES, random))


def _type(model: onnx.ModelProto, random: Random) -> None:
    value = _pick([*model.graph.input, *model.graph.output], random)
    value.type.tensor_type.elem_type = int(random.integers(0, 24))


def _nodes(model: onnx.ModelProto, random: Random) -> Any:
    """The nodes of the graph, or of a function."""
    places = [model.graph.node, *(function.node for function in model.functions)]
    return _pick(places, random) if random.integers(4) == 0 else places[0]


def _drop(model: onnx.ModelProto, random: Random) -> None:
    nodes = _nodes(model, random)
    del nodes[int(random.integers(len(nodes)))]


def _repeat(model: onnx.ModelProto, random: Random) -> None:
    nodes = _nodes(model, random)
    nodes.add().CopyFrom(_pick(nodes, random))
    if random.integers(2):
        names = [f"{name}_again" for name in nodes[-1].output]
        del nodes[-1].output[:]
        nodes[-1].output.extend(names)


def _values(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    inside = [name for node in graph.node for name in node.output]
    return [*(v.name for v in graph.input), *(t.name for t in graph.initializer), *inside]


def _rewire(model: onnx.ModelProto, random: Random) -> None:
    node = _pick(_nodes(model, random), random)
    kind = random.integers(4)
    if kind == 0:
        node.input.append(str(_pick(_values(model), random)))
    elif kind == 1:
        del node.input[int(random.integers(len(node.input)))]
    elif kind == 2:
        node.output[int(random.integers(len(node.output)))] = str(_pick(_values(model), random))
    else:
        node.input[int(random.integers(len(node.input)))] = str(
            _pick([*_values(model), ""], random)
        )


def _operator(model: onnx.ModelProto, random: Random) -> None:
    node = _pick(_nodes(model, random), random)
    node.op_type = str(_pick(_OPERATORS, random))
    node.domain = str(_pick(("", "", "capsedge", "com.microsoft", "strange"), random))


def _attribute(model: onnx.ModelProto, random: Random) -> None:
    node = _pick([node for node in _nodes(model, random) if node.attribute], random)
    index = int(random.integers(len(node.attribute)))
    name = node.attribute[index].name
    del node.attribute[index]
    few = [int(_pick(_SIZES, random)) for _ in range(int(random.integers(5)))]
    made = (int(_pick(_SIZES, random)), few, float(_pick(_NUMBERS, random)), "text", None)
    value = _pick(made, random)
    if value is not None and value != []:
        node.attribute.append(helper.make_attribute(name, value))


def _weights(model: onnx.ModelProto, random: Random) -> None:
    tensor = _pick(model.graph.initializer, random)
    kind = random.integers(6)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: int(random.integers(len(tensor.raw_data) + 1))]
    elif kind == 1:
        tensor.dims[int(random.integers(len(tensor.dims)))] = int(_pick(_SIZES, random))
    elif kind == 2:
        tensor.data_type = int(random.integers(0, 24))
    elif kind == 3:
        tensor.name = f"{tensor.name}_other"
    else:
        array = numpy_helper.to_array(tensor).copy()
        flat = array.reshape(-1)
        some = random.random(flat.size) < random.random()
        limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        flat[some] = _pick(_NUMBERS if limits is None else (0, limits.min, limits.max, 1), random)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _output(model: onnx.ModelProto, random: Random) -> None:
    """One output more or fewer, one that is another value, or two that change places."""
    outputs = model.graph.output
    kind = random.integers(4)
    if kind == 0:
        outputs.append(helper.make_tensor_value_info(_pick(_values(model), random), 1, None))
    elif kind == 1:
        del outputs[int(random.integers(len(outputs)))]
    elif kind == 2:
        outputs[int(random.integers(len(outputs)))].name = str(_pick(_values(model), random))
    else:
        first, last = outputs[0].name, outputs[-1].name
        outputs[0].name, outputs[-1].name = last, first


def _rows(model: onnx.ModelProto, random: Random) -> None:
    """An output with other rows than the input has images, or with one of its sizes gone."""
    graph = model.graph
    output = _pick(graph.output, random)
    inner = f"{output.name}_inner"
    for node in graph.node:
        node.output[:] = [inner if name == output.name else name for name in node.output]
        node.input[:] = [inner if name == output.name else name for name in node.input]
    kind = int(random.integers(7))
    name = f"constant_{len(graph.initializer)}"
    constants: dict[int, Any] = {2: [0], 3: [0], 4: [2, 1], 5: [-1], 6: [0, 0]}
    if kind in constants:
        graph.initializer.append(numpy_helper.from_array(np.array(constants[kind], np.int64), name))
    made = {
        0: ("Concat", [inner] * int(random.integers(1, 4)), {"axis": 0}),
        1: ("Transpose", [inner], {}),
        2: ("Gather", [inner, name], {"axis": int(random.integers(2))}),
        3: ("ReduceSum", [inner, name], {"keepdims": int(random.integers(2))}),
        4: ("Tile", [inner, name], {}),
        5: ("Reshape", [inner, name], {}),
        6: ("Reshape", [inner, name], {"allowzero": int(random.integers(2))}),
    }[kind]
    graph.node.append(helper.make_node(made[0], made[1], [output.name], **made[2]))
    if random.integers(2):
        output.type.tensor_type.ClearField("shape")


def _metadata(model: onnx.ModelProto, random: Random) -> None:
    index = int(random.integers(len(model.metadata_props)))
    said = model.metadata_props[index]
    kind = random.integers(4)
    if kind == 0:
        del model.metadata_props[index]
    elif kind == 1:
        said.value = str(_pick(("", "{}", "[]", "null", "1", "[" * 1000, said.value[:-1]), random))
    elif kind == 2:
        said.value = _pick(model.metadata_props, random).value
    else:
        digits = [k for k, letter in enumerate(said.value) if letter.isdigit()]
        at = int(_pick(digits, random))
        said.value = (
            said.value[:at]
            + str(_pick(("0", "9", "-", "99999999", "1e9"), random))
            + said.value[at + 1 :]
        )


def _versions(model: onnx.ModelProto, random: Random) -> None:
    if random.integers(2):
        _pick(model.opset_import, random).version = int(
            _pick((0, 1, 7, 13, 17, 22, 99, 2**40), random)
        )
    else:
        model.ir_version = int(_pick((0, 1, 3, 8, 10, 99), random))


MUTATIONS = (
    _size, _type, _drop, _repeat, _rewire, _operator, _attribute, _weights, _output, _rows, _rows, _metadata,
    _versions,
)  # fmt: skip


def seeds() -> list[tuple[onnx.ModelProto, int]]:
    """Valid files, with the side of their images."""
    from capsedge.runtime.zoo import zoo_model
    from tests.fuzz.readers import SCORES, VALUES
    from tests.runtime.models import capsule_model, foreign_model

    small = [
        capsule_model(), capsule_model(function=False, reconstruction=True), capsule_model(batch=2),
        capsule_model(capsedge_node=False), capsule_model(properties={}, scores="logits"),
        foreign_model({"s": [2], "p": [2, 4]}, properties=SCORES.to_properties()),
        foreign_model({"o": [1], "p": [1]}, properties=VALUES.to_properties()),
    ]  # fmt: skip
    zoo = [
        onnx.load(str(zoo_model(name)))
        for name in ("digits-em", "digits-attention", "digits-small")
    ]
    return [*((model, 8) for model in small), *((model, 28) for model in zoo)]


def mutant(number: int, bases: Sequence[tuple[onnx.ModelProto, int]]) -> tuple[bytes, int]:
    """The mutant of a number, and the side of its images; the same on every machine."""
    random = np.random.default_rng(number)
    base, side = _pick(bases, random)
    model = onnx.ModelProto()
    model.CopyFrom(base)
    left = int(random.integers(1, 4))
    for _ in range(50):
        if not left:
            break
        with contextlib.suppress(IndexError, ValueError, TypeError, OverflowError):
            _pick(MUTATIONS, random)(model, random)
            left -= 1
    return model.SerializeToString(), side


def words_of(number: int, path: Path, side: int, build: bool = False) -> list[list[str]]:
    """The commands that a mutant goes through."""
    if build:
        return [["build", "--target", "c", str(path), "-o", str(path.parent / "net")]]
    image, data = str(path.parent / f"{side}.png"), str(path.parent / f"{side}.npz")
    model = str(path)
    commands = [["inspect", model, "--json"], ["infer", image, image, "--model", model]]
    slow = {
        "verify": [
            "verify",
            model,
            "--data",
            data,
            "--checkpoint",
            str(path.parent / "c.safetensors"),
        ],
        "quantize": ["quantize", model, "--calib-data", data, "-o", str(path.parent / "q.onnx")],
        "optimize": ["optimize", model, "-o", str(path.parent / "o.onnx"), "--measure", "0"],
        "profile": ["profile", model, "--duration", "0.05", "--warmup", "0"],
    }
    if number % EVERY == 0:
        commands.append(slow[_SLOW[number // EVERY % len(_SLOW)]])
    return commands


def judge(words: Sequence[str]) -> str:
    """Run a command in this process; why it fails, or nothing."""
    from capsedge.cli import _run

    said, before = io.StringIO(), sys.argv
    sys.argv = ["capsedge", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = _run()
    except Exception as error:
        return f"{words[0]}: {type(error).__name__}: {error}"
    finally:
        sys.argv = before
    if code in _DOCUMENTED:
        return ""
    return f"{words[0]}: exit {code}: {said.getvalue().strip().splitlines()[:1]}"


def prepare(folder: Path) -> None:
    """The images, data and checkpoint that the commands name."""
    import shutil

    from PIL import Image

    from capsedge.runtime.zoo import zoo_checkpoint

    for side in (8, 28):
        pixels = np.random.default_rng(side).integers(0, 256, (6, side, side), dtype=np.uint8)
        Image.fromarray(pixels[0]).save(folder / f"{side}.png")
        np.savez(folder / f"{side}.npz", images=pixels, labels=np.arange(6) % 3)
    shutil.copy(zoo_checkpoint("digits-em"), folder / "c.safetensors")


def main() -> int:
    """Run mutants until the time or their number is up; prints each number, and why one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.onnx_mutants")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--build", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    prepare(options.folder)
    bases, started, number = seeds(), time.monotonic(), options.first
    while time.monotonic() - started < options.seconds:
        if options.inputs and number >= options.first + options.inputs:
            break
        content, side = mutant(number, bases)
        path = options.folder / "mutant.onnx"
        path.write_bytes(content)
        print(f"#{number}", flush=True)
        for words in words_of(number, path, side, options.build):
            if why := judge(words):
                print(f"FAILED {number}: {why}", flush=True)
        number += 1
    return 0


def run(budget: Budget, build: bool = False) -> Outcome:
    """The target."""
    return in_processes("tests.fuzz.onnx_mutants", budget, ["--build"] if build else [])


def in_processes(module: str, budget: Budget, more: Sequence[str] = ()) -> Outcome:
    """Run mutants in a process of their own, which is started again where a mutant ends it."""
    outcome, begun, first = Outcome(), time.monotonic(), 0
    while (left := budget.seconds - (time.monotonic() - begun)) > 0:
        inputs = budget.inputs - first if budget.inputs else 0
        words = ["--first", str(first), "--inputs", str(inputs), "--seconds", str(left)]
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(budget.folder), *words, *more],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("#"):
                first = int(line[1:]) + 1
            elif line.startswith("FAILED"):
                outcome.failures.append(line.strip())
        if process.wait():
            outcome.failures.append(
                f"FAILED {first - 1}: the process ended with {process.returncode}"
            )
        elif not process.returncode:
            break
    outcome.inputs, outcome.seconds = first, time.monotonic() - begun
    return outcome


TARGETS = (
    Target("onnx mutants", run),
    Target("build --target c", partial(run, build=True)),
)

if __name__ == "__main__":
    raise SystemExit(main())
