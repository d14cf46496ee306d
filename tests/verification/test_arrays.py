"""``verify`` of files that do not take images: several inputs, whole numbers, free sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch", reason="the reference: pip install 'capsedge[export]'")

from torch import Tensor, nn  # noqa: E402

import capsedge  # noqa: E402
from capsedge.errors import ArtefactError, ShapeError, UsageError  # noqa: E402
from capsedge.runtime.backends.backend import Port  # noqa: E402
from capsedge.verification.sample_inputs import SEVERAL, array_runs, lengths_to_try  # noqa: E402


class Words(nn.Module):
    """Words and a weight for each: whole numbers below 9, and floats of the same free length."""

    def __init__(self, seed: int = 5) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(9, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, weights: Tensor, words: Tensor) -> dict[str, Tensor]:
        found = self.last((self.table(words) * weights[..., None]).mean(1))
        return {"scores": found, "largest": found.argmax(-1)}


class Pair(nn.Module):
    """Two inputs of floats."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.gain = gain
        self.layer = nn.Linear(5, 4)

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        return self.layer(vector) + self.gain * image.mean((2, 3))


def words(count: int = 21, length: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "words": rng.integers(0, 9, (count, length)),
        "weights": rng.random((count, length), np.float32),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("arrays")
    paths = {name: folder / f"{name}.onnx" for name in ("words", "pair", "fixed")}
    given = {name: torch.from_numpy(value) for name, value in words(3).items()}
    capsedge.export(Words(), paths["words"], example=(given["weights"], given["words"]))
    example = (torch.rand(2, 4, 3, 3), torch.rand(2, 5))
    capsedge.export(Pair(), paths["pair"], example=example)
    capsedge.export(Pair(), paths["fixed"], example=example, batch=3)
    return paths


def test_random_values_and_hard_cases(files: dict[str, Path]) -> None:
    made = capsedge.verify(Pair(), files["pair"], limit=20)
    assert made.passed, made.failures
    assert made.samples["images"] == 20
    kinds = {"normal", "zero", "tiny", "huge", "equal", "spike", "mixed"}
    assert set(made.hard_cases["names"]) == kinds
    failed = capsedge.verify(Pair(1.001), files["pair"])
    assert "on the samples" in " ".join(failed.failures)
    assert failed.routing_errors is None


def test_own_inputs_by_name(files: dict[str, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **words())
    made = capsedge.verify(Words(), files["words"], inputs=tmp_path / "data.npz")
    assert made.passed, made.failures
    assert made.samples["source"] == "data.npz"
    assert [o["name"] for o in made.samples["outputs"]] == ["scores", "largest"]
    assert made.samples["outputs"][1]["elements"] == 21
    assert "huge" not in made.hard_cases["names"]  # beyond the range of the weights
    assert json.dumps(made.to_dict(), allow_nan=False)
    assert not capsedge.verify(Words(7), files["words"], inputs=words()).passed
    swapped = words()
    swapped["weights"] = swapped["weights"][::-1].copy()
    assert (
        capsedge.verify(Words(), files["words"], inputs=swapped).samples["sha256"]
        != made.samples["sha256"]
    )


def test_no_hard_case_within_the_range(files: dict[str, Path]) -> None:
    given = {name: value[:4] for name, value in words().items()}
    given["weights"] = np.full_like(given["weights"], 3.0)
    made = capsedge.verify(Words(), files["words"], inputs=given)
    assert made.passed, made.failures
    assert made.hard_cases["names"] == []


@pytest.mark.parametrize(("name", "sizes"), [("pair", [1, SEVERAL, 3]), ("fixed", [3] * 6 + [2])])
def test_one_at_a_time_and_several(files: dict[str, Path], name: str, sizes: list[int]) -> None:
    session = capsedge.load(files[name])
    rng = np.random.default_rng(1)
    image, vector = (rng.random((20, *s), np.float32) for s in ((4, 3, 3), (5,)))
    data = capsedge.datasets.ImageSet("", image, others={"vector": vector})
    runs = list(array_runs(session, data))
    assert [len(found["output"]) for _, found in runs] == sizes
    np.testing.assert_array_equal(np.concatenate([inputs[1] for inputs, _ in runs]), vector)


@pytest.mark.parametrize(
    ("file", "options", "error", "message"),
    [
        (
            "words",
            {"inputs": {"words": words()["words"]}},
            UsageError,
            "has no arrays under the names of the model's inputs",
        ),
        (
            "words",
            {"inputs": {**words(), "words": words(3)["words"]}},
            UsageError,
            "different numbers",
        ),
        ("words", {"inputs": {**words(), "words": np.ones((21, 7))}}, UsageError, "holds float64"),
        ("words", {"inputs": {**words(), "weights": np.ones((21, 3, 7))}}, ShapeError, "1, 3, 7"),
        (
            "words",
            {"inputs": {**words(), "words": 9 + words()["words"]}},
            UsageError,
            "'words' has an index that its table does not have",
        ),
        ("pair", {"data": "x.npz"}, ArtefactError, "does not take images"),
        ("pair", {"data": "x.npz", "inputs": "x.npz"}, UsageError, "cannot be used together"),
    ],
)
def test_refused(
    files: dict[str, Path], file: str, options: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        capsedge.verify(Words() if file == "words" else Pair(), files[file], **options)


def test_whole_numbers_are_drawn_within_the_table(files: dict[str, Path]) -> None:
    made = capsedge.verify(Words(), files["words"])
    assert made.passed, made.failures
    assert made.samples["images"] == 64
    assert not capsedge.verify(Words(7), files["words"]).passed


def test_a_file_that_takes_nothing_that_is_drawn(tmp_path: Path) -> None:
    at = helper.make_tensor_value_info("at", TensorProto.INT64, ["N"])
    stored = [
        numpy_helper.from_array(np.array(value), name)
        for name, value in {"five": 5, "three": [3], "one": [0]}.items()
    ]
    nodes = [
        helper.make_node("Expand", ["one", "three"], ["table"]),
        helper.make_node("Add", ["at", "five"], ["beyond"]),
        helper.make_node("Gather", ["table", "beyond"], ["y"]),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.INT64, ["N"])
    graph = helper.make_graph(nodes, "g", [at], [result], stored)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="cannot be drawn") as caught:
        capsedge.verify(nn.Identity(), tmp_path / "m.onnx")
    assert "inputs='data.npz'" in str(caught.value)


def test_lengths_that_are_tried() -> None:
    """Several first differ; a network that adds the histories takes equal ones only."""
    ports = [
        Port(name, ("N", length), "int64") for name, length in (("a", "L"), ("b", "L"), ("c", "L2"))
    ]
    assert list(lengths_to_try([Port("a", ("N", 3), "int64")])) == [{}]
    assert [sizes["L"] for sizes in lengths_to_try(ports[:2])] == [50, 7, 2, 1]
    tried = [(sizes["L"], sizes["L2"]) for sizes in lengths_to_try(ports)]
    assert tried[:4] == [(50, 47), (50, 50), (7, 4), (7, 7)]
