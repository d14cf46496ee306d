"""`deploy_triton`: what Triton is told of each kind of model, by its own schema, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import capsedge
from capsedge.deploy.triton import text_format
from capsedge.errors import ArtefactError, EnvironmentProblem, UnsupportedModelError, UsageError
from capsedge.runtime.backends.native_library import NAME, find_library
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata import engine_metadata
from capsedge.serving.server_model import parse_model_names
from tests.deploy.graphs import graph
from tests.deploy.schema import config
from tests.paths.table import ZOO, run
from tests.runtime.models import capsule_model, foreign_model, metadata, save

LIBRARY = find_library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the operator library is not built")
EM = "digits-em"


@needs_library
def test_a_model_of_the_zoo_and_its_twin(tmp_path: Path) -> None:
    made = capsedge.deploy_triton(EM, tmp_path / "r", threads=2, queue_delay=100, mount="/m")
    assert [(m.name, m.ops, m.twin_of) for m in made.models] == [
        (EM, "fused", ""),
        (f"{EM}-portable", "portable", EM),
    ]
    found = config(tmp_path / "r", EM)
    assert found["backend"] == "onnxruntime"
    assert found["max_batch_size"] == 32
    assert found["input"] == [
        {"name": "images", "data_type": "TYPE_FP32", "dims": ["1", "28", "28"]}
    ]
    assert {o["name"]: (o["dims"], o.get("label_filename")) for o in found["output"]} == {
        "lengths": (["10"], "labels.txt"),
        "poses": (["10", "16"], None),
    }
    assert found["instance_group"] == [{"count": 1, "kind": "KIND_CPU"}]
    assert found["parameters"] == {"intra_op_thread_count": {"string_value": "2"}}
    assert found["dynamic_batching"] == {"max_queue_delay_microseconds": "100"}
    assert found["model_operations"] == {"op_library_filename": [f"/m/{EM}/{NAME}"]}
    twin = config(tmp_path / "r", f"{EM}-portable")
    assert "model_operations" not in twin
    assert twin["input"] == found["input"]
    folder = tmp_path / "r" / EM
    assert (folder / "1/model.onnx").read_bytes() == (ZOO / f"{EM}.onnx").read_bytes()
    assert LIBRARY is not None
    assert (folder / NAME).read_bytes() == LIBRARY.read_bytes()
    assert (folder / "labels.txt").read_text().split() == list("0123456789")
    assert not (tmp_path / "r" / f"{EM}-portable" / NAME).exists()


def test_the_warm_up_is_what_the_model_takes(tmp_path: Path) -> None:
    capsedge.deploy_triton(EM, tmp_path / "r", ops="portable", max_batch=8)
    folder = tmp_path / "r" / EM
    warm = config(tmp_path / "r", EM)["model_warmup"]
    assert [(w["name"], w["batch_size"]) for w in warm] == [
        ("sample", 1),
        ("noise", 1),
        ("largest batch", 8),
    ]
    for each in warm:
        ((name, value),) = each["inputs"].items()
        shape = tuple(map(int, value["dims"]))
        data = (folder / "warmup" / value["input_data_file"]).read_bytes()
        assert (name, value["data_type"], shape) == ("images", "TYPE_FP32", (1, 28, 28))
        assert len(data) == 4 * 28 * 28
    image = np.fromfile(folder / "warmup/sample-0", np.float32).reshape(1, 1, 28, 28)
    session = capsedge.load(EM)
    assert session.run({"images": image})["lengths"].argmax() == 7


def test_the_folder_lists_its_files(tmp_path: Path) -> None:
    made = capsedge.deploy_triton([EM, "digits-attention"], tmp_path / "r", ops="portable")
    there = {p.relative_to(tmp_path / "r").as_posix() for p in (tmp_path / "r").rglob("*")}
    files = {path for path in there if (tmp_path / "r" / path).is_file()}
    listed = json.loads((tmp_path / "r/capsedge.json").read_text())["files"]
    assert files == {f.path for f in made.files} == {*listed, "capsedge.json"}
    assert all(sha256(tmp_path / "r" / path) == listed[path]["sha256"] for path in listed)
    capsedge.deploy_triton(EM, tmp_path / "r", ops="portable")
    assert not (tmp_path / "r/digits-attention").exists()
    (tmp_path / "r" / EM / "2").mkdir()
    (tmp_path / "r" / EM / "2" / "mine.onnx").write_text("mine")
    with pytest.raises(UsageError, match="not written by an earlier run"):
        capsedge.deploy_triton(EM, tmp_path / "r")


def test_on_a_gpu_the_bodies_run(tmp_path: Path) -> None:
    made = capsedge.deploy_triton(EM, tmp_path / "r", device="cuda:1", instances=2)
    assert [(m.name, m.ops, m.device) for m in made.models] == [(EM, "portable", "cuda")]
    found = config(tmp_path / "r", EM)
    assert found["instance_group"] == [{"count": 2, "kind": "KIND_GPU", "gpus": [1]}]
    assert not (tmp_path / "r" / EM / NAME).exists()


def test_a_fixed_batch(tmp_path: Path) -> None:
    net = save(capsule_model(batch=4), tmp_path / "net.onnx")
    capsedge.deploy_triton(net, tmp_path / "r", ops="portable")
    found = config(tmp_path / "r", "net")
    assert "max_batch_size" not in found  # protobuf leaves out a zero
    assert "dynamic_batching" not in found
    assert found["input"][0]["dims"] == ["4", "1", "8", "8"]
    assert [(w["name"], w["batch_size"]) for w in found["model_warmup"]] == [
        ("sample", 1),
        ("noise", 1),
    ]
    data = (tmp_path / "r/net/warmup/noise-0").read_bytes()
    assert len(data) == 4 * 4 * 64


def test_a_batch_of_one_row(tmp_path: Path) -> None:
    capsedge.deploy_triton(EM, tmp_path / "r", ops="portable", max_batch=1)
    found = config(tmp_path / "r", EM)
    assert found["max_batch_size"] == 1
    assert "dynamic_batching" not in found


def test_several_inputs_types_and_a_number_for_each_row(tmp_path: Path) -> None:
    net = graph(
        tmp_path / "net.onnx",
        {"a": (TensorProto.FLOAT16, ["N", 3]), "b": (TensorProto.INT64, ["N"])},
        {"c": (TensorProto.FLOAT16, ["N", 3]), "d": (TensorProto.BOOL, ["N"])},
        [
            helper.make_node("Abs", ["a"], ["c"]),
            helper.make_node("Cast", ["b"], ["d"], to=TensorProto.BOOL),
        ],
    )
    made = capsedge.deploy_triton(net, tmp_path / "r")
    found = config(tmp_path / "r", "net")
    assert found["input"] == [
        {"name": "a", "data_type": "TYPE_FP16", "dims": ["3"]},
        {"name": "b", "data_type": "TYPE_INT64", "dims": ["1"], "reshape": {}},
    ]
    assert found["output"][1] == {
        "name": "d", "data_type": "TYPE_BOOL", "dims": ["1"], "reshape": {},
    }  # fmt: skip
    assert [m.ops for m in made.models] == ["portable"]
    sizes = [len((tmp_path / f"r/net/warmup/noise-{k}").read_bytes()) for k in range(2)]
    assert sizes == [6, 8]


def test_free_sizes_besides_the_batch(tmp_path: Path) -> None:
    net = graph(
        tmp_path / "net.onnx",
        {"x": (TensorProto.FLOAT, ["N", 3, "H"])},
        {"y": (TensorProto.FLOAT, ["N", 3, "H"])},
        [helper.make_node("Relu", ["x"], ["y"])],
    )
    made = capsedge.deploy_triton(net, tmp_path / "r")
    assert "no warm-up" in made.notes[0]
    found = config(tmp_path / "r", "net")
    assert found["input"][0]["dims"] == ["3", "-1"]
    assert found["max_batch_size"] == 32
    assert "model_warmup" not in found


@pytest.mark.parametrize("named", ["M", None])
def test_what_runs_no_batches_is_not_batched(named: str | None, tmp_path: Path) -> None:
    net = graph(
        tmp_path / "net.onnx",
        {"x": (TensorProto.FLOAT, ["N", 3])},
        {"y": (TensorProto.FLOAT, [named or "N", 3])},
        [helper.make_node("ReduceMax", ["x"], ["y"], keepdims=1)]
        if named is None
        else [helper.make_node("Relu", ["x"], ["y"])],
    )
    capsedge.deploy_triton(net, tmp_path / "r")
    found = config(tmp_path / "r", "net")
    assert "max_batch_size" not in found
    assert found["input"][0]["dims"] == ["-1", "3"]


def test_a_regression_has_no_labels(tmp_path: Path) -> None:
    declared = metadata(
        class_names=(),
        task="regression",
        outputs=capsedge.Outputs(values=("pose",), names=("yaw", "pitch", "roll"), units=("",) * 3),
    )
    net = save(
        foreign_model({"pose": [3]}, properties=declared.to_properties()), tmp_path / "net.onnx"
    )
    capsedge.deploy_triton(net, tmp_path / "r")
    found = config(tmp_path / "r", "net")
    assert [o.get("label_filename") for o in found["output"]] == [None]
    assert not (tmp_path / "r/net/labels.txt").exists()


def test_names_of_strangers(tmp_path: Path) -> None:
    evil = 'x"\n}\\é'
    net = graph(
        tmp_path / "a ü;b.onnx",
        {evil: (TensorProto.FLOAT, ["N", 2])},
        {"y": (TensorProto.FLOAT, ["N", 2])},
        [helper.make_node("Relu", [evil], ["y"])],
    )
    made = capsedge.deploy_triton(net, tmp_path / "r")
    assert made.models[0].name == "a-b"
    found = config(tmp_path / "r", "a-b")
    assert found["input"][0]["name"] == evil
    assert list(found["model_warmup"][0]["inputs"]) == [evil]
    labels = replace(metadata(), class_names=("a\nb", "\x1b[31m", "c"))
    net = save(capsule_model(properties=labels.to_properties()), tmp_path / "net.onnx")
    capsedge.deploy_triton(net, tmp_path / "r", ops="portable")
    assert (tmp_path / "r/net/labels.txt").read_text() == "a\\nb\n\\x1b[31m\nc\n"


def test_names_never_meet(tmp_path: Path) -> None:
    """By the rule of `capsedge serve`: two models of one name are refused, and a name can be given."""
    given = {}
    for folder, name in (("a", "Net"), ("b", "net"), ("c", "net-portable")):
        (tmp_path / folder).mkdir()
        given[folder] = str(shutil.copy(ZOO / f"{EM}.onnx", tmp_path / folder / f"{name}.onnx"))
    for pair in ("ab", "ac", "ca"):
        with pytest.raises(UsageError, match="would both use the folder") as error:
            capsedge.deploy_triton([given[folder] for folder in pair], tmp_path / "r")
        assert f"other={given[pair[1]]}" in error.value.fix
    with pytest.raises(UsageError, match="has a version"):
        capsedge.deploy_triton(f"net:2={given['a']}", tmp_path / "r")
    with pytest.raises(UsageError, match="differ only in case"):
        parse_model_names([given["a"], given["b"]])
    with pytest.raises(UsageError, match=r"Invalid name 'a b'(.|\n)*digits-em=digits-em"):
        parse_model_names(["a b=digits-em"])
    assert [one.name for one in parse_model_names([given["a"], f"other={given['b']}"])] == [
        "Net",
        "other",
    ]
    named_ones = [given["a"], f"other={given['b']}"]
    made = capsedge.deploy_triton(named_ones, tmp_path / "r", ops="portable")
    assert [model.name for model in made.models] == ["Net", "other"]


def test_text_format_escapes_every_string() -> None:
    assert text_format({"a": 'é"\\\n', "b": [True, -1], "c": {}}) == (
        'a: "\\303\\251\\042\\134\\012"\nb: true\nb: -1\nc {\n}\n'
    )


def engine(path: Path, **changes: Any) -> Path:
    """An engine's file and its metadata file; the engine itself is made up."""
    path.write_bytes(b"engine")
    machine = engine_metadata.BuildMachine("10.16.0.1", "13.0", "NVIDIA L4", "8.9", "x86_64")
    declared = engine_metadata.EngineMetadata(
        sha256(path), 6, machine, "native", "", "", "fp16", {"FP16": 1}, (1, 8, 16), "net.onnx", "",
        metadata().to_properties(), "capsedge build",
    )  # fmt: skip
    engine_metadata.write(path, replace(declared, **changes))
    return path


def test_an_engine(tmp_path: Path) -> None:
    made = capsedge.deploy_triton(engine(tmp_path / "net.engine"), tmp_path / "r")
    found = config(tmp_path / "r", "net")
    assert (found["backend"], found["platform"]) == ("tensorrt", "tensorrt_plan")
    assert found["max_batch_size"] == 16
    assert found["dynamic_batching"]["preferred_batch_size"] == [8]
    assert found["instance_group"] == [{"count": 1, "kind": "KIND_GPU", "gpus": [0]}]
    assert (tmp_path / "r/net/1/model.plan").read_bytes() == b"engine"
    assert "TensorRT 10.16.0.1 and a NVIDIA L4" in made.notes[0]


def test_engines_that_differ(tmp_path: Path) -> None:
    fixed = engine(tmp_path / "fixed.engine", batch=(8, 8, 8))
    fused = engine(tmp_path / "fused.engine", plugin="fused")
    made = capsedge.deploy_triton([fixed, fused], tmp_path / "r", preferred_batches=(4,))
    assert [m.max_batch for m in made.models] == [0, 16]
    assert config(tmp_path / "r", "fused")["dynamic_batching"]["preferred_batch_size"] == [4]
    assert "LD_PRELOAD" in made.notes[-1]
    with pytest.raises(UsageError, match="runs on a GPU"):
        capsedge.deploy_triton(fused, tmp_path / "r", device="cpu")
    rtx = engine(tmp_path / "rtx.engine", target="tensorrt-rtx", compute_capabilities=("8.9",))
    with pytest.raises(UnsupportedModelError, match="TensorRT-RTX"):
        capsedge.deploy_triton(rtx, tmp_path / "r")
    fused.write_bytes(b"others")
    with pytest.raises(ArtefactError, match="not the engine"):
        capsedge.deploy_triton(fused, tmp_path / "r")


def test_a_file_without_bodies(tmp_path: Path) -> None:
    net = save(capsule_model(function=False), tmp_path / "net.onnx")
    if LIBRARY is not None:
        made = capsedge.deploy_triton(net, tmp_path / "r")
        assert [m.name for m in made.models] == ["net"]  # no twin: it could not run
    for options in ({"ops": "portable"}, {"device": "cuda"}):
        with pytest.raises(EnvironmentProblem, match="no function body"):
            capsedge.deploy_triton(net, tmp_path / "r", **options)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "No model"),
        (["digits-emm"], {}, "Did you mean"),
        (["missing.onnx"], {}, "There is no file"),
        ([EM], {"max_batch": 0}, "Invalid max_batch 0"),
        ([EM], {"queue_delay": -1}, "Invalid queue_delay -1"),
        ([EM], {"instances": 0}, "Invalid instances 0"),
        ([EM], {"threads": 0}, "Invalid threads 0"),
        ([EM], {"preferred_batches": [64]}, "preferred batch cannot be 64"),
        ([EM], {"ops": "fast"}, "one of: auto"),
        ([EM], {"mount": "models"}, "cannot see the repository"),
        ([EM], {"mount": '/a"b'}, "cannot see the repository"),
        ([EM], {"mount": "/a/../b"}, "cannot see the repository"),
    ],
)
def test_refused(given: list[str], options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        capsedge.deploy_triton(given, tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    words = ["deploy", "triton", EM, "-o", str(tmp_path / "r"), "--ops", "portable"]
    assert run([*words, "--set", "preferred_batches=8,4", "--json"], monkeypatch) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["models"][0]["max_batch"] == 32
    assert config(tmp_path / "r", EM)["dynamic_batching"]["preferred_batch_size"] == [4, 8]
    assert run(words, monkeypatch) == 0
    assert "portable operators, cpu, batches up to 32" in capsys.readouterr().out
    assert run([*words, "--set", "preferred_batches=x"], monkeypatch) == 2
    assert "Invalid --set preferred_batches=x" in capsys.readouterr().err
