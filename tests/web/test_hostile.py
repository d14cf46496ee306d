"""Files of strangers: the package refuses what Python refuses, and never fails in another way.

Single cases are in ``spec/vectors`` and `test_vectors`; here are random ones, and messages.
"""

from __future__ import annotations

import json
import random

import pytest

onnx = pytest.importorskip("onnx")

from capsedge.errors import CapsedgeError  # noqa: E402
from capsedge.runtime.files.text import printable  # noqa: E402
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs, Preprocessing  # noqa: E402
from tests.fuzz import hostile  # noqa: E402
from tests.runtime.models import capsule_model, metadata  # noqa: E402
from tests.runtime.walking import Facts, in_python  # noqa: E402
from tests.runtime.wire import Writer, field, model, mutated  # noqa: E402

from .package import Package, Refused  # noqa: E402

CODES = {"file", "metadata", "limit", "input", "runtime"}


def in_typescript(web: Package, data: bytes) -> Facts | None:
    """What is in the file; None where it is refused."""
    error = web.refused("walk", data)
    if error is not None:
        assert error.code in CODES, str(error)
        return None
    answer, _ = web.ask("walk", data)
    return {(a, b, c) for a, b, c in answer["facts"]}


def python_facts(data: bytes) -> Facts | None:
    found = in_python(data)
    if found is None:
        return None
    return {("harmful", "", "") if fact[0] == "harmful" else fact for fact in found}


def check(web: Package, data: bytes) -> bool:
    """Both read the same. True if they take the file."""
    wanted = python_facts(data)
    assert in_typescript(web, data) == wanted, data[:4096].hex()
    return wanted is not None


@pytest.mark.parametrize("tricks", [0.0, 0.0005, 0.003, 0.03])
def test_random_files(web: Package, tricks: float) -> None:
    taken = sum(check(web, Writer(seed, tricks).model()) for seed in range(200))
    assert taken == 200 if tricks == 0 else taken < 200


def test_mutated_files(web: Package) -> None:
    seeds = [capsule_model().SerializeToString()] + [Writer(s, 0.0).model() for s in range(6)]
    taken = [check(web, data) for data in mutated(seeds, 800)]
    assert any(taken)
    assert not all(taken)
    for data in mutated(seeds, 200, seed=2):
        error = web.refused("checkFile", data)
        assert error is None or error.code in CODES, str(error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(100), "it is a zip archive, such as a PyTorch checkpoint"),
        (b"\x30\0\0\0\0\0\0\0{" + b" " * 47 + bytes(9), "other weights .safetensors."),
        (b"<!DOCTYPE html><title>404</title>", "it is a web page"),
        (b"\x18\0\0\0ORTM" + bytes(40), "ONNX Runtime's own format"),
        (b"\x08\x0a\x12" + b"\xff" * 40, "not a complete ONNX file"),
        (model(field(1, b"") * 100_001), "more than 100,000 nodes"),
        (model(field(13, b"") * 500_001), "more than 500,000 messages"),
        (model(field(1, field(4, b"Relu")), b"\x42\x00" * 4_000_001), "more than"),
        (capsule_model(function=False).SerializeToString(), "no function body"),
        (capsule_model(properties={}).SerializeToString(), "neither its classes"),
    ],
    ids=[
        "empty",
        "zip",
        "weights",
        "web page",
        "ort",
        "cut off",
        "nodes",
        "messages",
        "fields",
        "bodies",
        "no metadata",
    ],
)
def test_what_is_refused_in_words(web: Package, data: bytes, message: str) -> None:
    with pytest.raises(Refused, match=message) as error:
        web.ask("checkFile", data)
    assert error.value.hint


def test_a_file_over_the_callers_limit(web: Package) -> None:
    data = capsule_model().SerializeToString()
    with pytest.raises(Refused, match="the limit is 1,000") as error:
        web.load(data, limits={"fileBytes": 1000})
    assert error.value.code == "limit"


def test_hostile_files(web: Package) -> None:
    for name, data in hostile.onnx().items():
        error = web.refused("load", data, id=0)
        assert error is not None, name
        assert error.code in CODES, f"{name}: {error}"


def refused_in_python(properties: dict[str, str]) -> bool:
    try:
        ModelMetadata.from_properties(properties)
    except CapsedgeError:
        return True
    return False


def refused_in_typescript(web: Package, properties: dict[str, str]) -> bool:
    error = web.refused("metadata", properties=list(properties.items()))
    assert error is None or error.code in ("metadata", "limit"), str(error)
    return error is not None


ORIGIN = {
    "family": "a", "source": "b", "licence": "", "dialect": "c", "differences": ["d"], "file": "e",
    "file_sha256": "f",
}  # fmt: skip
SPAN = [0.1, 0.5]
TYPICAL_INPUT = {
    "contrast": SPAN, "level": SPAN, "roughness": SPAN, "frame_level": SPAN, "frame_contrast": SPAN,
}  # fmt: skip
PARENT = {"file": "a", "sha256": "b", "bytes": 1}
CASCADE = {
    "small": PARENT, "large": PARENT, "margin": 0.1, "score": None, "min_agreement": 0.9, "agreement": 1,
    "agreement_at_least": 0.9, "share": 0.2, "images": 10, "data_sha256": "", "cost": 0.3,
}  # fmt: skip
LAYER = {
    "name": "classes", "routing": "dynamic", "iterations": 3,
    "outputs": {"couplings": "a", "poses": "b", "agreement": "c"}, "types_first": True,
}  # fmt: skip
OBJECTS = {
    "capsedge.origin": ORIGIN,
    "capsedge.typical_input": TYPICAL_INPUT,
    "capsedge.cascade": CASCADE,
    "capsedge.trace": {"layers": [LAYER]},
    "capsedge.chosen_scores": {"reason": "a", "made_of": "b", "classes": 3, "capsules": True},
}
STRANGE = (
    None, True, 0, -1, 1.5, 2**31, 2**53, 2**63, 10**30, "", "x", "x" * 1025, "x" * 4097, "\x1b[2J", [],
    [1], [1, 2], [2, 1], [0.5, 0.1], ["a"] * 257, {}, {"a": 1}, float("nan"), float("inf"), "em", "sigmoid",
    "NHWC", "BGR", "regression", "multi-label", "logits", "standardize",
)  # fmt: skip


def variants(r: random.Random, value: object) -> object:
    """The value with one part of it strange, missing or doubled."""
    if isinstance(value, dict) and value and r.random() < 0.85:
        key = r.choice(sorted(value))
        kind = r.random()
        if kind < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.25:
            return {**value, "surprise": 1}
        return {**value, key: variants(r, value[key])}
    if isinstance(value, list) and value and r.random() < 0.6:
        at = r.randrange(len(value))
        return [*value[:at], variants(r, value[at]), *value[at + 1 :]]
    return r.choice(STRANGE)


@pytest.mark.thorough
def test_metadata_with_one_strange_part(web: Package) -> None:
    """Python and TypeScript take and refuse the same of 1,500."""
    r = random.Random(3)
    outputs = Outputs(scores="probs", kind="probability", poses="poses")
    angles = Outputs(values=("angles",), names=("yaw", "pitch"), units=("degrees", ""))
    seeds = [
        metadata().to_properties(),
        metadata(
            preprocessing=Preprocessing(8, 8, 3, mean=(0.1, 0.2, 0.3), order="BGR", layout="NHWC"),
            outputs=outputs,
        ).to_properties(),
        metadata(task="regression", class_names=(), outputs=angles).to_properties(),
    ]
    texts = {name: json.dumps(value) for name, value in OBJECTS.items()}
    refused = 0
    for _ in range(1500):
        properties = {**r.choice(seeds), **(texts if r.random() < 0.8 else {})}
        key = r.choice(sorted(properties))
        properties[key] = json.dumps(variants(r, json.loads(properties[key])))
        wanted = refused_in_python(properties)
        assert refused_in_typescript(web, properties) == wanted, (key, properties[key])
        refused += wanted
    assert 300 < refused < 1450


def test_every_text_of_a_description_is_printable(web: Package) -> None:
    said = metadata(class_names=("a\x1b[2J", "b\u202e", "c"), architecture="x\ny").to_properties()
    said["capsedge.origin"] = json.dumps({**ORIGIN, "file": "\x1b]0;", "notes": ["a\u202eb"]})
    data = capsule_model(properties=said).SerializeToString()
    session = web.load(data)
    text = json.dumps(session.known["description"], ensure_ascii=False)
    assert printable(text) == text
    assert session.known["description"]["labels"] == ["a\\x1b[2J", "b\\u202e", "c"]
    session.close()
