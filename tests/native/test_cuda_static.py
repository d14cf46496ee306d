"""The static counts of the CUDA kernels: launches, residence, bounds, and that the counts do not rise."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from benchmarks import cuda_static
from benchmarks.sass import bound, cubin, devices, launches, measure, tables
from capsedge.errors import CapsedgeError
from tests.conftest import ROOT

JSON = cuda_static.PAGE.with_suffix(".json")
ARCHITECTURE = 87
# Reached once, kept ever after: of the FP32 tiled kernels, see docs/explanation/first-gpu-day.md.
REGISTERS, STAGING, DIVISION = 128, 0.20, 0.5


@pytest.mark.parametrize(
    ("architecture", "registers", "threads", "shared", "expected"),
    [
        (87, 169, 256, 36960, (1, "registers")),  # 176 * 256 > 65536 / 2
        (87, 128, 256, 20480, (2, "registers")),
        (87, 32, 256, 0, (6, "warps")),
        (90, 24, 256, 0, (8, "warps")),
        (90, 24, 64, 0, (32, "warps")),
        (89, 32, 64, 0, (24, "warps")),
        (89, 40, 256, 36960, (2, "shared memory")),
        (87, 32, 32, 0, (16, "blocks")),
    ],
)
def test_resident_blocks(
    architecture: int, registers: int, threads: int, shared: int, expected: tuple[int, str]
) -> None:
    kernel = cubin.Kernel("k", architecture, (), {}, {}, registers, 0, 0, 0)
    assert measure.resident_blocks(kernel, threads, shared) == expected


@pytest.mark.thorough
def test_launches_are_the_planners() -> None:
    try:
        launches.recorder()
    except CapsedgeError as error:
        pytest.skip(str(error))
    layer = cuda_static.LAYERS["dynamic, B=1"]()
    portable = launches.launches_of(layer, 8, clusters=False)
    names = [x.kernel.partition("<")[0] for x in portable]
    assert names == ["votes_kernel", *["part_kernel", "finish_kernel"] * 3]
    assert portable[0].grid == (1152 // 8, 1)
    _, whole = launches.launches_of(layer, 132, clusters=True)
    assert whole.kernel == "whole_kernel<Sums<1, 16, 1>, float, float>"
    assert whole.cluster == whole.grid[1] == 8
    images = int.from_bytes(
        whole.arguments[12:16], "little"
    )  # the fourth field of the interface's layer
    assert images == 1


def test_work_of_the_paper_shapes() -> None:
    dynamic = bound.work_of(cuda_static.LAYERS["dynamic, B=128"]())
    assert (dynamic.votes, dynamic.passes) == (128 * 1152 * 10, 3)
    assert dynamic.arithmetic == 3 * (128 + 16) + 2 * 16
    em = bound.work_of(cuda_static.LAYERS["EM, B=32"]())
    assert (em.votes, em.passes) == (32 * 49 * 288 * 32, 3)
    attention = bound.work_of(cuda_static.LAYERS["attention, B=1"]())
    assert (attention.votes, attention.passes, attention.arithmetic) == (49 * 288 * 32, 1, 64 + 32)


def test_bound_is_the_largest_of_each_launch() -> None:
    device = devices.Device("made up", 87, 4, 1e9, 1e9, 1 << 20)
    work = bound.Work(votes=1000, passes=1, arithmetic=10, footprint=4000)
    launch = launches.Launch("k", (6, 1), 32, 1, 0, b"")
    slow = measure.Count({"arithmetic": 8000.0}, 0, 4000.0, 128.0 * 1000, 100.0, 0)
    wide = measure.Count({"load": 40.0}, 0, 0.0, 0.0, 10000.0, 0)
    found = bound.bound(device, work, [(launch, slow), (launch, wide)])
    # Six blocks on four multiprocessors: two on the busiest.
    assert found.issue == pytest.approx(2 * (8000 + 40) / 4e9)
    assert found.shared == pytest.approx(2 * 1000 / 1e9)
    # The layer fits the cache: what is left of it after the first launch.
    assert found.dram == pytest.approx((600 + 3400) / 1e9)
    assert found.total == pytest.approx(4000e-9 + 3400e-9)
    assert found.roofline == pytest.approx(4000 / 1e9)


@cache
def recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(JSON.read_text())
    return document


def test_page_has_the_tables_of_its_figures() -> None:
    assert tables.page(recorded()) in cuda_static.PAGE.read_text()
    assert tables.expectations(recorded()) in cuda_static.PLAN.read_text()
    assert set(recorded()["architectures"]) == {str(a) for a in devices.MULTIPROCESSORS}
    for entry in recorded()["architectures"].values():
        assert list(entry["layers"]) == list(cuda_static.LAYERS)


def limit(goal: float, value: float, slack: float = 0.0) -> float:
    """What a count may be: the goal once it has been reached, before that what was recorded."""
    return max(goal, value * (1 + slack))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_counts_do_not_rise() -> None:
    """Compiled here and counted again, against docs/benchmarks/cuda-static.json."""
    try:
        cubin.find_nvcc()
        cubin.find_nvdisasm()
    except CapsedgeError as error:
        pytest.skip(str(error))
    if cubin.compiler_version() != recorded()["compiler"]:
        pytest.skip(f"counted with {recorded()['compiler']}, here is {cubin.compiler_version()}")
    before = recorded()["architectures"][str(ARCHITECTURE)]
    now = cuda_static.document([ARCHITECTURE], list(cuda_static.LAYERS))["architectures"][
        str(ARCHITECTURE)
    ]
    for name, kernel in now["kernels"].items():
        tiled = name.startswith("tiled_kernel") and name.endswith("float, float>")
        old = before["kernels"].get(name, {"registers": 0, "spill_bytes": 0})
        assert kernel["registers"] <= limit(REGISTERS if tiled else 255, old["registers"]), name
        assert kernel["spill_bytes"] <= limit(64, old["spill_bytes"]), name
    for layer, entry in now["layers"].items():
        old = {row["kernel"]: row for row in before["layers"][layer]["kernels"]}
        for row in entry["kernels"]:
            where = (layer, row["kernel"])
            assert row["kernel"] in old, f"{where} is new: python -m benchmarks.cuda_static --write"
            was = old[row["kernel"]]
            assert row["slots_per_vote_total"] <= limit(0, was["slots_per_vote_total"], 0.02), where
            assert row["staging_share"] <= limit(STAGING, was["staging_share"]), where
            assert row["division_slots_per_vote"] <= limit(
                DIVISION, was["division_slots_per_vote"]
            ), where
            assert row["global_bytes_per_image"] <= limit(0, was["global_bytes_per_image"], 0.02), (
                where
            )


def test_commands_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> str:
        raise CapsedgeError(
            "no nvcc was found: install CUDA 12.8 or newer, or put nvcc on the PATH"
        )

    monkeypatch.setattr(cuda_static, "compiler_version", missing)
    assert cuda_static.main(["--arch", "87"]) == 1
    assert capsys.readouterr().err.startswith("no nvcc was found: install")
    for wrong in (["--layers", "convolution"], ["--json", "nowhere/counts.json"], ["--arch", "35"]):
        with pytest.raises(SystemExit) as stopped:
            cuda_static.main(wrong)
        assert stopped.value.code == 2


def test_commands_of_the_first_day_exist() -> None:
    """Modules, files, targets and markers that docs/explanation/first-gpu-day.md names are there."""
    text = cuda_static.PLAN.read_text()
    lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    makefile = (ROOT / "Makefile").read_text()
    assert len(lines) >= 8
    for line in lines:
        for module in re.findall(r"python -m ([\w.]+)", line):
            path = ROOT / module.replace(".", "/")
            assert (
                module == "pytest"
                or path.with_suffix(".py").is_file()
                or (path / "__main__.py").is_file()
            )
        for file in re.findall(r"\btests/[\w/.]+\.py", line):
            assert (ROOT / file).is_file(), file
        for target in re.findall(r"\bmake ([\w-]+)", line):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
