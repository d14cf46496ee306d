"""Input values of a case: numpy only, seeded by the case's name, rounded to the storage type."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.spec.operators import OPERATORS

Array = NDArray[np.float64]

# normal      unit normal poses; weights scaled so that votes have unit variance
# zeros       all poses zero
# tiny        norms from 1e-20 to 1e-3 (float16: from its smallest number)
# huge        norms up to 1e18 in Squash and 1e15 elsewhere, within float16 up to thousands
# ties        all parents alike: couplings exactly uniform
# saturated   agreements (dynamic, attention) or activations (EM) so strong that they are 0 or 1
# a-zero/one  EM: every activation 0, or 1
# a-tiny      EM: activations from 1e-9 to 1e-3 (float16: from its smallest number)
# uneven      channels of images and filters from 1e-3 to 1e3
# agreeing    EM: all votes for a parent within 1 % of each other, variances near 1e-4
KINDS = {
    "Squash": ("normal", "zeros", "tiny", "huge", "ties", "saturated"),
    "DynamicRouting": ("normal", "zeros", "tiny", "huge", "ties", "saturated"),
    "VoteRouting": ("normal", "zeros", "tiny", "huge", "ties", "saturated"),
    "EMRouting": (
        "normal", "zeros", "tiny", "huge", "ties", "saturated", "a-zero", "a-tiny", "a-one", "agreeing",
    ),
    "AttentionRouting": ("normal", "zeros", "tiny", "huge", "ties", "saturated"),
    "SelfAttentionRouting": ("normal", "zeros", "tiny", "huge", "ties", "saturated"),
    "UniformRouting": ("normal", "zeros", "tiny", "huge", "ties"),
    "PoseNormalization": ("normal", "zeros", "tiny", "huge", "ties"),
    "FastConv": ("normal", "zeros", "tiny", "huge", "uneven"),
    "QuantizedConv": ("normal", "zeros", "ties", "saturated"),
}  # fmt: skip


def votes_size(kind: str, dtype: str) -> float:
    """Typical size of one vote's element: absolute errors of a pose grow with it."""
    if kind == "huge":
        return 1e3 if dtype == "float16" else 1e15
    return 1.0


def _factors(rng: np.random.Generator, shape: tuple[int, ...], kind: str, dtype: str) -> Array:
    """What the unit normal poses are multiplied by; one factor a pose."""
    if kind == "zeros":
        return np.zeros(shape)
    if kind == "tiny":
        return np.asarray(10.0 ** rng.uniform(-7 if dtype == "float16" else -20, -3, shape))
    return np.full(shape, 10.0 if kind == "saturated" else votes_size(kind, dtype))


def batched(operator: str, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """Names of the inputs whose first dimension is the batch, and not one for all images."""
    values = [v for v in OPERATORS[operator].inputs if v.batched and v.name in arrays]
    batch = len(arrays[values[0].name]) if values else 0
    return tuple(v.name for v in values if not v.per_image or len(arrays[v.name]) == batch)


def build(
    operator: str,
    dims: Mapping[str, Any],
    settings: Mapping[str, Any],
    kind: str,
    name: str,
    dtype: str,
) -> dict[str, NDArray[Any]]:
    """The operator's inputs by name, in the order of the specification, of type ``dtype``.

    ``settings`` are the node's attributes and the case's options together.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if operator == "QuantizedConv":
        return _conv(rng, dims, settings, kind)
    if operator.startswith("Quantized"):
        builder = operator.removeprefix("Quantized")
        arrays = build(builder, dims, settings, kind, name, dtype)
        return _with_quantized_weight(arrays)
    made = {
        "Squash": _squash,
        "DynamicRouting": _dynamic,
        "VoteRouting": _votes,
        "EMRouting": _em,
        "AttentionRouting": _attention,
        "SelfAttentionRouting": _self_attention,
        "UniformRouting": _uniform,
        "PoseNormalization": _normalization,
        "FastConv": _fast_conv,
    }[operator](rng, dims, settings, kind, dtype)
    return {key: np.ascontiguousarray(value, dtype=dtype) for key, value in made.items()}


def _with_quantized_weight(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The weight as INT8 with its scale, a number for each parent and column, right after it."""
    found: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        if name != "weight":
            found[name] = array
            continue
        shared = (0, 3) if array.ndim == 4 else (0, 1, 2, 4)
        top = np.abs(array.astype(np.float64)).max(axis=shared, keepdims=True)
        scale = (top / 127).astype(np.float32)
        found["weight"] = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
        found["weight_scale"] = np.ascontiguousarray(scale.squeeze(shared))
    return found


def _fast_conv(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    """Outputs of unit variance; uneven: the factors of an image's channel and of its filter cancel out."""
    n, c, h, w, m, kh, kw = (d[k] for k in ("N", "C", "H", "W", "M", "Kh", "Kw"))
    factor = _factors(rng, (n, 1, 1, 1), kind, dtype)
    channels = 10.0 ** rng.uniform(-3, 3, c) if kind == "uneven" else np.ones(c)
    x = rng.standard_normal((n, c, h, w)) * factor * channels[:, None, None]
    weight = rng.standard_normal((m, c, kh, kw)) / (c * kh * kw) ** 0.5 / channels[:, None, None]
    given = {"x": x, "weight": weight}
    return given | ({"bias": rng.standard_normal(m) * (kind != "tiny")} if s["bias"] else {})


def _conv(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str
) -> dict[str, NDArray[Any]]:
    """Outputs spread over 0..255 (normal), all products at their largest and of one sign (saturated),
    sums that are exact halves of a step (ties)."""
    n, c, h, w, m, kh, kw = (d[k] for k in ("N", "C", "H", "W", "M", "Kh", "Kw"))
    x = rng.integers(0, 256, (n, c, h, w))
    weight = rng.integers(-127, 128, (m, c, kh, kw))
    weight_scale = rng.uniform(0.5e-3, 1e-3, m).astype(np.float32)
    bias = rng.integers(-20000, 20000, m)
    y_scale = 0.1 * (c * kh * kw) ** 0.5
    x_scale = 0.05
    if kind == "zeros":
        x[:] = s["x_zero"]
    elif kind == "saturated":
        x[:], y_scale = 255, y_scale * 10
        weight[:] = np.where(np.arange(m) % 2, 127, -127)[:, None, None, None]
    elif kind == "ties":
        weight_scale[:], x_scale, y_scale = 0.5, 1.0, 1.0
        weight = rng.integers(-1, 2, weight.shape)
        x = rng.integers(s["x_zero"], s["x_zero"] + 3, x.shape)
        bias = rng.integers(-9, 9, m)
    return {
        "x": x.astype(np.uint8),
        "x_scale": np.asarray(x_scale, np.float32),
        "x_zero_point": np.asarray(s["x_zero"], np.uint8),
        "weight": weight.astype(np.int8),
        "weight_scale": weight_scale,
        "weight_zero_point": np.zeros(m, np.int8),
        "y_scale": np.asarray(y_scale, np.float32),
        "y_zero_point": np.asarray(s["y_zero"], np.uint8),
        "bias": bias.astype(np.int32),
    }


def _squash(
    rng: np.random.Generator, d: Mapping[str, Any], _: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    shape = d["shape"]
    x = rng.standard_normal(shape)
    rows = (*shape[:-1], 1)
    if kind == "huge":
        top = 3.5 if dtype == "float16" else 17.5
        x *= 10.0 ** rng.uniform(2, top, rows)
    elif kind == "ties":
        x = np.sign(x)
    elif kind == "saturated":
        x[..., 0] = 1e3  # one element carries the whole norm
    else:
        x *= _factors(rng, rows, kind, dtype)
    return {"x": x}


def _dynamic(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    n, i, j, pin, pout = (d[k] for k in ("N", "I", "J", "Pin", "Pout"))
    u = rng.standard_normal((n, i, pin)) * _factors(rng, (n, i, 1), kind, dtype)
    weight = rng.standard_normal((i, j, pout, pin)) * pin**-0.5
    log_prior = rng.standard_normal((i, j)) * s["prior"]
    bias = 0.1 * rng.standard_normal((j, pout)) * s["bias"]
    if kind == "ties":
        weight[:] = weight[:, :1]
        log_prior[:] = log_prior[:, :1]
        bias[:] = bias[:1]
    made = {
        "u": u,
        "weight": weight[:1] if s["one"] else weight,
        "log_prior": log_prior,
        "bias": bias,
    }
    history = _history(rng, d, s, u, dtype)
    if s["vote_bias"] == "none":  # what is left out is left out from the end
        return {**made, **({"vote_bias": np.zeros((1, j, pout)), **history} if history else {})}
    vote_bias = 0.5 * rng.standard_normal((1 if s["vote_bias"] == "one" else i, j, pout))
    vote_bias *= s["vote_bias"] != "zeros"
    if kind == "ties":
        vote_bias[:] = vote_bias[:, :1]
    return {**made, "vote_bias": vote_bias, **history}


def _history(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], poses: Array, dtype: str
) -> dict[str, Array]:
    """``image_prior`` and ``mask`` for histories of different lengths, of which one is empty.

    ``history`` is one of the words below, or missing for neither; "nan" changes ``poses`` where there is
    padding.
    """
    history = s.get("history")
    if not history:
        return {}
    n, i, j = (d[k] for k in "NIJ")
    here = np.arange(i) < (np.arange(n) * 7 % (i + 1))[:, None]  # the first image has none
    if history == "full":
        here[:] = True
    mask = here.astype(np.float64)
    none = np.zeros((1, 1, 1))
    if history == "priors":
        return {"image_prior": rng.standard_normal((n, i, j))}
    if history == "weights":  # a mask that is no mask: factors of every size
        return {"image_prior": rng.standard_normal((n, i, j)), "mask": rng.uniform(0, 2, (n, i))}
    if (
        history == "where"
    ):  # agreements vanish beside the lowest number; FP32 rounds them beside float16's
        lowest = -16.0 if dtype == "float16" else float(np.finfo(dtype).min)
        return {"image_prior": np.where(here, 0.0, lowest)[..., None]}
    if history == "every":  # the same for all images
        return {"image_prior": rng.standard_normal((1, i, 1)), "mask": rng.uniform(0, 2, (1, i))}
    if history == "nan":
        poses[~here] = np.nan
    return {"image_prior": none, "mask": mask}


def _votes(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    n, i, j, p = (d[k] for k in ("N", "I", "J", "P"))
    without = {**s, "one": 0, "vote_bias": "none", "history": None}
    made = _dynamic(rng, {**d, "Pin": 1, "Pout": p}, without, kind, dtype)
    votes = rng.standard_normal((n, i, j, p)) * _factors(rng, (n, i, 1, 1), kind, dtype)
    if kind == "ties":
        votes[:] = votes[:, :, :1]
    votes = votes[:, :, :1] if s.get("of_all") else votes
    given = {"votes": votes, "log_prior": made["log_prior"], "bias": made["bias"]}
    return {**given, **_history(rng, d, s, votes, dtype)}


def _em(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    n, h, w, c, kh, kw, m, p = (d[k] for k in ("N", "H", "W", "C", "Kh", "Kw", "M", "P"))
    side = round(p**0.5)
    factor_kind = "normal" if kind in ("saturated", "ties") else kind
    pose = rng.standard_normal((n, h, w, c, p)) * _factors(rng, (n, h, w, c, 1), factor_kind, dtype)
    a = rng.uniform(0, 1, (n, h, w, c))
    weight = rng.standard_normal((kh, kw, c, m, side, side)) * side**-0.5
    beta_u = 0.3 * rng.standard_normal(m)
    beta_a = rng.standard_normal(m)
    if kind == "ties":
        weight[:] = weight[:, :, :, :1]
        beta_u[:] = beta_u[0]
        beta_a[:] = beta_a[0]
    elif kind == "saturated":
        a = np.round(a)
        beta_a *= 1e4
    elif kind == "agreeing":
        pose = rng.standard_normal(p) + 0.01 * rng.standard_normal(pose.shape)
        weight = rng.standard_normal((m, side, side)) * side**-0.5
        weight = weight + 0.01 * rng.standard_normal((kh, kw, c, m, side, side)) * side**-0.5
    elif kind in ("a-zero", "a-one"):
        a = np.full_like(a, 0.0 if kind == "a-zero" else 1.0)
    elif kind == "a-tiny":
        a = 10.0 ** rng.uniform(-7 if dtype == "float16" else -9, -3, a.shape)
    elif kind == "normal" and s["normalize_activations"]:
        a = 0.05 + 0.95 * a  # near zero, finite differences say nothing of a / (a + epsilon)
    made = {"pose": pose, "a": a, "weight": weight, "beta_u": beta_u, "beta_a": beta_a}
    if s["coordinates"] == "none":
        return made
    coordinates = np.zeros((h, w, p))
    if s["coordinates"] == "first":  # y/H and x/W on the first two elements
        coordinates[..., 0] = np.arange(h)[:, None] / h
        coordinates[..., 1] = np.arange(w) / w
    elif s["coordinates"] == "all":
        coordinates = rng.standard_normal((h, w, p))
    return {**made, "coordinates": coordinates}


def _self_attention(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    """With many children the sum of all votes grows; smaller votes keep the logits near 1."""
    n, i, j, pin, pout = (d[k] for k in ("N", "I", "J", "Pin", "Pout"))
    u = rng.standard_normal((n, i, pin)) * _factors(rng, (n, i, 1), kind, dtype)
    weight = rng.standard_normal((i, j, pout, pin)) * pin**-0.5
    if kind in ("normal", "ties"):
        weight *= min(1.0, 2.0 * i**-0.25)
    bias = 0.1 * rng.standard_normal((i, j)) * s["bias"]
    if kind == "ties":
        weight[:] = weight[:, :1]
        bias[:] = bias[:, :1]
    return {"u": u, "weight": weight, "bias": bias}


def _attention(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    n, h, w, c, kh, kw, m = (d[k] for k in ("N", "H", "W", "C", "Kh", "Kw", "M"))
    pin, p = d["Pin"], d["P"]
    side = round(pin**0.5)
    matrix = (side, side) if s["matrix_pose"] else (pin, p)
    pose = rng.standard_normal((n, h, w, c, pin)) * _factors(rng, (n, h, w, c, 1), kind, dtype)
    parent = rng.standard_normal((n, *s["grid"], m, p)) * s["parent"]
    weight = rng.standard_normal((kh, kw, c, m, *matrix)) * matrix[0] ** -0.5
    scale = 1 + 0.2 * rng.standard_normal(p)
    bias = 0.2 * rng.standard_normal(p)
    if kind == "ties":
        weight[:] = weight[:, :, :, :1]
        parent[:] = parent[:, :, :, :1]
    return {"pose": pose, "parent": parent, "weight": weight, "scale": scale, "bias": bias}


def _uniform(
    rng: np.random.Generator, d: Mapping[str, Any], s: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    arrays = _attention(rng, d, {**s, "grid": (1, 1), "parent": 0}, kind, dtype)
    del arrays["parent"]
    return arrays


def _normalization(
    rng: np.random.Generator, d: Mapping[str, Any], _: Mapping[str, Any], kind: str, dtype: str
) -> dict[str, Array]:
    shape = d["shape"]
    x = rng.standard_normal(shape) * _factors(rng, (*shape[:-1], 1), kind, dtype)
    if kind == "ties":
        x = np.broadcast_to(x[..., :1], shape)
    scale = 1 + 0.2 * rng.standard_normal(shape[-1])
    return {"x": x, "scale": scale, "bias": 0.2 * rng.standard_normal(shape[-1])}
