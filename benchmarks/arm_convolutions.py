"""Instructions of ``FastConv`` on 64-bit ARM against ONNX Runtime's ``Conv``, in an emulator.

    tools/arm64_root.sh                                 # QEMU and the compiler (Debian)
    python -m benchmarks.arm_convolutions [--layers 2]  # minutes

Each layer is a file of one node, run in the ARM build of ONNX Runtime with one thread. QEMU counts
(`arm_instructions.c`); the count of one run is that of two runs less that of one, so that the start of the
session and the packing of weights do not count. Instructions are no times: the emulator has no caches.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.convolutions import LAYERS, Arrays, layer_example, layer_file
from capsedge.graph.rewrites import FAST_CONV
from tests.native.builds import ARM_COMPILER, NATIVE, ROOT, TOOLCHAIN, Arm, arm, cmake_build


class Emulated:
    """The ARM build of ONNX Runtime with our operator library, in the emulator."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machine: Arm = arm(folder)
        self._library = cmake_build(folder / "build", "capsedge_ort", "--toolchain", str(TOOLCHAIN))
        self._plugin, self._program = folder / "libinstructions.so", folder / "ort_run"
        source = Path(__file__).with_name("arm_instructions.c")
        _run("cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(self._plugin))
        _run(
            ARM_COMPILER, "-std=c++17", "-O1", f"-I{NATIVE}/onnxruntime", f"-I{NATIVE}/kernels/cpu",
            f"-I{ROOT}/tests/native", f"{ROOT}/tests/native/ort_run.cpp", "-o", str(self._program), "-ldl",
        )  # fmt: skip

    def instructions(self, model: bytes, x: Arrays, runs: int) -> int:
        """Those of a process that loads a model and runs it so many times."""
        (self._folder / "model.onnx").write_bytes(model)
        x.tofile(self._folder / "x.bin")
        qemu, *options = self._machine.emulator
        shape = "x".join(map(str, x.shape))
        done = _run(
            qemu, "-plugin", str(self._plugin), *options, str(self._program),
            str(self._machine.onnxruntime), str(self._library / "libcapsedge_ort.so"),
            str(self._folder / "model.onnx"), f"x:f:{shape}:{self._folder / 'x.bin'}",
            "--", f"y:{self._folder / 'y.bin'}", RUNS=str(runs), THREADS="1",
        )  # fmt: skip
        return int(re.findall(r"^instructions: (\d+)$", done, re.MULTILINE)[-1])

    def of_one_run(self, model: bytes, x: Arrays) -> int:
        """Instructions of one run."""
        once, twice = (self.instructions(model, x, runs) for runs in (1, 2))
        return twice - once


def _run(*command: str, **variables: str) -> str:
    """Standard error of a program that must succeed."""
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stderr


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arm_convolutions")
    parser.add_argument("--layers", type=int, default=5, help="how many, the first ones (5)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    print(
        "| convolution | batch | Conv, million instructions | FastConv | ratio |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(prefix="capsedge-arm-") as name:
        emulated = Emulated(Path(name))
        for layer in LAYERS[: args.layers]:
            for batch in args.batches:
                weight, x = layer_example(layer, batch)
                plain, fast = (
                    emulated.of_one_run(layer_file(layer, weight, kind == FAST_CONV), x) / 1e6
                    for kind in ("Conv", FAST_CONV)
                )
                print(
                    f"| {layer} | {batch} | {plain:.1f} | {fast:.1f} | {fast / plain:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
