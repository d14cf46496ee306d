"""Compile many networks into one program with sanitizers, and run it in a process of its own.

Inputs, arenas and outputs have their exact sizes, so that AddressSanitizer sees every access outside.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.exporters.c.compiled import compiler

Floats = NDArray[np.float32]
SANITIZERS = (
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
    "-g1",
)

_HOST = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
{includes}
static void *given(FILE *f, size_t n) {{
  void *p = malloc(n);
  if (!p || fread(p, 1, n, f) != n) exit(90);
  return p;
}}
static void put(FILE *f, float *p, size_t n) {{
  if (fwrite(p, 4, n, f) != n) exit(91);
  free(p);
}}
int main(void) {{
  FILE *in = fopen("in.bin", "rb"), *out = fopen("out.bin", "wb");
  int k;
  if (!in || !out) return 92;
{calls}
  return fclose(out);
}}
"""
_CALL = """  for (k = 0; k < {inputs}; k++) {{
    {given}
    void *arena = aligned_alloc(16, {arena});
    {name}_outputs o = {{{allocated}}};
    fprintf(stderr, "@{name}\\n");
    {name}_run(arena, {passed}, &o);
    {puts}
    {freed}
    free(arena);
  }}
"""


@dataclass
class Case:
    """A network and its inputs.

    Attributes:
        files, description: of `write_c.generate_c_folder`, with a prefix of its own.
        inputs: for each run, an array of the input's shape, or one for each input.
        results: for each input, the outputs by their names in the file.
    """

    files: dict[str, bytes]
    description: dict[str, Any]
    inputs: Sequence[Floats | tuple[NDArray[Any], ...]]
    results: list[dict[str, Floats]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.description["name"])

    def call(self) -> str:
        """The C that runs it on all inputs."""
        outputs = self.description["outputs"]
        sizes = {o["field"]: math.prod(o["shape"]) for o in outputs}
        bytes_of = [i["size"] * np.dtype(i["type"]).itemsize for i in self.description["inputs"]]
        return _CALL.format(
            name=self.name,
            inputs=len(self.inputs),
            given=" ".join(f"void *x{k} = given(in, {n});" for k, n in enumerate(bytes_of)),
            passed=", ".join(f"x{k}" for k in range(len(bytes_of))),
            freed=" ".join(f"free(x{k});" for k in range(len(bytes_of))),
            arena=-(-self.description["memory"]["arena_bytes"] // 16) * 16,
            allocated=", ".join(f"malloc({4 * n})" for n in sizes.values()),
            puts=" ".join(f"put(out, o.{f}, {n});" for f, n in sizes.items()),
        )


def extreme_inputs(shape: Iterable[int], seed: int = 0) -> list[Floats]:
    """Random, huge, tiny, subnormal, infinite, NaN and mixed inputs."""
    rng, shape = np.random.default_rng(seed), tuple(shape)
    special = np.array(
        [0, -0.0, 1, -1, 1e30, -1e30, 3.4e38, -3.4e38, 1e-45, np.inf, -np.inf, np.nan, 2**31, -(2**31),
         2**63, 255, 256, -129, 0.5], np.float32,
    )  # fmt: skip
    filled = (0, 1e30, -1e30, 1e-40, np.inf, -np.inf, np.nan)
    return [
        rng.standard_normal(shape).astype(np.float32),
        *(np.full(shape, value, np.float32) for value in filled),
        *(rng.choice(special, shape).astype(np.float32) for _ in range(3)),
    ]


def run_sanitized(cases: Sequence[Case], folder: Path, flags: Sequence[str] = ("-O0",)) -> str:
    """Run all cases and fill in their results; what the sanitizers printed, empty for no finding."""
    folder.mkdir(exist_ok=True)
    for case in cases:
        for suffix in ("c", "h"):
            (folder / f"{case.name}.{suffix}").write_bytes(case.files[f"{case.name}.{suffix}"])
    host = _HOST.format(
        includes="\n".join(f'#include "{case.name}.h"' for case in cases),
        calls="".join(case.call() for case in cases),
    )
    (folder / "host.c").write_text(host)
    with (folder / "in.bin").open("wb") as f:
        for case in cases:
            types = [i["type"] for i in case.description["inputs"]]
            for arrays in case.inputs:
                each = arrays if isinstance(arrays, tuple) else (arrays,)
                for x, kind in zip(each, types, strict=True):
                    f.write(np.ascontiguousarray(x, kind).tobytes())
    words = [
        compiler(),
        "-std=c11",
        "-ffp-contract=off",
        *SANITIZERS,
        *flags,
        "-o",
        "host",
        "host.c",
    ]
    subprocess.run([*words, *(f"{case.name}.c" for case in cases)], cwd=folder, check=True)
    done = subprocess.run(
        ["./host"], cwd=folder, check=False, capture_output=True, text=True,
        env={"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.rfind("@")
        return f"exit {done.returncode} in {done.stderr[last:][:2000]}"
    data, at = np.fromfile(folder / "out.bin", np.float32), 0
    for case in cases:
        case.results = []
        for _ in case.inputs:
            found = {}
            for output in case.description["outputs"]:
                size = math.prod(output["shape"])
                found[output["name"]] = data[at : at + size].reshape(output["shape"])
                at += size
            case.results.append(found)
    assert at == data.size
    return ""
