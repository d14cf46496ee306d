"""Networks of Keras in plain NumPy, and files of their weights as Keras writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]
EPSILON = 1e-7


def write(path: Path, layers: Mapping[str, Arrays], config: Any = None) -> Path:
    """A file of Keras 2: weights by layer, and the configuration if there is one."""
    with h5py.File(path, "w") as file:
        group = file
        if config is not None:
            file.attrs["model_config"] = json.dumps(config).encode()
            group = file.create_group("model_weights")
        group.attrs["layer_names"] = [name.encode() for name in layers]
        for name, weights in layers.items():
            own = group.create_group(name)
            own.attrs["weight_names"] = [f"{key}:0".encode() for key in weights]
            for key, value in weights.items():
                own.create_dataset(f"{key}:0", data=value.astype(np.float32))
    return path


def convolved(x: Array, kernel: Array, bias: Array, stride: int = 1) -> Array:
    """``[N, H, W, C]``, valid."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows[:, ::stride, ::stride], kernel) + bias


def stored(weights: Mapping[str, Arrays]) -> dict[str, Array]:
    """All weights, as they are after a file."""
    return {k: v.astype(np.float32).astype(float) for w in weights.values() for k, v in w.items()}


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def squash(s: Array) -> Array:
    """Of CapsNet-Keras: epsilon under the root alone."""
    q = (s * s).sum(-1, keepdims=True)
    return np.asarray(q / (1 + q) / np.sqrt(q + EPSILON) * s)


def routed(votes: Array, iterations: int, activation: Any, replaced: bool) -> Array:
    """Votes ``[N, I, J, P]``."""
    b = np.zeros(votes.shape[:3])
    for k in range(iterations):
        v = np.asarray(activation((softmax(b, 2)[..., None] * votes).sum(1)))
        if k + 1 < iterations:
            b = np.einsum("nijp,njp->nij", votes, v) + (0 if replaced else b)
    return v


# The Capsule layer of Keras' examples, after a stem of every layer that is read.
STEM = ("conv", "norm", "pool", "conv_b")
CAPSULES = ((6, 4), (3, 5))


def example_weights(rng: np.random.Generator, shared: bool = True) -> dict[str, dict[str, Array]]:
    made: dict[str, dict[str, Array]] = {
        "conv": {"conv/kernel": rng.normal(0, 0.3, (3, 3, 2, 8)), "conv/bias": rng.normal(0, 0.1, 8)},
        "norm": {
            "norm/gamma": rng.uniform(0.5, 1.5, 8), "norm/beta": rng.normal(0, 0.2, 8),
            "norm/moving_mean": rng.normal(0, 0.2, 8), "norm/moving_variance": rng.uniform(0.5, 2, 8),
        },
        "conv_b": {"conv_b/kernel": rng.normal(0, 0.3, (2, 2, 8, 8)), "conv_b/bias": rng.normal(0, 0.1, 8)},
    }  # fmt: skip
    children, dim = 4 * 4, 8
    for k, (j, p) in enumerate(CAPSULES):
        shape = (1 if shared else children, dim, j * p)
        made[f"caps{k}"] = {f"caps{k}/capsule_kernel": rng.normal(0, 0.5, shape)}
        children, dim = j, p
    return made


def example(
    x: Array,
    weights: Mapping[str, Arrays],
    replaced: bool = True,
    offset: float = 1.0,
    iterations: int = 3,
) -> Array:
    """Lengths. Images ``[N, 12, 12, 2]``."""
    flat = stored(weights)
    x = np.maximum(convolved(x, flat["conv/kernel"], flat["conv/bias"]), 0)
    x = (x - flat["norm/moving_mean"]) / np.sqrt(flat["norm/moving_variance"] + 1e-3)
    x = x * flat["norm/gamma"] + flat["norm/beta"]
    x = x.reshape(len(x), 5, 2, 5, 2, 8).max((2, 4))
    x = np.tanh(convolved(x, flat["conv_b/kernel"], flat["conv_b/bias"]))
    u = x.reshape(len(x), -1, 8)

    def activation(s: Array) -> Array:
        q = (s * s).sum(-1, keepdims=True) + EPSILON
        return np.asarray(np.sqrt(q) / (offset + q) * s)

    for k, (j, p) in enumerate(CAPSULES):
        kernel = np.broadcast_to(flat[f"caps{k}/capsule_kernel"], (u.shape[1], u.shape[2], j * p))
        votes = np.einsum("nid,ido->nio", u, kernel).reshape(len(u), -1, j, p)
        u = routed(votes, iterations, activation, replaced)
    return np.asarray(np.sqrt((u * u).sum(-1)))


def layer(kind: str, name: str, source: str, **values: Any) -> dict[str, Any]:
    return {
        "class_name": kind, "name": name, "config": {"name": name, **values},
        "inbound_nodes": [[[source, 0, 0, {}]]] if source else [],
    }  # fmt: skip


def example_config(shared: bool = True, more: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    layers = [
        layer("InputLayer", "input", "", batch_input_shape=[None, None, None, 2]),
        layer("Conv2D", "conv", "input", filters=8, kernel_size=[3, 3], activation="relu"),
        layer("BatchNormalization", "norm", "conv", axis=[3], epsilon=0.001),
        layer("MaxPooling2D", "pool", "norm", pool_size=[2, 2], strides=[2, 2]),
        layer("Conv2D", "conv_b", "pool", filters=8, kernel_size=[2, 2], activation="tanh"),
        *more,
        layer("Reshape", "reshape", more[-1]["name"] if more else "conv_b", target_shape=[-1, 8]),
    ]
    for k, (j, p) in enumerate(CAPSULES):
        layers.append(
            layer(
                "Capsule", f"caps{k}", layers[-1]["name"],
                num_capsule=j, dim_capsule=p, routings=3, share_weights=shared,
            )
        )  # fmt: skip
    layers.append(layer("Lambda", "lambda", layers[-1]["name"], function=["code", None, None]))
    return {"class_name": "Model", "config": {"name": "model", "layers": layers}}


# CapsNet-Keras: 28x28, 10 classes of 6 elements, 2 types of 4.


def capsnet_weights(rng: np.random.Generator, first: int = 1) -> dict[str, dict[str, Array]]:
    dense = [f"dense_{first + k}" if first + k else "dense" for k in range(3)]
    sizes = (60, 12, 20, 784)
    return {
        "conv1": {"conv1/kernel": rng.normal(0, 0.2, (9, 9, 1, 4)), "conv1/bias": rng.normal(0, 0.1, 4)},
        "primarycap_conv2d": {
            "primarycap_conv2d/kernel": rng.normal(0, 0.1, (9, 9, 4, 8)),
            "primarycap_conv2d/bias": rng.normal(0, 0.1, 8),
        },
        "digitcaps": {"digitcaps/W": rng.normal(0, 0.5, (10, 72, 6, 4))},
        "decoder": {
            f"{name}/{part}": rng.normal(0, 0.3, sizes[k : k + 2] if part == "kernel" else sizes[k + 1])
            for k, name in enumerate(dense) for part in ("kernel", "bias")
        },
    }  # fmt: skip


def capsnet(x: Array, weights: Mapping[str, Arrays], iterations: int = 3) -> tuple[Array, Array]:
    """Lengths, and the picture of each class from its capsule alone ``[N, J, 28, 28, 1]``."""
    flat = stored(weights)
    x = np.maximum(convolved(x, flat["conv1/kernel"], flat["conv1/bias"]), 0)
    x = convolved(x, flat["primarycap_conv2d/kernel"], flat["primarycap_conv2d/bias"], 2)
    u = squash(x.reshape(len(x), -1, 4))
    votes = np.einsum("jiod,nid->nijo", flat["digitcaps/W"], u)
    v = routed(votes, iterations, squash, False)
    masked = (v[:, None] * np.eye(10)[None, :, :, None]).reshape(len(v), 10, 60)
    dense = list(weights["decoder"])
    for k in range(3):
        masked = masked @ flat[dense[2 * k]] + flat[dense[2 * k + 1]]
        masked = np.maximum(masked, 0) if k < 2 else 1 / (1 + np.exp(-masked))
    return np.sqrt((v * v).sum(-1) + EPSILON), masked.reshape(len(v), 10, 28, 28, 1)
