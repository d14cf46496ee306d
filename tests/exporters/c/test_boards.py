"""Boards that QEMU emulates: the bits of this machine, instructions, stack; what happens without tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.exporters.c import measurement as measure
from capsedge.exporters.c.folder import read_report
from capsedge.exporters.c.write_c import generate_c_folder, write_c
from tests.conftest import ROOT
from tests.exporters.c.compiled import compiler
from tests.exporters.c.test_folder import tiny

NETWORKS = ("digits-em", "digits-small")  # FP32 with matrices, INT8 with routing by agreement


class Network(NamedTuple):
    """A network as C, and the hash of what this machine computes without vectors."""

    files: Mapping[str, bytes]
    description: Mapping[str, Any]
    hash: str


@pytest.fixture(scope="module", params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Network:
    file = ROOT / f"capsedge/zoo/{request.param}.onnx"
    files, description = generate_c_folder(file.read_bytes(), file, "net")
    words = [compiler(), *measure.FLAGS, "-DCAPS_PORTABLE"]
    return Network(files, description, measure.hash_here(files, description, words))


def board(name: str) -> measure.Board:
    """A board; without its tools the test is skipped."""
    found = measure.BOARDS[name]
    if missing := found.missing():
        pytest.skip(f"apt-get install {' '.join(missing)}")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", measure.BOARDS)
def test_every_board_gives_the_bits_of_this_machine(network: Network, name: str) -> None:
    """ARM with and without DSP instructions, Helium and an FPU; RISC-V with and without an FPU."""
    counted = measure.count(network.files, network.description, board(name))
    assert counted.hash == network.hash
    assert len(counted.layers) == len(network.description["layers"])
    products = [row["products"] for row in network.description["layers"]]
    assert max(counted.layers) > max(products) / 16  # Helium multiplies 16 pairs of bytes at once


@pytest.mark.thorough
@pytest.mark.parametrize("flag", ["-O2", "-O3", "-march=native"])
def test_vectors_of_this_machine_give_the_same_bits(network: Network, flag: str) -> None:
    words = [compiler(), *measure.FLAGS, flag]
    assert measure.hash_here(network.files, network.description, words) == network.hash


@pytest.mark.thorough
def test_build_reports_and_inspect_shows(tmp_path: Path) -> None:
    for name in measure.REPORTED:
        board(name)
    report = write_c(tiny(tmp_path), tmp_path / "net", measure=True)
    cores = [each["core"] for each in report.description["measured"]]
    assert cores == [measure.BOARDS[name].core for name in measure.REPORTED]
    for each in report.description["measured"]:
        assert len(each["instructions"]) == len(report.description["layers"])
        assert 0 < each["stack_bytes"] < 1000
        assert "-ffp-contract=off" in each["compiler"]
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "net")], terminal_width=200).output
    for core in cores:
        assert core in shown
    assert "bytes of stack" in shown


@pytest.mark.thorough
def test_only_the_stack_without_tools_for_microcontrollers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda tool: None if "arm" in tool or "riscv" in tool else which(tool)
    )
    report = write_c(tiny(tmp_path), tmp_path / "net", measure=True)
    (each,) = report.description["measured"]
    assert each["core"] == "this machine"
    assert each["instructions"] == []
    assert "qemu-system-arm" in report.missing


def test_no_compiler_at_all_is_an_error_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _tool: None)
    with pytest.raises(EnvironmentProblem, match="No C compiler") as raised:
        write_c(tiny(tmp_path), tmp_path / "net", measure=True)
    assert "gcc-arm-none-eabi" in raised.value.fix
    assert not (tmp_path / "net").exists()
    with pytest.raises(EnvironmentProblem, match="tools for Cortex-M7 are not installed"):
        measure.count({}, {}, measure.BOARDS["cortex-m7"])


GRAPH = """graph: { title: "net.c"
node: { title: "net.c:caps_exp" label: "caps_exp\\nnet.c:3:7\\n16 bytes (static)" }
node: { title: "net.c:caps_em" label: "caps_em\\nnet.c:9:7\\n200 bytes (static)" }
node: { title: "memcpy" label: "__builtin_memcpy\\n<built-in>" shape : ellipse }
node: { title: "net_run" label: "net_run\\nnet.c:20:6\\n64 bytes (static)" }
edge: { sourcename: "net_run" targetname: "net.c:caps_em" label: "net.c:22:1" }
edge: { sourcename: "net_run" targetname: "memcpy" }
edge: { sourcename: "net.c:caps_em" targetname: "net.c:caps_exp" }
}
"""


def test_the_stack_is_that_of_the_deepest_calls() -> None:
    assert measure.deepest(GRAPH, "net_run") == 64 + 200 + 16
    assert measure.deepest(GRAPH, "net.c:caps_exp") == 16
    assert measure.deepest(GRAPH, "absent") is None
    again = '\nedge: { sourcename: "net.c:caps_exp" targetname: "net.c:caps_em" }'
    assert measure.deepest(GRAPH + again, "net_run") is None
    assert (
        measure.deepest(GRAPH.replace("200 bytes (static)", "200 bytes (dynamic)"), "net_run")
        is None
    )


@pytest.mark.parametrize(
    "measured",
    [
        [{"core": 1}],
        [{"core": "x", "compiler": "", "stack_bytes": 1, "emulator": "", "instructions": [1] * 9}],
    ],
)
def test_a_damaged_measurement_is_refused(tmp_path: Path, measured: list[dict[str, Any]]) -> None:
    write_c(tiny(tmp_path), tmp_path / "net", name="net")
    file = tmp_path / "net/net.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "measured": measured}))
    with pytest.raises(ArtefactError, match=r"description in .* is damaged"):
        read_report(tmp_path / "net")


def test_build_systems_do_not_contract_products_and_sums(tmp_path: Path) -> None:
    write_c(tiny(tmp_path), tmp_path / "net")
    for name in ("CMakeLists.txt", "library.json", "zephyr/CMakeLists.txt"):
        assert "-ffp-contract=off" in (tmp_path / "net" / name).read_text(), name
    esp = (tmp_path / "net/CMakeLists.txt").read_text().partition("return()")[0]
    assert "-ffp-contract=off" in esp
