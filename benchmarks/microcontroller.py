"""Networks as C on a Cortex-M emulated by QEMU: instructions, flash and RAM, against other C generators.

    python -m benchmarks.microcontroller --sources ~/src --int8 digits-em.int8.onnx --write

The peers do not know capsule operators, so they get the same networks in standard operators only. They are
emx-onnx-cgen (pip install emx-onnx-cgen, in its own environment), and onnx2c as built in DIR/onnx2c/build,
where DIR is given by --sources. With DIR/Q7-CapsNets and DIR/CMSIS_5 (tag 5.8.0), the table also has
Q7-CapsNets' MNIST network. Missing peers are omitted.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort

import capsedge
from benchmarks import q7_capsnets
from benchmarks.common import replace_between
from capsedge.exporters.c import measurement as measure
from capsedge.exporters.c.write_c import generate_c_folder

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/benchmarks/microcontroller.md"
BEGIN, END = "<!-- microcontroller: begin -->", "<!-- microcontroller: end -->"
MODELS = ("digits-em", "digits-dynamic")
OURS = {  # flags by the name in the table
    "capsedge, equal bits everywhere": ("-std=c99", "-O2", "-ffp-contract=off"),
    "capsedge": ("-std=gnu11", "-O2"),
}
PEERS = ("-std=gnu11", "-O3")
STACK = 3 << 19  # bytes; one peer keeps all values of a network on the stack
NEAR = 1e-3  # largest difference allowed between the peers' results and ours


class Candidate(NamedTuple):
    """A network as C, written by one generator.

    Attributes:
        files: ``net.h`` and ``net.c``, with the functions of capsedge's C.
        description: the parts of ``NAME.json`` that `measure` reads.
        flags: compiler flags.
        sources: further C files to compile besides ``net.c``, each separately.
    """

    files: dict[str, bytes]
    description: dict[str, Any]
    flags: tuple[str, ...]
    sources: tuple[str, ...] = ()


def ours(file: Path, flags: tuple[str, ...]) -> Candidate:
    """The C code written by capsedge."""
    return Candidate(*generate_c_folder(file.read_bytes(), file, "net"), flags)


def standard(file: Path, target: Path) -> list[str]:
    """Write a network for one image with standard operators only, folded, without reconstructions.

    Returns:
        The names of the outputs.
    """
    model = onnx.load(file)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    plain = onnx.inliner.inline_local_functions(model)
    kept = [output for output in plain.graph.output if output.name != "reconstruction"]
    del plain.graph.output[:], plain.metadata_props[:]
    plain.graph.output.extend(kept)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    ort.InferenceSession(plain.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [output.name for output in kept]


def peer(
    command: Sequence[str], entry: str, like: Candidate, names: Sequence[str], source: Path
) -> Candidate:
    """The C code of another generator, wrapped in the functions of ours.

    Args:
        command: writes ``source``, or prints it.
        entry: its function, which takes the input, then the outputs.
        like: the same network as written by capsedge.
        names: names of the outputs, in order.
    """
    done = subprocess.run(command, check=True, capture_output=True)
    if not source.exists():
        source.write_bytes(done.stdout)
    listed = [o for o in like.description["outputs"] if o["name"] in names]
    fields = {o["name"]: o["field"] for o in listed}
    arguments = ", ".join(f"(void *)outputs->{fields[name]}" for name in names)
    header = (
        "#include <stdint.h>\ntypedef struct { float "
        + ", ".join(f"*{o['field']}" for o in listed)
        + "; } net_outputs;\nvoid net_run(void *arena, const float *input, net_outputs *outputs);\n"
    )
    shim = (
        '\n#include "net.h"\nvoid net_run(void *arena, const float *input, net_outputs *outputs) {\n'
        "  (void)arena;\n  CAPSEDGE_STEP(0)\n"
        f"  {entry}((const void *)input, {arguments});\n  CAPSEDGE_STEP(1)\n}}\n"
    )
    description = {
        "name": "net",
        "layers": [{}],
        "outputs": listed,
        "memory": {"arena_bytes": 16},
        "inputs": like.description["inputs"],
    }
    files = {"net.h": header.encode(), "net.c": source.read_bytes() + shim.encode()}
    return Candidate(files, description, PEERS)


def results(candidate: Candidate, folder: Path) -> dict[str, np.ndarray]:
    """All outputs on this machine, for one random image."""
    for name, content in candidate.files.items():
        if name.startswith("net."):
            (folder / name).write_bytes(content)
    library = Path(tempfile.mkstemp(suffix=".so", dir=folder)[1])
    words = ["gcc", *candidate.flags, "-DCAPSEDGE_STEP(n)=", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*words, "net.c", "-lm"], cwd=folder, check=True, capture_output=True)
    outputs = candidate.description["outputs"]
    found = {o["name"]: np.zeros(o["shape"], np.float32) for o in outputs}
    pointers = (ctypes.c_void_p * len(found))(*(v.ctypes.data for v in found.values()))
    image = np.random.default_rng(0).random(candidate.description["inputs"][0]["size"], np.float32)
    arena = np.zeros(candidate.description["memory"]["arena_bytes"] + 64, np.uint8)
    start = ctypes.c_void_p(arena.ctypes.data + -arena.ctypes.data % 64)
    ctypes.CDLL(str(library)).net_run(start, ctypes.c_void_p(image.ctypes.data), pointers)
    return found


def sizes(candidate: Candidate, board: measure.Board, folder: Path) -> tuple[int, int]:
    """Bytes of flash, and of RAM (variables, arena and stack)."""
    for name in ("net.h", "net.c"):
        (folder / name).write_bytes(candidate.files[name])
    words = [board.compiler, *candidate.flags, "-DCAPSEDGE_STEP(n)=", *board.flags]
    graphs, objects = [], []
    for k, source in enumerate(("net.c", *candidate.sources)):
        objects.append(f"part{k}.o")
        extra = ["-ffunction-sections", "-fdata-sections", "-fcallgraph-info=su"]
        compiled = [*words, *extra, "-c", "-o", objects[-1], source]
        subprocess.run(compiled, cwd=folder, check=True, capture_output=True)
        graphs.append((folder / f"part{k}.ci").read_text())
    links = ["-r", "-nostdlib", "-Wl,--gc-sections,--entry=net_run", "-o", "used.o", *objects]
    subprocess.run(
        [board.compiler, *board.flags, *links], cwd=folder, check=True, capture_output=True
    )
    size = board.compiler.replace("gcc", "size")
    line = subprocess.run([size, "used.o"], cwd=folder, check=True, capture_output=True, text=True)
    text, data, bss = map(int, line.stdout.splitlines()[1].split()[:3])
    stack = measure.deepest("".join(graphs), "net_run")
    arena = candidate.description["memory"]["arena_bytes"]
    return text + data, data + bss + arena + (stack or 0)


def line(network: str, tool: str, candidate: Candidate, boards: Sequence[str]) -> list[str]:
    """One line of the table."""
    counts = []
    for key in boards:
        flags = (*candidate.flags, *candidate.sources)
        counted = measure.count(
            candidate.files, candidate.description, measure.BOARDS[key], flags, stack=STACK
        )
        counts.append(f"{counted.total / 1e6:.2f} M")
    with tempfile.TemporaryDirectory() as name:
        flash, ram = sizes(candidate, measure.BOARDS[boards[0]], Path(name))
    found = [network, tool, *counts, f"{flash / 1e3:.0f} KB", f"{ram / 1e3:.1f} KB"]
    print(" | ".join(found), flush=True)
    return found


def rows(file: Path, tools: dict[str, str], boards: Sequence[str]) -> list[list[str]]:
    """The lines of the table for one network."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        candidates = {who: ours(file, flags) for who, flags in OURS.items()}
        if not any(node.op_type.startswith("Quantized") for node in onnx.load(file).graph.node):
            plain = folder / "plain.onnx"
            outputs = standard(file, plain)
            c = folder / "peer.c"
            commands = {
                "emx-onnx-cgen": (
                    [
                        "compile",
                        str(plain),
                        str(c),
                        "--large-temp-threshold",
                        "0",
                        "--large-weight-threshold",
                        "0",
                    ],
                    "model",
                ),
                "onnx2c": ([str(plain)], "entry"),
            }
            for tool, path in tools.items():
                words, entry = commands[tool]
                c.unlink(missing_ok=True)
                try:
                    like = candidates["capsedge"]
                    candidates[tool] = peer([path, *words], entry, like, outputs, c)
                except subprocess.CalledProcessError as error:
                    print(f"{tool}: {error}", flush=True)
                    found.append([file.stem, tool, "writes nothing", *[""] * (len(boards) + 1)])
        expected = results(candidates["capsedge"], folder)
        for tool, candidate in candidates.items():
            for output, values in results(candidate, folder).items():
                np.testing.assert_allclose(values, expected[output], atol=NEAR, err_msg=tool)
            found.append(line(file.stem, tool, candidate, boards))
    return sorted(found, key=lambda row: row[2] == "writes nothing")


def main() -> None:
    """Measure and print; write the page's table if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=Path, help="folder with the peers' sources")
    parser.add_argument("--emx", help="emx-onnx-cgen, if it is not on the path")
    parser.add_argument("--int8", type=Path, nargs="*", default=[], help="INT8 files to add")
    parser.add_argument("--boards", nargs="+", default=["cortex-m7", "cortex-m55"])
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.name}")
    given = parser.parse_args()
    tools = {"emx-onnx-cgen": given.emx or shutil.which("emx-onnx-cgen")}
    if given.sources is not None:
        tools["onnx2c"] = shutil.which("onnx2c", path=str(given.sources / "onnx2c/build"))
    present = {tool: path for tool, path in tools.items() if path}
    files = [*(ROOT / f"capsedge/zoo/{model}.onnx" for model in MODELS), *given.int8]
    found = [row for file in files for row in rows(file, present, given.boards)]
    if given.sources is not None:
        for how, content in q7_capsnets.programs(given.sources).items():
            found.append(line(q7_capsnets.NETWORK, how, Candidate(*content), given.boards))
    cores = [measure.BOARDS[key].core for key in given.boards]
    head = ["network", "C by", *cores, "flash", "RAM"]
    lines = [head, ["---"] * len(head), *found]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    used = [measure.tool_version(tool) for tool in ("arm-none-eabi-gcc", "qemu-system-arm")]
    versions = ", ".join([f"capsedge {capsedge.__version__}", *used])
    if given.write:
        replace_between(PAGE, BEGIN, END, f"\n{versions}\n\n{table}\n")
    else:
        print(f"{versions}\n\n{table}")


if __name__ == "__main__":
    main()
