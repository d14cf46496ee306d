"""The decoder alone: ``Session.decode``, and the part of a file that it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capsedge
from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.session.decoder import Decoder, SubgraphError, extract_subgraph
from capsedge.runtime.zoo import default_model, samples_folder
from tests.runtime.models import capsule_model, save

ZOO = default_model()


@pytest.fixture(scope="module")
def digits() -> capsedge.Session:
    return capsedge.load("digits-dynamic", threads=1)


@pytest.fixture(scope="module")
def images() -> list[Path]:
    return [samples_folder() / f"digit-{k}.png" for k in range(10)]


@pytest.fixture(scope="module")
def poses(digits: capsedge.Session, images: list[Path]) -> np.ndarray:
    return np.stack([found.poses for found in digits.predict(images)])


def test_found_poses_give_the_reconstruction(digits, images, poses):
    assert np.array_equal(digits.decode(poses), digits.reconstruct(images))


def test_one_image_without_its_axis(digits, poses):
    assert np.array_equal(digits.decode(poses[3]), digits.decode(poses[3:4]))


def test_a_perturbed_pose_changes_its_class_alone(digits, poses):
    """Sabour et al. 2017, fig. 4."""
    other = poses.copy()
    other[:, 3, 5] += 0.25
    changed = (digits.decode(other) != digits.decode(poses)).any(axis=(2, 3, 4))
    assert changed[:, 3].all()
    assert not np.delete(changed, 3, axis=1).any()


@pytest.mark.parametrize(
    "classes", [np.arange(10), np.full(10, 7), np.array([1, 1, 2, 1, 0, 9, 9, 3, 4, 1], np.int8)]
)
def test_poses_of_single_classes(digits, poses, classes):
    rows = np.arange(10)
    found = digits.decode(poses[rows, classes], classes)
    assert found.shape == (10, 1, 28, 28)
    np.testing.assert_allclose(found, digits.decode(poses)[rows, classes], rtol=0, atol=1e-6)


def test_one_class_for_all_poses(digits, poses):
    assert np.array_equal(digits.decode(poses[:, 4], 4), digits.decode(poses[:, 4], np.full(10, 4)))
    assert digits.decode(poses[0, 4], 4).shape == (1, 1, 28, 28)
    assert np.array_equal(digits.decode(poses[:2].tolist()), digits.decode(poses[:2]))


def test_more_poses_than_one_run_takes(digits, poses):
    many = np.concatenate([poses] * 15)
    np.testing.assert_allclose(
        digits.decode(many), np.concatenate([digits.decode(poses)] * 15), rtol=0, atol=1e-6
    )


def test_from_several_threads():
    session = capsedge.load("digits-dynamic", threads=1)
    poses = np.full((1, 10, 16), 0.1, np.float32)
    found: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: found.append(session.decode(poses))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.parametrize(
    ("given", "classes", "error", "says"),
    [
        (np.zeros((1, 9, 16)), None, ShapeError, r"Expected: \[N, 10, 16\]"),
        (np.zeros((1, 10, 16)), 3, ShapeError, r"Expected: \[N, 16\]"),
        (np.full((10, 16), np.nan), None, UsageError, "NaN"),
        (np.zeros((0, 10, 16)), None, UsageError, "no poses"),
        ([["a"]], None, UsageError, "not an array of numbers"),
        (np.zeros((2, 16)), 10, UsageError, "from 0 to 9"),
        (np.zeros((2, 16)), -1, UsageError, "from 0 to 9"),
        (np.zeros((2, 16)), [1, 2, 3], UsageError, "there are 2 poses"),
        (np.zeros((2, 16)), [1.0, 2.0], UsageError, "whole numbers"),
    ],
)
def test_what_is_no_pose(digits, given, classes, error, says):
    with pytest.raises(error, match=says):
        digits.decode(given, classes)


def test_a_file_without_a_decoder():
    with pytest.raises(UsageError, match="trained without a decoder"):
        capsedge.load("digits-em").decode(np.zeros((1, 10, 16)))


def test_a_closed_session():
    session = capsedge.load("digits-dynamic")
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.decode(np.zeros((10, 16)))


def test_pictures_that_depend_on_lengths_of_poses(tmp_path: Path):
    session = capsedge.load(save(capsule_model(reconstruction=True), tmp_path / "m.onnx"))
    image = np.random.default_rng(0).random((2, 8, 8), np.float32)
    poses = np.stack([found.poses for found in session.predict(image)])
    assert np.array_equal(session.decode(poses), session.reconstruct(image))


def test_a_decoder_that_reads_more_than_the_poses():
    def no_backend(_: bytes) -> NoReturn:
        raise AssertionError("opened")

    port = Port("poses", ("N", 2, 3), "float32")
    decoder = Decoder(_decoding("images"), Path("m.onnx"), port, no_backend)
    with pytest.raises(UsageError, match="not computed from 'poses' alone: it also depends on"):
        decoder.check()


def _decoding(read: str, *nodes: onnx.NodeProto, described: bool = True) -> bytes:
    """A file whose poses [N, 2, 3] are a view of a product, and whose decoder reads ``read``."""
    value = helper.make_tensor_value_info
    shape = numpy_helper.from_array(np.array([-1, 2, 3]), "shape")
    flat = numpy_helper.from_array(np.array([-1, 6]), "flat")
    weight = numpy_helper.from_array(np.arange(24, dtype=np.float32).reshape(6, 4), "weight")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["images", "square"], ["made"]),
            *nodes,
            helper.make_node("Reshape", ["made", "shape"], ["poses"]),
            helper.make_node("Reshape", [read, "flat"], ["row"]),
            helper.make_node("MatMul", ["row", "weight"], ["reconstruction"]),
        ],
        "decoding",
        [value("images", TensorProto.FLOAT, ["N", 6])],
        [
            value("poses", TensorProto.FLOAT, ["N", 2, 3]),
            value("reconstruction", TensorProto.FLOAT, ["N", 4]),
        ],
        [shape, flat, weight, numpy_helper.from_array(np.eye(6, dtype=np.float32), "square")],
        value_info=[value("made", TensorProto.FLOAT, ["N", 6])] if described else [],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], producer_name="test"
    )
    model.ir_version = 10
    model.metadata_props.add(key="note", value="left behind")
    return model.SerializeToString()


@pytest.mark.parametrize("read", ["poses", "made"])
def test_a_part_has_what_it_needs_and_no_more(read: str):
    part = onnx.load_from_string(extract_subgraph(_decoding(read), "poses", "reconstruction"))
    onnx.checker.check_model(part, full_check=True)
    assert [i.name for i in part.graph.input] == [read]
    assert {i.name for i in part.graph.initializer} == {"flat", "weight"}
    assert [n.op_type for n in part.graph.node] == ["Reshape", "MatMul"]
    assert not part.metadata_props
    assert part.producer_name == "test"


def test_a_value_without_a_shape_that_is_only_reshaped():
    """As in quantized files, whose values are not described."""
    part = onnx.load_from_string(
        extract_subgraph(_decoding("made", described=False), "poses", "reconstruction")
    )
    onnx.checker.check_model(part, full_check=True)
    assert [i.name for i in part.graph.input] == ["made"]
    sizes = part.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in sizes] == ["N", 2, 3]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda: _decoding("images"), "depends on 'images'"),
        (
            lambda: _decoding(
                "used", helper.make_node("Relu", ["made"], ["used"]), described=False
            ),
            "does not state the shape of 'made'",
        ),
        (
            lambda: _decoding(
                "branch",
                helper.make_node(
                    "If",
                    ["images"],
                    ["branch"],
                    then_branch=helper.make_graph([], "then", [], []),
                    else_branch=helper.make_graph([], "else", [], []),
                ),
            ),
            "holds a graph",
        ),
    ],
)
def test_what_cannot_be_cut(data: Callable[[], bytes], says: str):
    with pytest.raises(SubgraphError, match=says):
        extract_subgraph(data(), "poses", "reconstruction")


def test_the_file_keeps_its_bytes_and_the_part_is_smaller():
    data = ZOO.read_bytes()
    assert len(extract_subgraph(data, "poses", "reconstruction")) < len(data) / 3
