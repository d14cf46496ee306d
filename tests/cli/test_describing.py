"""The options that state what a file says of itself, through `optimize`, `export` and `infer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from capsedge.cli._options import MetadataOptions  # noqa: E402
from capsedge.errors import UsageError  # noqa: E402
from capsedge.runtime.description_fields import FIELDS, class_names  # noqa: E402
from capsedge.runtime.load import load  # noqa: E402
from capsedge.runtime.metadata.metadata import Outputs, Preprocessing  # noqa: E402
from capsedge.runtime.user_metadata import Description  # noqa: E402
from capsedge.spec.vocabularies import DESCRIPTION_FIELDS  # noqa: E402
from tests.cli.running import capsedge  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.runtime.models import capsule_model, foreign_model, save  # noqa: E402

IMAGE = ROOT / "capsedge/zoo/samples/digit-7.png"


def stated(**given: Any) -> dict[str, Any]:
    """What a mapping of fields describes, without what it leaves out."""
    found = vars(Description.of(given))
    return {name: value for name, value in found.items() if value is not None}


def test_every_field_is_read() -> None:
    assert tuple(FIELDS) == DESCRIPTION_FIELDS


def test_no_field_states_nothing() -> None:
    assert stated() == {}
    assert not Description.of(None)


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({"size": "28x20"}, {"height": 28, "width": 20}),
        ({"range": "0-255"}, {"scale": 1.0, "mean": (0.0,), "std": (1.0,)}),
        ({"range": "-1-1"}, {"scale": 2 / 255, "mean": (1.0,), "std": (1.0,)}),
        ({"mean": "0.5,1"}, {"scale": 1 / 255, "mean": (0.5, 1.0), "std": (1.0,)}),
        (
            {"range": "-1-1", "mean": "0.5", "std": "2"},
            {"scale": 2 / 255, "mean": (1.5,), "std": (2.0,)},
        ),
        ({"per_image": "min-max"}, {"per_image": "min-max"}),
        (
            {"per_image": "standardize", "resize": "pad"},
            {"per_image": "standardize", "resize": "pad", "mean": (0.0,), "std": (1.0,)},
        ),
    ],
)
def test_preprocessing(given: dict[str, str], changes: dict[str, Any]) -> None:
    assert stated(**given) == {"preprocessing": changes}


@pytest.mark.parametrize(
    ("span", "low", "high"), [("0-1", 0.0, 1.0), ("0-255", 0.0, 255.0), ("-1-1", -1.0, 1.0)]
)
def test_range_is_that_of_the_input(span: str, low: float, high: float) -> None:
    from capsedge.runtime.images.preprocessing import prepare

    p = Preprocessing(1, 2, 1, **stated(range=span)["preprocessing"])
    found = prepare(np.array([[0, 255]], np.uint8), p)
    assert np.allclose(found, [[[low, high]]], atol=1e-6)


def test_one_class() -> None:
    """A single word is no file; what looks like one is."""
    assert stated(classes="lung")["class_names"] == ["lung"]
    for path in ("lungs.txt", "data/lung"):
        with pytest.raises(UsageError, match="There is no file"):
            stated(classes=path)


def test_outputs() -> None:
    found = stated(task="regression", outputs="yaw, pitch", units="degrees", values="a,b")
    names = Outputs(values=("a", "b"), names=("yaw", "pitch"), units=("degrees",))
    assert found == {"task": "regression", "outputs": names}
    found = stated(scores="s", score_kind="logits", poses="p")
    assert found == {"outputs": Outputs(scores="s", kind="logits", poses="p")}
    assert stated(units="mm,,s")["outputs"].units == ("mm", "", "s")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task": "guess"}, "Invalid task guess"),
        ({"size": "28"}, "Invalid size"),
        ({"size": "0x28"}, "Invalid size"),
        ({"size": "28x28x1"}, "Invalid size"),
        ({"size": "²8x28"}, "Invalid size"),
        ({"range": "0-2"}, "Invalid range"),
        ({"mean": "a"}, "Invalid mean"),
        ({"mean": ""}, "Invalid mean"),
        ({"mean": "nan"}, "Invalid mean"),
        ({"std": "inf"}, "Invalid std"),
        ({"std": "1,0,1"}, "Invalid std 0"),
        ({"per_image": "whiten"}, "Invalid per_image"),
        ({"per_image": "standardize", "std": "2"}, "std cannot be used together"),
        ({"per_image": "standardize", "range": "0-1"}, "range cannot be used together"),
        ({"resize": "squeeze"}, "Invalid resize"),
        ({"score_kind": "odds"}, "Invalid score_kind"),
        ({"outputs": "a,,b"}, "Invalid outputs"),
        ({"values": ","}, "Invalid values"),
        ({"scores": 3}, "Invalid scores 3"),
        ({"size": [28, 28, 1]}, "Invalid size"),
        ({"size": [True, 28]}, "Invalid size"),
        ({"mean": [0.5, "x"]}, "Invalid mean"),
        ({"mean": True}, "Invalid mean"),
        ({"units": 3}, "Invalid units 3"),
        ({"typical_data": []}, "Invalid typical_data"),
        ({"class_names": ["a"]}, "has no field class_names"),
        ({"classes": Path("nowhere.txt")}, "There is no file"),
        ({"classes": Path("a,,b")}, "name 2 is empty"),
        ({"classes": Path("a,\x1b[31m")}, "cannot be printed"),
    ],
)
def test_wrong_values(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        stated(**given)
    assert said in refused.value.what


TOML = """
classes = "labels.txt"
size = [28, 20]
range = "0-255"
mean = [1, 2.5]
resize = "pad"
typical_data = "photos"
"""


def test_a_file(tmp_path: Path) -> None:
    """Paths in it are relative to it; the same as a mapping, and as options."""
    (tmp_path / "net.toml").write_text(TOML)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    wanted = {
        "class_names": ["a", "b"],
        "preprocessing": {
            "height": 28, "width": 20, "scale": 1.0, "mean": (1.0, 2.5), "std": (1.0,), "resize": "pad",
        },
        "typical": tmp_path / "photos",
    }  # fmt: skip
    for given in (tmp_path / "net.toml", str(tmp_path / "net.toml")):
        assert {k: v for k, v in vars(Description.of(given)).items() if v is not None} == wanted
    file = str(tmp_path / "net.toml")
    options = MetadataOptions(describe=(file, "units=mm,s", "resize=crop"), size="8x9", mean="3")
    found = options.description(Path("typical"))
    assert found.typical == Path("typical")
    assert found.class_names == ["a", "b"]
    assert found.outputs == Outputs(units=("mm", "s"))
    changes = found.preprocessing
    assert isinstance(changes, dict)
    assert (changes["height"], changes["mean"], changes["resize"]) == (8, (3.0,), "crop")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("classes = [", "is not TOML"),
        ('task = "guess"', "net.toml: Invalid task guess"),
        ("colour = 3", "net.toml: A description has no field colour"),
        ("[size]\nheight = 3", "net.toml: Invalid size"),
        ("mean = inf", "is not TOML"),
        ("task = 2026-01-01", "is not TOML"),
        ("mean = " + "[" * 5000, "is not TOML"),
        ("#" + "x" * (9 << 20), "is not TOML"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "net.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        Description.of(file)
    assert said in refused.value.what
    run = capsedge("optimize", ROOT / "capsedge/zoo/digits-em.onnx", "--describe", file)
    assert (run.returncode, said in run.stderr) == (2, True), run.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--describe", "color=BGR"], "Invalid --describe color=BGR."),
        (["--describe", "nowhere.toml"], "Cannot read nowhere.toml."),
        (["--describe", "order=RBG"], "Invalid order RBG."),
        (["--size", "28"], "Invalid --size '28'."),
        (
            ["--describe", "per_image=standardize", "--range", "0-1"],
            "range cannot be used together",
        ),
    ],
)
def test_options_that_are_refused(words: list[str], said: str) -> None:
    run = capsedge("optimize", ROOT / "capsedge/zoo/digits-em.onnx", *words)
    assert run.returncode == 2
    assert said in run.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a\nb b\nGröße\n", ["a", "b b", "Größe"]),
        ("\ufeffa\r\nb\r\n\n", ["a", "b"]),
        ("a,b\nc\n", ["a,b", "c"]),
        ("a\n\nb\n", None),
        ("\n", None),
        ("", None),
    ],
)
def test_files_of_classes(tmp_path: Path, content: str, names: list[str] | None) -> None:
    path = tmp_path / "labels.txt"
    path.write_text(content, "utf-8")
    if names is not None:
        assert class_names(path) == names
        return
    with pytest.raises(UsageError, match=r"is empty|contains no class names"):
        class_names(path)


def test_files_that_are_no_list(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        class_names(path)
    path.write_bytes(b"a\n" * (5 << 20))
    with pytest.raises(UsageError, match="too large"):
        class_names(path)
    with pytest.raises(UsageError, match="It is a folder"):
        class_names(tmp_path)


@pytest.mark.thorough
def test_the_error_of_infer_leads_to_a_file_that_infers(tmp_path: Path) -> None:
    foreign = save(foreign_model({"out": [3]}, kinds={"out": "Softmax"}), tmp_path / "my file.onnx")
    run = capsedge("infer", "--model", foreign, IMAGE)
    assert run.returncode == 6
    assert f"capsedge optimize '{foreign}' -o described.onnx" in run.stderr
    assert "--size 8x8" in run.stderr
    before = onnx.load(foreign).graph.SerializeToString()
    labels = tmp_path / "labels.txt"
    labels.write_text("left\nright\nnone\n")
    run = capsedge(
        "optimize", foreign, "-o", tmp_path / "new.onnx", "--classes", labels, "--size", "8x8"
    )
    assert run.returncode == 0, run.stderr
    assert "scores (probabilities) in out, no poses" in run.stdout
    assert onnx.load(tmp_path / "new.onnx").graph.SerializeToString() == before
    run = capsedge("infer", "--model", tmp_path / "new.onnx", IMAGE, "--json")
    assert run.returncode == 0, run.stderr
    [image] = json.loads(run.stdout)["images"]
    assert image["score_kind"] == "probability"
    assert image["labels"][0]["label"] in ("left", "right", "none")


def test_a_file_of_ours_changes_its_metadata_alone(tmp_path: Path) -> None:
    path = save(capsule_model(), tmp_path / "ours.onnx")
    new = tmp_path / "new.onnx"
    run = capsedge("optimize", path, "-o", new, "--classes", "x,y,z", "--range", "-1-1", "--json")
    assert run.returncode == 0, run.stderr
    old, changed = onnx.load(path), onnx.load(new)
    del old.metadata_props[:], changed.metadata_props[:]
    assert old.SerializeToString() == changed.SerializeToString()
    metadata = load(new).metadata
    assert metadata is not None
    assert metadata.class_names == ("x", "y", "z")
    assert metadata.preprocessing == Preprocessing(8, 8, 1, scale=2 / 255, mean=(1.0,))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--classes", "a,b"], "could hold the scores of 2 classes"),
        (["--mean", "1,2,3"], "mean has 3 values for 1 channels"),
        (["--classes", "a,b,c", "--describe", "outputs=yaw,pitch,roll"], "belong to a regression"),
    ],
)
def test_what_does_not_fit_writes_nothing(tmp_path: Path, words: list[str], said: str) -> None:
    path = save(foreign_model({"out": [3]}), tmp_path / "f.onnx")
    run = capsedge("optimize", path, "-o", tmp_path / "new.onnx", *words)
    assert run.returncode == 2, run.stderr
    assert said in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "new.onnx").exists()


@pytest.mark.thorough
def test_table_and_json_of_a_regression(tmp_path: Path) -> None:
    path = save(foreign_model({"out": [2]}), tmp_path / "f.onnx")
    new = tmp_path / "new.onnx"
    options = ("--describe", "outputs=yaw,depth", "--describe", "units=degrees,mm", "--size", "8x8")
    run = capsedge("optimize", path, "-o", new, *options)
    assert run.returncode == 0, run.stderr
    yaw, depth = (value.value for value in load(new).predict(IMAGE)[0].values)
    run = capsedge("infer", "--model", new, IMAGE)
    assert f"yaw {yaw:.4g}°, depth {depth:.4g} mm" in run.stdout
    run = capsedge("infer", "--model", new, IMAGE, "--json")
    assert json.loads(run.stdout)["images"][0]["values"] == [
        {"name": "yaw", "value": yaw, "unit": "degrees"},
        {"name": "depth", "value": depth, "unit": "mm"},
    ]
    for words in (("--top", "2"), ("--reconstruct", tmp_path / "r.png")):
        run = capsedge("infer", "--model", new, IMAGE, *words)
        assert run.returncode == 2, run.stderr
        assert "Traceback" not in run.stderr
    inspected = capsedge("inspect", new).stdout
    assert "yaw (degrees), depth (mm) in out" in inspected


@pytest.mark.thorough
def test_export_takes_the_same_options(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "d.onnx"
    names = ",".join(f"digit {k}" for k in range(10))
    words = ("export", "-o", path, "--task", "multi-label", "--describe", "resize=pad")
    run = capsedge(*words, "--classes", names)
    assert run.returncode == 0, run.stderr
    metadata = load(path).metadata
    assert metadata is not None
    assert (metadata.task, metadata.class_names[3]) == ("multi-label", "digit 3")
    assert metadata.preprocessing == Preprocessing(28, 28, 1, resize="pad")
    assert metadata.parity["comparisons"] > 0
