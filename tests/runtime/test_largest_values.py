"""Inputs up to the limit stay finite in every model of the zoo; those at the limit are refused."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import capsedge
from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.session.tensors import LARGEST, checked_input
from capsedge.runtime.zoo import MODELS, zoo_model

TYPES = 4  # of capsules at most, over which a network adds up


@pytest.mark.parametrize("name", MODELS)
def test_the_largest_values_stay_finite(name: str) -> None:
    path = zoo_model(name)
    assert path is not None
    largest = np.nextafter(np.float32(2**32), np.float32(0))
    for ops in ("portable", "fused"):
        with capsedge.load(path, threads=1, ops=ops) as session:
            shape = (1, *session.inputs[0].shape[1:])
            signs = np.random.default_rng(0).choice(np.float32([-1, 1]), shape)
            one = np.zeros_like(signs)
            one[..., 14, 14] = largest
            for image in (one, np.full_like(one, largest), signs * largest):
                for output, values in session.run(image).items():
                    assert np.isfinite(values).all(), (ops, output)
            with pytest.raises(UsageError, match=r"2\^32"):
                session.run(np.where(one > 0, np.float32(2**32), one))


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_the_zoo_amplify_little(name: str) -> None:
    """The proof of the limit, as docs/reference/operators.md states it, for what squares values first.

    Squash adds up the squares of a pose of 8 or 16 elements; EM routing takes means of squared differences,
    which are up to 4 times as large as the squares. What was squashed is below 1. Quantized convolutions
    saturate.
    """
    graph = onnx.load(str(zoo_model(name))).graph
    weights = {t.name: np.abs(numpy_helper.to_array(t).astype(float)) for t in graph.initializer}
    gains: dict[str, float] = {}
    for node in graph.node:
        found = [weights[name] for name in node.input if name in weights]
        gain = max((gains.get(name, 1.0) for name in node.input), default=1.0)
        if node.op_type == "Conv":
            gain *= found[0].reshape(len(found[0]), -1).sum(axis=1).max()
        elif node.op_type == "ConvTranspose":
            gain *= found[0].sum(axis=(0, 2, 3)).max()
        elif node.op_type == "EMRouting":  # votes, the pose of a child times a matrix
            gain *= found[0].sum(axis=-2).max()
        elif node.op_type == "ReduceSum":
            gain *= TYPES
        assert gain * math.sqrt(4 * 16) < 2**31
        squashed = node.op_type.startswith("Squash") or node.op_type == "VoteRouting"
        gains.update(dict.fromkeys(node.output, 1.0 if squashed else gain))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_limit_is_the_same_in_one_pixel_and_in_all(dtype: type) -> None:
    port = Port("x", ("N", 1, 64, 64), "float32")
    below, at = np.nextafter(dtype(2**32), dtype(0)), dtype(2**32)
    image = np.zeros((1, 1, 64, 64), dtype)
    image[0, 0, 3, 3] = below
    for good in (image, np.full_like(image, -below)):
        assert checked_input(port, good, LARGEST, any_batch=True) is good
    image[0, 0, 3, 3] = -at
    for bad in (image, np.full_like(image, at), np.where(image, np.nan, 0)):
        with pytest.raises(UsageError, match=r"2\^32"):
            checked_input(port, bad.astype(dtype), LARGEST, any_batch=True)
