"""A batch that a file is fixed at becomes free where that is so, and stays with its reason elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch
from click.testing import CliRunner
from torch import Tensor

import capsedge
from capsedge.cli import app
from capsedge.graph.fusion import free_axes
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.optimize_graph import OptimizedGraph, optimize_model
from capsedge.graph.fusion.values import Values
from tests.graph.fusion import attention_writings as A  # noqa: N812
from tests.graph.fusion import dynamic_writings as D  # noqa: N812
from tests.graph.fusion import em_writings as E  # noqa: N812
from tests.graph.fusion.making import exported

FEATURES = torch.randn(7, D.CHILDREN, D.SIZE_IN, generator=torch.Generator().manual_seed(0))


class Repeated(D.Batched):
    """``torch.cat([W] * batch)``: the weight tiled by the batch that was traced."""

    def route(self, u: Tensor) -> Tensor:
        votes = torch.matmul(torch.cat([self.w] * len(u)), u[:, None, :, :, None]).squeeze(-1)
        b = torch.zeros(len(u), D.PARENTS, D.CHILDREN, 1)
        for i in range(3):
            v = D.squash_added((b.softmax(1) * votes).sum(2))
            if i < 2:
                b = b + torch.matmul(votes, v[..., None])
        return v


class OneByOne(D.Batched):
    """A Python loop over the images, joined by ``stack``."""

    def route(self, u: Tensor) -> Tensor:
        return torch.stack([super(OneByOne, self).route(u[i][None])[0] for i in range(len(u))])


class Sliced(D.Batched):
    """A Python loop over slices of one image, joined by ``cat``; the poses masked by the longest."""

    def route(self, u: Tensor) -> Tensor:
        v = torch.cat([super(Sliced, self).route(u[i : i + 1]) for i in range(len(u))])
        longest = v.norm(dim=-1).argmax(1)
        return torch.cat([v, v * torch.eye(D.PARENTS)[longest][..., None]], 2)


class Expanded(D.Writing):
    """Constants expanded to the batch: extra capsules, start logits, positions."""

    def make(self) -> None:
        self.w = self.weight(D.PARENTS, D.CHILDREN + 1, D.SIZE_OUT, D.SIZE_IN)
        self.more = self.weight(1, D.SIZE_IN)

    def route(self, u: Tensor) -> Tensor:
        u = torch.cat([u, self.more.expand(u.shape[0], 1, D.SIZE_IN).tanh()], 1)
        votes = torch.einsum("jipq,...iq->...jip", self.w, u)
        b = torch.zeros(1, D.PARENTS, D.CHILDREN + 1).repeat(u.shape[0], 1, 1)
        for i in range(3):
            v = D.squash_added(torch.einsum("bji,bjip->bjp", b.softmax(1), votes))
            if i < 2:
                b = b + torch.einsum("bjip,bjp->bji", votes, v)
        return v.reshape(u.shape[0], -1)


def fixed(module: torch.nn.Module, batch: int, example: Tensor = FEATURES) -> onnx.ModelProto:
    return exported(module, example[:batch], free=False)


def check_rows(
    improved: OptimizedGraph, original: onnx.ModelProto, batch: int, images: Tensor
) -> None:
    """Five images at once give what each gives in the original."""
    new, old = session_of(onnx.load_from_string(improved.model)), session_of(original)
    x = images[:5].numpy()
    found = new.run(None, {"x": x})[0]
    for k in range(5):
        rows = np.concatenate([x[k : k + 1], x[: batch - 1]])
        wanted = old.run(None, {"x": rows})[0][0]
        np.testing.assert_allclose(found[k], wanted, atol=2e-6)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "writing",
    [
        Expanded,
        D.InputsFirst,
        *(
            pytest.param(writing, marks=pytest.mark.thorough)
            for writing in (Repeated, OneByOne, Sliced, D.Leaky)
        ),
    ],
)
def test_a_fixed_batch_becomes_free(writing: type[D.Writing], batch: int) -> None:
    original = fixed(writing(), batch)
    improved = optimize_model(original.SerializeToString())
    assert improved.batch == "free"
    assert [f.operator for f in improved.fusion.fused] == ["DynamicRouting"]
    assert any(f"fixed at {batch}" in note for note in improved.notes)
    check_rows(improved, original, batch, FEATURES)
    model = onnx.load_from_string(improved.model)
    assert not any(
        v.type.tensor_type.shape.dim[0].dim_value for v in (*model.graph.input, *model.graph.output)
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "writing", [pytest.param(E.WeightFirst, marks=pytest.mark.slow), A.Concurrent]
)
def test_routing_over_positions_becomes_free(writing: type) -> None:
    example = (E if writing is E.WeightFirst else A).Writing.example(5)
    original = fixed(writing(), 1, example)
    improved = optimize_model(original.SerializeToString())
    assert improved.batch == "free"
    assert improved.fusion.fused
    check_rows(improved, original, 1, example)


@pytest.mark.parametrize("writing", [Repeated, pytest.param(OneByOne, marks=pytest.mark.thorough)])
def test_a_batch_of_two_that_is_free_in_name_only_becomes_free(writing: type[D.Writing]) -> None:
    """Of two images, and one by one: the file runs at other batches, or gives rows for two images alone."""
    original = exported(writing(), FEATURES[:2])
    improved = optimize_model(original.SerializeToString())
    assert improved.batch == "free"
    assert any("the batch was free in name only" in note for note in improved.notes)


def test_a_squeeze_of_every_axis_leaves_the_batch() -> None:
    """As PyTorch exports ``x.squeeze()`` with a free batch: the file runs at any batch but 1."""
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[N, 3, 1] x) => (float[N, 3, 1] y) <int64[1] last = {2}> {
            squeezed = Squeeze(x)
            columns = Unsqueeze(squeezed, last)
            y = Mul(columns, columns)
        }
        """
    )
    with pytest.raises(Exception, match="Unsqueeze"):
        session_of(model).run(None, {"x": np.ones((1, 3, 1), np.float32)})
    improved = optimize_model(model.SerializeToString())
    assert improved.batch == "free"
    assert any("the batch was free in name only" in note for note in improved.notes)
    found = session_of(onnx.load_from_string(improved.model))
    for batch in (1, 4):
        x = np.full((batch, 3, 1), 3, np.float32)
        np.testing.assert_array_equal(found.run(None, {"x": x})[0], x * x)


def test_indices_stay_within_their_tables() -> None:
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[N, 3] x, int64[N] y) => (float[N, 3, 2] out, float[N, 4] hot)
        <float[5, 2] table = {0,1,2,3,4,5,6,7,8,9}, int64 depth = {4}, float[2] values = {0, 1}> {
            whole = Cast<to = 7>(x)
            out = Gather(table, whole)
            hot = OneHot(y, depth, values)
        }
        """
    )
    assert Values(model).tables == {"x": 5, "y": 4}
    improved = optimize_model(model.SerializeToString())
    assert improved.batch == "free"
    assert len(improved.comparisons) == 2 * 16  # none was left out


@pytest.mark.thorough
def test_a_batch_that_is_free_in_name_only_becomes_free() -> None:
    original = exported(Repeated(), FEATURES[:6])
    improved = optimize_model(original.SerializeToString())
    assert improved.batch == "free"
    check_rows(improved, original, 6, FEATURES)
    kept = optimize_model(original.SerializeToString(), batch="keep")
    assert kept.batch == "6"
    assert any("in name only" in note for note in kept.notes)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_function_of_several_images_stays_fixed(batch: int) -> None:
    improved = optimize_model(fixed(D.BatchMean(), batch).SerializeToString())
    assert improved.batch == str(batch)
    (note,) = (n for n in improved.notes if "stays fixed" in n)
    assert "across the images" in note
    assert "ReduceMean" in note


COUPLED = """<ir_version: 8, opset_import: ["": 17]> net (float[4,6] x) => (float[4,6] y)
{ t = Reshape(x, to)  s = Softmax<axis = 1>(t)  y = Reshape(s, back) }"""


def test_a_loop_over_images_without_their_axis_says_how_to_keep_it() -> None:
    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[k].square().sum(0) for k in range(len(x))])

    model = exported(Loop(), torch.rand(2, 4, 5), free=False)
    improved = optimize_model(model.SerializeToString())
    assert improved.batch == "2"
    (note,) = (n for n in improved.notes if "stays fixed" in n)
    assert "x[k : k + 1] keeps their axis" in note


def test_a_graph_that_mixes_images_in_its_views_stays_fixed() -> None:
    """``[4, 6]`` seen as ``[2, 12]``: the softmax runs over two images."""
    model = parser.parse_model(COUPLED)
    for name, shape in (("to", [2, 12]), ("back", [4, 6])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape), name))
    assert optimize_model(model.SerializeToString()).batch == "4"


def test_numbers_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A structure that is wrong is found out by running it."""

    def wrong(graph: object) -> onnx.ModelProto:
        model = right(graph)  # type: ignore[arg-type]
        mean = helper.make_node("ReduceMean", ["y/alone", "axes"], ["y/mean"])
        last = next(n for n in model.graph.node if "y" in n.output)
        last.output[0] = "y/alone"
        model.graph.node.extend([mean, helper.make_node("Sub", ["y/alone", "y/mean"], ["y/less"])])
        model.graph.node.append(helper.make_node("Add", ["y/less", "y/mean"], ["y"]))
        model.graph.node[-1].input[1] = "y/alone"
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
        return model

    right = free_axes.free_batch
    monkeypatch.setattr(free_axes, "free_batch", wrong)
    improved = optimize_model(fixed(D.Batched(), 3).SerializeToString())
    assert improved.batch == "3"
    assert any("depend on the others, or differ" in n for n in improved.notes)


@pytest.mark.thorough
def test_a_number_fixes_the_batch(tmp_path: Path) -> None:
    source, target = tmp_path / "mean.onnx", tmp_path / "one.onnx"
    onnx.save(exported(D.BatchMean(), FEATURES[:3]), source)
    words = ["optimize", str(source), "-o", str(target), "--json", "--measure", "0"]
    left = optimize_model(source.read_bytes()).fusion.not_fused
    assert "averaged over the batch" in left[0].reason
    done = CliRunner().invoke(app, [*words, "--batch", "1"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["batch"] == "1"
    assert [f["operator"] for f in report["fused"]] == ["DynamicRouting"]
    assert onnx.load(target).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


@pytest.mark.thorough
def test_a_number_that_the_file_cannot_have() -> None:
    data = fixed(D.BatchMean(), 2).SerializeToString()
    with pytest.raises(capsedge.UnsupportedModelError, match="fixed at 2"):
        optimize_model(data, batch=5)
    again = optimize_model(fixed(D.Batched(), 2).SerializeToString(), batch=5)
    assert again.batch == "5"


@pytest.mark.parametrize("word", ["0", "many", "-1"])
def test_words_that_are_no_batch(tmp_path: Path, word: str) -> None:
    source = tmp_path / "a.onnx"
    onnx.save(fixed(D.Batched(), 1), source)
    done = CliRunner().invoke(app, ["optimize", str(source), "--batch", word])
    assert isinstance(done.exception, capsedge.UsageError)
