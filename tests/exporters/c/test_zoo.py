"""The trained models as C: the same answers as the file, the memory of the bound, few symbols."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.exporters.c.write_c import generate_c_folder, write_c
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.conftest import ROOT
from tests.exporters.c.compiled import Compiled, compiler
from tests.exporters.c.sanitized import Case, extreme_inputs, run_sanitized

ZOO = sorted((ROOT / "capsedge/zoo").glob("*.onnx"))
pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("source", ZOO, ids=lambda p: p.stem)
def test_equals_the_file(source: Path, tmp_path: Path) -> None:
    net = Compiled(source, tmp_path / "net")
    memory = net.description["memory"]
    assert memory["arena_bytes"] == memory["arena_bound"]
    session = capsedge.load(source)
    rng = np.random.default_rng(0)
    images = rng.random((5, *net.description["inputs"][0]["shape"]), np.float32)
    results = [net.run(x) for x in images]
    for x, got in zip(images, results, strict=True):
        want = session.run(x)
        for name, value in got.items():
            np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=2e-5)
    if net.description["reconstruction"]:
        pictures = want["reconstruction"]
        for k in (0, 7):
            np.testing.assert_allclose(net.reconstruct(got["poses"], k), pictures[0, k], atol=1e-5)
    for flag in ("-DCAPS_PORTABLE", "-march=native"):
        net.again(flag)
        for x, got in zip(images, results, strict=True):
            for name, value in net.run(x).items():
                assert np.array_equal(value, got[name]), (flag, name)


@pytest.mark.parametrize(
    "source", [p for p in ZOO if p.stem in ("digits-em", "digits-small")], ids=lambda p: p.stem
)
def test_pixels_have_the_bits_of_python(source: Path, tmp_path: Path) -> None:
    net = Compiled(source, tmp_path / "net")
    p = Preprocessing(**net.description["preprocessing"])
    pixels = np.random.default_rng(1).integers(
        0, 256, (p.height, p.width, p.channels), dtype=np.uint8
    )
    assert np.array_equal(net.prepare(pixels)[0], prepare(pixels, p))


def test_photographs_fit_a_large_microcontroller(tmp_path: Path) -> None:
    """2 MB of flash and 1 MB of RAM, as the STM32H743 has them."""
    fit = {"flash": 2_000_000, "ram": 1_000_000}
    write_c(ROOT / "capsedge/zoo/photos.onnx", tmp_path / "net", fit=fit)


def test_symbols_and_equal_bytes(tmp_path: Path) -> None:
    source = ROOT / "capsedge/zoo/digits-small.onnx"
    first = Compiled(source, tmp_path / "a")
    capsedge_files = {p.name: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    Compiled(source, tmp_path / "b")
    again = {p.name: p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file()}
    assert capsedge_files == again
    assert set(first.description["files"]) >= {"net.c", "net.h", "main.c", "zephyr/module.yml"}
    subprocess.run(
        [compiler(), "-O2", "-c", "-o", tmp_path / "net.o", tmp_path / "a/net.c"], check=True
    )
    listed = subprocess.run(
        ["nm", "-u", tmp_path / "net.o"], check=True, capture_output=True, text=True
    )
    assert set(listed.stdout.split()) - {"U"} <= {"memcpy", "memset"}
    written = subprocess.run(
        ["size", "-A", tmp_path / "net.o"], check=True, capture_output=True, text=True
    )
    sizes = {
        line.split()[0]: int(line.split()[1])
        for line in written.stdout.splitlines()[2:]
        if line.split()[1:]
    }
    assert sizes.get(".data", 0) == 0
    assert sizes.get(".bss", 0) == 0


EVERY_LANE = """
#include "net.c"
#include <stdio.h>
int main(void) {
  uint64_t i;
  int k;
  for (i = 0; i < 0x10000000u; i += 99991) {
    float x[16], wanted[16], found[16];
    for (k = 0; k < 16; k++) {
      const uint32_t bits = (uint32_t)(i + k * 0x10000000u);
      memcpy(&x[k], &bits, 4);
      found[k] = x[k];
    }
    for (k = 0; k < 16; k++) wanted[k] = caps_exp(x[k]);
    caps_exp_all(found, 16, 0.0f);
    if (memcmp(wanted, found, sizeof wanted)) return 1;
    for (k = 0; k < 16; k++) wanted[k] = caps_log(x[k]);
    caps_log_all(x, found, 16);
    if (memcmp(wanted, found, sizeof wanted)) return 2;
  }
  return 0;
}
"""


@pytest.mark.parametrize("flag", ["-O2", "-DCAPS_PORTABLE", "-march=native"])
def test_functions_in_vectors_have_the_bits_of_single_ones(flag: str, tmp_path: Path) -> None:
    """Over all floats in steps: subnormal, infinite and not a number too."""
    write_c(ROOT / "capsedge/zoo/digits-em.onnx", tmp_path / "net", name="net")
    (tmp_path / "net/lanes.c").write_text(EVERY_LANE)
    words = [compiler(), "-std=c99", "-O2", "-ffp-contract=off", flag, "-w"]
    subprocess.run([*words, "-o", tmp_path / "lanes", tmp_path / "net/lanes.c"], check=True)
    assert subprocess.run([tmp_path / "lanes"], check=False).returncode == 0


def test_sanitizers_find_nothing_for_any_input(tmp_path: Path) -> None:
    """Every trained model, with and without vectors."""
    cases = []
    for number, source in enumerate(ZOO):
        files, description = generate_c_folder(source.read_bytes(), source, f"n{number}")
        cases.append(
            Case(files, description, extreme_inputs(description["inputs"][0]["shape"])[::3])
        )
    for flags in (["-O1"], ["-O1", "-DCAPS_PORTABLE"]):
        assert run_sanitized(cases, tmp_path / flags[-1], flags) == ""
