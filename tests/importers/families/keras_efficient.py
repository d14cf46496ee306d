"""Efficient-CapsNet as its authors' Keras code saves and computes it, in NumPy, from its description."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = dict[str, NDArray[np.float32]]
_DESIGNS = {
    "escvm": ("batch_normalization", 1, 5, 9, (1, 1, 1, 2), "Efficient_CapsNet", 10),
    "escvm-smallnorb": ("instance_normalization", 2, 7, 8, (2, 1, 1, 2), "CapsNet", 5),
}
START = 4  # Keras counts layers through the whole program


def weights(family: str) -> Weights:
    """Random weights by the names in the file; small widths."""
    norm, channels, kernel, primary, _, model, classes = _DESIGNS[family]
    rng = np.random.default_rng(1)
    widths = (channels, 4, 6, 6, 24)
    made: Weights = {}

    def put(name: str, *shape: int, scale: float = 1.0, plus: float = 0.0) -> None:
        made[name] = (rng.standard_normal(shape) * scale + plus).astype(np.float32)

    for k in range(4):
        side, (a, b) = kernel if k == 0 else 3, widths[k : k + 2]
        put(f"{model}/conv2d_{START + k}/kernel", side, side, a, b, scale=(side * side * a) ** -0.5)
        put(f"{model}/conv2d_{START + k}/bias", b, scale=0.1)
        name = f"{model}/{norm}" + (f"_{k}" if k else "")
        put(f"{name}/gamma", b, scale=0.2, plus=1)
        put(f"{name}/beta", b, scale=0.2)
        if norm.startswith("batch"):
            put(f"{name}/moving_mean", b, scale=0.2)
            made[f"{name}/moving_variance"] = rng.uniform(0.002, 0.5, b).astype(np.float32)
    put(f"{model}/conv2d_{START + 4}/kernel", primary, primary, 1, 24, scale=0.1)
    put(f"{model}/conv2d_{START + 4}/bias", 24, scale=0.1)
    put(f"{model}/fc_caps/W", classes, 6, 4, 5)
    put(f"{model}/fc_caps/b", classes, 6, 1, scale=0.3)
    if classes == 10:
        for k, (a, b) in enumerate(((50, 12), (12, 20), (20, 784))):
            put(f"Generator/dense{f'_{k}' if k else ''}/kernel", a, b)
            put(f"Generator/dense{f'_{k}' if k else ''}/bias", b)
    return made


def write(path: Path, found: Weights) -> Path:
    """As ``save_weights`` of Keras 2 writes two models within one."""
    import h5py

    with h5py.File(path, "w") as file:
        models = list(dict.fromkeys(name.split("/")[0] for name in found))
        file.attrs["layer_names"] = [m.encode() for m in models]
        file.attrs["keras_version"] = b"2.4.0"
        for model in models:
            group = file.create_group(model)
            own = [name for name in found if name.startswith(f"{model}/")]
            inner = [name.partition("/")[2] for name in own]
            group.attrs["weight_names"] = [f"{name}:0".encode() for name in inner]
            for name, short in zip(own, inner, strict=True):
                group.create_dataset(f"{short}:0", data=found[name])
    return path


def forward(found: Weights, x: NDArray[np.float32]) -> tuple[Array, Array]:
    """Poses and lengths of images ``[N, H, W, C]``."""
    family = "escvm" if "Generator/dense/kernel" in found else "escvm-smallnorb"
    norm, _, _, primary, strides, model, _ = _DESIGNS[family]
    y = x.astype(np.float64)
    for k, stride in enumerate(strides):
        name = f"{model}/conv2d_{START + k}"
        y = _convolved(y, found[f"{name}/kernel"], stride) + found[f"{name}/bias"]
        y = np.where(y > 0, y, (0.0 if family == "escvm" else 0.3) * y)
        name = f"{model}/{norm}" + (f"_{k}" if k else "")
        if family == "escvm":
            mean, variance = found[f"{name}/moving_mean"], found[f"{name}/moving_variance"]
        else:
            mean, variance = y.mean((1, 2), keepdims=True), y.var((1, 2), keepdims=True)
        y = (y - mean) / np.sqrt(variance + 1e-3) * found[f"{name}/gamma"] + found[f"{name}/beta"]
    kernel = found[f"{model}/conv2d_{START + 4}/kernel"][:, :, 0]  # one of each channel
    assert y.shape[1:3] == (primary, primary)
    u = (y * kernel).sum((1, 2)) + found[f"{model}/conv2d_{START + 4}/bias"]
    u = _squashed(u.reshape(len(u), 6, 4))
    votes = np.einsum("nid,jidz->njiz", u, found[f"{model}/fc_caps/W"].astype(np.float64))
    agreement = np.einsum("njiz,njkz->nji", votes, votes) / 5**0.5
    e = np.exp(agreement - agreement.max(1, keepdims=True))
    coupling = e / e.sum(1, keepdims=True) + found[f"{model}/fc_caps/b"][..., 0]
    poses = _squashed((coupling[..., None] * votes).sum(2))
    return poses, np.sqrt((poses**2).sum(-1) + 1e-7)


def _convolved(x: Array, kernel: NDArray[np.float32], stride: int) -> Array:
    side = kernel.shape[0]
    seen = np.lib.stride_tricks.sliding_window_view(x, (side, side), (1, 2))
    seen = seen[:, ::stride, ::stride]  # [N, H', W', C, K, K]
    found: Array = np.einsum("nhwckl,klco->nhwo", seen, kernel.astype(np.float64), optimize=True)
    return found


def _squashed(s: Array) -> Array:
    norm = np.linalg.norm(s, axis=-1, keepdims=True)
    found: Array = (1 - 1 / (np.exp(norm) + 1e-20)) * s / (norm + 1e-20)
    return found
