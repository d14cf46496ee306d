"""The sizes that are stated are those of what the folder's own build makes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from capsedge.errors import UsageError
from capsedge.exporters.c import graph
from capsedge.exporters.c.write_c import write_c
from tests.conftest import ROOT
from tests.exporters.c.test_folder import tiny

MODELS = ("digits-dynamic", "digits-em", "digits-attention", "digits-overlap", "photos")
OTHER_DATA = 4096  # names, tables of the kernels, what the C library adds


def zoo(name: str) -> Path:
    return ROOT / "capsedge" / "zoo" / f"{name}.onnx"


def sections(program: Path) -> dict[str, int]:
    """Bytes of code and of constants of a program."""
    listing = subprocess.run(["size", "-A", program], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listing.stdout.splitlines() if line.startswith(".")]
    sizes = {row[0]: int(row[1]) for row in rows}
    data = sum(v for k, v in sizes.items() if k.startswith((".rodata", ".data")))
    return {"code": sizes[".text"], "constants": data}


def linked(folder: Path, name: str, call: str) -> dict[str, int]:
    """Sizes of a program that makes one call, built by the folder's CMakeLists.txt."""
    (folder / "program.c").write_text(
        f'#include "{name}.h"\nint main(void) {{ {call} return 0; }}\n'
    )
    (folder / "CMakeLists.txt").write_text(
        (folder / "CMakeLists.txt").read_text()
        + f"add_executable(program program.c)\ntarget_link_libraries(program PRIVATE {name})\n"
    )
    for words in (
        ["-S", folder, "-B", folder / "build"],
        ["--build", folder / "build", "--target", "program"],
    ):
        done = subprocess.run(["cmake", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return sections(folder / "build" / "program")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "batch"), [*((name, 1) for name in MODELS), ("digits-attention", 4)]
)
def test_the_program_has_the_stated_size(name: str, batch: int, tmp_path: Path) -> None:
    """With `run` alone, and with the decoder where there is one."""
    if shutil.which("cmake") is None or shutil.which("cc") is None or shutil.which("size") is None:
        pytest.skip(
            "needs a C compiler, cmake and binutils: apt-get install gcc binutils; pip install cmake"
        )
    report = write_c(zoo(name), tmp_path / "run", name="net", batch=batch)
    memory = report.description["memory"]
    run = "static float x[NET_INPUT_SIZE]; net_outputs o = {0}; static unsigned char a[NET_ARENA_BYTES] "
    run += "__attribute__((aligned(16))); net_run(a, x, &o);"
    empty = "volatile int nothing = 0; (void)nothing;"
    base = linked(write_c(zoo(name), tmp_path / "empty", name="net").path, "net", empty)
    assert (
        base["constants"] < OTHER_DATA
    )  # nothing of the network is in a program that does not call it
    found = linked(tmp_path / "run", "net", run)
    assert 0 <= found["constants"] - memory["constant_bytes"] < OTHER_DATA
    assert 0 < found["code"] - base["code"] <= memory["code_bound"]
    if memory["decoder_bytes"]:
        shutil.rmtree(tmp_path / "run")
        write_c(zoo(name), tmp_path / "run", name="net")
        both = run + " static float p[64], q[1 << 16]; net_reconstruct(a, p, 0, q);"
        found = linked(tmp_path / "run", "net", both)
        stated = memory["constant_bytes"] + memory["decoder_bytes"]
        assert 0 <= found["constants"] - stated < OTHER_DATA


def test_fit_states_every_part(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        write_c(zoo("digits-em"), tmp_path / "a", fit={"flash": 100 << 10, "ram": 10 << 10})
    why = refused.value.why
    assert "constants" in why
    assert "code at most 17.1 KiB" in why
    assert "arena" in why
    assert "input 3.1 KiB" in why
    assert "outputs" in why
    assert "more than 100.0 KiB" in why


def test_int8_is_suggested_where_only_ram_is_over(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        write_c(zoo("digits-em"), tmp_path / "a", fit={"flash": 10 << 20, "ram": 10 << 10})
    assert "flash" not in refused.value.why.partition(";")[0]
    assert "capsedge quantize" in refused.value.fix


def test_one_image_a_call_is_suggested_where_there_are_more(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        write_c(tiny(tmp_path), tmp_path / "a", batch=4, fit={"ram": 16})
    assert refused.value.fix.startswith("Build it for one image a call (`--batch 1`)")
    one = write_c(tiny(tmp_path), tmp_path / "b").description["memory"]
    four = write_c(tiny(tmp_path), tmp_path / "c", batch=4).description["memory"]
    assert four["input_bytes"] == 4 * one["input_bytes"]


def test_build_files_put_every_function_in_a_section(tmp_path: Path) -> None:
    folder = write_c(tiny(tmp_path), tmp_path / "net").path
    for file in ("CMakeLists.txt", "library.json", "README.md", "zephyr/CMakeLists.txt"):
        text = (folder / file).read_text()
        assert "-ffunction-sections" in text, file
        assert "-fdata-sections" in text, file
        assert "--gc-sections" in text or file.startswith("zephyr"), file  # Zephyr links so


def test_large_constants_are_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their size is known before: an Expand to 2^26 numbers took a gigabyte before it was left to the C."""
    computed: list[int] = []

    class Evaluator(ReferenceEvaluator):
        def run(self, *arguments: Any, **named: Any) -> Any:
            found = super().run(*arguments, **named)
            computed.extend(np.size(array) for array in found)
            return found

    monkeypatch.setattr(graph, "FOLDED", 64)
    monkeypatch.setattr(graph, "ReferenceEvaluator", Evaluator)
    stored = {"one": np.ones(1, "f4"), "large": np.array([65]), "small": np.array([4])}
    nodes = [
        helper.make_node("Expand", ["one", "large"], ["a"]),
        helper.make_node("Expand", ["one", "small"], ["b"]),
        helper.make_node("Mul", ["a", "a"], ["d"]),
        helper.make_node("ReduceSum", ["d"], ["e"], keepdims=0),
        helper.make_node("Mul", ["x", "b"], ["f"]),
        helper.make_node("Add", ["f", "e"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    made = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(v, k) for k, v in stored.items()]
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    write_c(tmp_path / "m.onnx", tmp_path / "net")
    assert max(computed) == 4
