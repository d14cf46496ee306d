"""Mistakes that a GPU punishes now and then, put into the CUDA kernels: the emulation always finds them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.native import cuda_library

DYNAMIC = "^DynamicRouting.N=3,I=31,J=10,Pin=8,Pout=16.*normal"
EM = "^EMRouting.N=2,H=3,W=3,C=2,Kh=2,Kw=2,M=5,P=16,iterations=2,strides=1x1.*addition=0.*normal"
VECTORS = "^AttentionRouting.N=2,H=6,W=5,C=2,Kh=3,Kw=2,M=3,Pin=16,P=16,strides=1x1.*normal"
GENERIC = "^DynamicRouting.N=2,I=7,J=3,Pin=5,Pout=4,iterations=2,leaky=0.*bias=1,kind=normal"


@dataclass(frozen=True)
class Mutant:
    """One change of one file, the run that shows it, and what the run says."""

    name: str
    file: str
    old: str
    new: str
    scheme: str
    cases: str
    words: str = "race:"


MUTANTS = (
    Mutant("none", "tiled.h", "tile", "tile", "tiled", DYNAMIC, ""),
    Mutant(
        "a tile is overwritten while others read it", "tiled.h",
        "    b.sync();\n    const int64_t child", "    const int64_t child", "tiled", DYNAMIC,
    ),
    Mutant(
        "a tile is read before all have filled it", "tiled.h",
        "tile);\n    b.sync();\n", "tile);\n", "tiled", EM,
    ),
    Mutant(
        "copies are not waited for", "staging.h", "  b.wait_copies();\n", "", "tiled", VECTORS,
        "without waiting for its copies",
    ),
    Mutant(
        "groups of lanes add up their sums at once", "grouped.h",
        "sums[q], parent, partial);\n      }\n    }\n    b.sync();",
        "sums[q], parent, partial);\n      }\n    }", "portable", DYNAMIC,
    ),
    Mutant(
        "votes of a round are read before all are made", "votes.h",
        "round);\n  b.sync();\n", "round);\n", "portable", DYNAMIC,
    ),
    Mutant(
        "votes of a round are overwritten while others read them", "votes.h",
        "  b.sync();  // the votes of the last round have been read\n", "", "portable", DYNAMIC,
    ),
    Mutant(
        "a lane writes the mass that others of its warp read", "finish.h",
        "mass += parts(s)[mass_at];\n  return mass;",
        "mass += parts(s)[mass_at];\n  partial[mass_at] = mass;\n  return mass;", "split", EM,
    ),
    Mutant(
        "parents are used before they are finished", "finish.h",
        "    }\n  }\n  b.sync();\n}", "    }\n  }\n}", "auto", EM,
    ),
    Mutant(
        "lanes without a parent leave before the sums", "finish.h",
        "    const float mass = merge", "    if (!p.there) continue;\n    const float mass = merge",
        "auto", EM, "wait at different barriers",
    ),
    Mutant(
        "parts are added before all blocks have them", "kernels.cu",
        "    if (l.splits > 1) b.sync_cluster();  // all parts are there\n", "", "cluster", DYNAMIC,
    ),
    Mutant(
        "parts are written while the first block reads them", "kernels.cu",
        "    b.sync_cluster();  // the parts have been read", "    b.sync();  // the parts have been read",
        "cluster", DYNAMIC, "has ended before others have read its memory",
    ),
    Mutant(
        "couplings are used before all logits are there", "generic.h",
        "    b.sync();\n    if (l.over_children) {", "    if (l.over_children) {", "generic", GENERIC,
    ),
)  # fmt: skip


def mutated(mutant: Mutant, folder: Path) -> Path:
    """The sources with the change, beside the files of the CPU kernels that they include."""
    kernels = cuda_library.SOURCES.parent
    sources = folder / "cuda"
    shutil.copytree(kernels / "cuda", sources)
    shutil.copytree(kernels / "cpu" / "simd", folder / "cpu" / "simd")
    file = sources / mutant.file
    text = file.read_text()
    assert mutant.name == "none" or text.count(mutant.old) == 1, mutant.name
    file.write_text(text.replace(mutant.old, mutant.new))
    return sources


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_mutants_are_found(mutant: Mutant, tmp_path: Path) -> None:
    if shutil.which("g++") is None or sys.platform != "linux":
        pytest.skip("the emulation of the CUDA kernels needs g++ on Linux")
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", "test", "--backend", f"cuda-emulated-{mutant.scheme}",
         "--dtype", "float32", "--filter", mutant.cases],
        env={**os.environ, cuda_library.CHECKS: "races",
             cuda_library.MUTANT: str(mutated(mutant, tmp_path))},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert (done.returncode == 0) == (mutant.name == "none"), said[-3000:]
    assert mutant.name != "none" or " ok" in done.stdout
    assert mutant.words in done.stderr, said[-3000:]
