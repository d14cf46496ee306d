"""Which output holds scores is told from what outputs do, never from their names or places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.scores import (
    AS_IT_IS,
    CAPSULES,
    FLAT,
    choose_scores,
    decision_warnings,
    score_warnings_of,
    shape_fault,
    why_scores_are_mask,
)
from capsedge.runtime.score_checks import probes

ROWS = 32
Array = NDArray[Any]


def capsules(classes: int = 10, seed: int = 0, scale: float = 0.2) -> Array:
    """Squashed class capsules ``[n, J, 16]``."""
    s = np.random.default_rng(seed).standard_normal((ROWS, classes, 16)) * scale
    n2 = np.square(s).sum(-1, keepdims=True)
    return (np.sqrt(n2) / (1 + n2) * s).astype(np.float32)


def lengths(v: Array) -> Array:
    found: Array = np.linalg.norm(v, axis=-1).astype(np.float32)
    return found


def mask(scores: Array, kind: Any = np.float32) -> Array:
    return np.eye(scores.shape[1], dtype=kind)[scores.argmax(1)]


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True), np.float32)


def logits(classes: int = 10, seed: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal((ROWS, classes)).astype(np.float32)


V, V2, V1 = capsules(), capsules(2), capsules(1)
Z = logits()
PICTURE = np.random.default_rng(1).random((ROWS, 1, 28, 28)).astype(np.float32)
FLAT_PICTURE = PICTURE.reshape(ROWS, -1)
BINARY = (np.random.default_rng(2).random((ROWS, 2)) > 0.5).astype(np.float32)
ONE_HOT_ELSEWHERE = np.eye(2, dtype=np.float32)[
    np.random.default_rng(3).integers(0, 2, ROWS)
]  # of a head that saturates, not of an argmax

# The outputs, the number of classes, and what holds the scores in which form.
CHOSEN: dict[str, tuple[dict[str, Array], int, tuple[str, str]]] = {
    "capsules, picture, mask": ({"a": V, "b": PICTURE, "c": mask(lengths(V))}, 10, ("a", CAPSULES)),
    "a mask called lengths": ({"lengths": mask(lengths(V)), "v": V}, 10, ("v", CAPSULES)),
    "a mask [N, J, 1]": ({"m": mask(lengths(V))[..., None], "v": V}, 10, ("v", CAPSULES)),
    "a mask of whole numbers": ({"v": V, "m": mask(lengths(V), np.int64)}, 10, ("v", CAPSULES)),
    "a mask of truth values": ({"v": V, "m": mask(lengths(V), np.bool_)}, 10, ("v", CAPSULES)),
    "the argmax": ({"v": V, "y": lengths(V).argmax(1)}, 10, ("v", CAPSULES)),
    "a softmaxed mask": ({"m": softmax(mask(lengths(V))), "v": V}, 10, ("v", CAPSULES)),
    "masked capsules": ({"m": V * mask(lengths(V))[..., None], "v": V}, 10, ("v", CAPSULES)),
    "masked, flat": (
        {"m": (V * mask(lengths(V))[..., None]).reshape(ROWS, -1), "v": V}, 10, ("v", CAPSULES)
    ),
    "two classes, mask": ({"v": V2, "m": mask(lengths(V2))}, 2, ("v", CAPSULES)),
    "two classes, masked": (
        {"v": V2, "m": V2 * mask(lengths(V2))[..., None]}, 2, ("v", CAPSULES)
    ),
    "one class, mask": ({"v": V1, "m": np.ones((ROWS, 1), np.float32)}, 1, ("v", CAPSULES)),
    "scores and their mask": ({"p": softmax(Z), "m": mask(Z)}, 10, ("p", AS_IT_IS)),
    "lengths and picture": ({"c": lengths(V), "r": FLAT_PICTURE}, 10, ("c", AS_IT_IS)),
    "lengths and their capsules": ({"v": V, "c": lengths(V)}, 10, ("c", AS_IT_IS)),
    "lengths, capsules and mask": (
        {"m": mask(lengths(V)), "v": V, "c": lengths(V)}, 10, ("c", AS_IT_IS)
    ),
    "softmax of lengths": ({"v": V, "p": softmax(lengths(V))}, 10, ("p", AS_IT_IS)),
    "logits and probabilities": ({"z": Z, "p": softmax(Z)}, 10, ("p", AS_IT_IS)),
    "probabilities in half precision": (
        {"z": Z, "p": softmax(Z).astype(np.float16)}, 10, ("p", AS_IT_IS)
    ),
    "logits and log-probabilities": ({"z": Z, "l": np.log(softmax(Z))}, 10, ("z", AS_IT_IS)),
    "logits and their sigmoids": ({"z": Z, "s": 1 / (1 + np.exp(-Z))}, 10, ("z", AS_IT_IS)),
    "lengths and their squares": (
        {"c": lengths(V), "s": lengths(V) ** 2}, 10, ("c", AS_IT_IS)
    ),
    "capsules alone": ({"v": V}, 10, ("v", CAPSULES)),
    "capsules [N, J, P, 1]": ({"v": V[..., None]}, 10, ("v", CAPSULES)),
    "capsules [N, 1, J, P, 1]": ({"v": V[:, None, ..., None]}, 10, ("v", CAPSULES)),
    "scores [N, J, 1]": ({"c": lengths(V)[..., None]}, 10, ("c", FLAT)),
    "a binary head alone": ({"y": ONE_HOT_ELSEWHERE}, 2, ("y", AS_IT_IS)),
    "several labels": ({"y": BINARY}, 2, ("y", AS_IT_IS)),
    "activations and large poses": (
        {"a": softmax(Z), "m": capsules() * 9}, 10, ("a", AS_IT_IS)
    ),
    "activations and pose matrices": (
        {"a": softmax(Z), "m": V.reshape(ROWS, 10, 4, 4)}, 10, ("a", AS_IT_IS)
    ),
    "no classes named": ({"v": V, "b": FLAT_PICTURE, "m": mask(lengths(V))}, 0, ("v", CAPSULES)),
}  # fmt: skip
# Of scores that are not capsules themselves: the capsules whose lengths they are, or decide like them.
POSES = {
    "lengths and their capsules": "v",
    "lengths, capsules and mask": "v",
    "softmax of lengths": "v",
}
LARGE = "activations and large poses"
ASKED: dict[str, tuple[dict[str, Array], int, tuple[str, ...]]] = {
    "capsules and other logits": ({"v": V, "z": Z}, 10, ("scores=v", "scores=z")),
    "the same called logits": ({"v": V, "logits": Z}, 10, ("scores=v", "scores=logits")),
    "two heads": ({"a": Z, "b": logits(seed=8)}, 10, ("scores=a", "scores=b")),
    "lengths, capsules and other logits": (
        {"v": V, "lengths": lengths(V), "logits": Z}, 10, ("scores=lengths", "scores=logits")
    ),
    "a binary head that is no mask": (
        {"v": V2, "y": ONE_HOT_ELSEWHERE}, 2, ("scores=v", "scores=y")
    ),
    "a mask by chance: always one class": (
        {"z": np.sort(Z, 1), "m": np.eye(10, dtype=np.float32)[[9] * ROWS]}, 10,
        ("scores=z", "scores=m"),
    ),
    "two that decide alike": ({"a": Z, "b": Z / 2}, 10, ("the same classes for 32 images",)),
    "one probability for two classes": (
        {"p": softmax(logits(2))[:, :1]}, 2, ("torch.cat([1 - p, p], dim=1)",)
    ),
    "none": ({"b": FLAT_PICTURE}, 10, ("score for each class", "[784]", "for class capsules v")),
    "classes last": ({"v": V.transpose(0, 2, 1)}, 10, ("v.norm(dim=1)",)),
    "pose matrices alone": ({"m": V.reshape(ROWS, 10, 4, 4)}, 10, ("flatten(2)",)),
}  # fmt: skip


def test_what_is_chosen() -> None:
    wrong = []
    for name, (outputs, classes, wanted) in CHOSEN.items():
        try:
            found = choose_scores(outputs, classes, images=(1, 28, 28))
        except UsageError as error:
            wrong.append(f"{name}: {error}")
            continue
        poses = found.output if found.form == CAPSULES else POSES.get(name, "")
        if (found.output, found.form) != wanted or found.poses != poses or not found.reason:
            wrong.append(f"{name}: {found}")
        if ("exceed 1, so they are poses" in found.reason) != (name == LARGE):
            wrong.append(f"{name}: {found.reason}")
    assert not wrong, "\n".join(wrong)


def test_what_is_asked() -> None:
    wrong = []
    for name, (outputs, classes, said) in ASKED.items():
        try:
            wrong.append(f"{name}: {choose_scores(outputs, classes, images=(1, 28, 28))}")
        except UsageError as error:
            text = f"{error.why} {error.command}"
            wrong += [f"{name}: no {part!r} in {text}" for part in said if part not in text]
    assert not wrong, "\n".join(wrong)


def test_a_label_that_comes_in_is_no_score() -> None:
    y = np.eye(10, dtype=np.float32)[np.arange(ROWS) % 10]
    found = choose_scores({"v": V, "y_out": y}, 10, others={"y": y})
    assert found.output == "v"
    assert "the input y" in found.reason


@pytest.mark.parametrize(
    ("sizes", "classes", "said"),
    [
        ((10,), 10, ""),
        ((10,), 0, ""),
        (("n",), 10, ""),
        ((10, 16), 0, "v.norm(dim=-1)"),
        ((10, 16), 10, "not a score for each class"),
        ((), 10, "not a score"),
        ((12,), 10, "10 classes are named"),
    ],
)
def test_shapes_of_scores(sizes: Any, classes: int, said: str) -> None:
    found = shape_fault("s", sizes, classes)
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (lambda n: softmax(30 * logits()), "above 0.999"),
        (lambda n: np.full((ROWS, 10), 0.1, np.float32), "are equal"),
        (lambda n: mask(Z), "above 0.999"),
        (lambda n: softmax(Z), ""),
        (lambda n: lengths(V), ""),
        (lambda n: np.where(n[:, None], 0.3, mask(Z)), ""),  # sure of other images than noise
    ],
)
def test_scores_that_say_nothing(scores: Callable[[Array], Array], said: str) -> None:
    noise = np.arange(ROWS) < 9
    values = scores(noise)
    if said == "above 0.999":
        values = np.where(values == values.max(1, keepdims=True), 1.0, 0.0)
    found = score_warnings_of("s", values, values, noise)
    assert [said in text for text in found] == [True] * bool(said)


def test_one_image_says_nothing_about_others() -> None:
    assert not score_warnings_of("s", Z[:1], softmax(Z[:1]), np.zeros(1, bool))


def test_a_named_mask_is_told() -> None:
    outputs = {"v": V, "m": mask(lengths(V))}
    assert "the largest of the lengths of v" in why_scores_are_mask("m", outputs)
    assert not why_scores_are_mask("c", {"v": V, "c": lengths(V)})


def test_answers_that_are_a_mask() -> None:
    assert "exactly 0 or 1" in decision_warnings(mask(Z))[0]
    assert not decision_warnings(softmax(Z))
    assert not decision_warnings(BINARY)
    assert not decision_warnings(np.ones((3, 1)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [1, 3])
def test_check_images(layout: str, channels: int) -> None:
    p = Preprocessing(12, 9, channels, 2 / 255, (1.0,), layout=layout)
    found = probes(p.shape, p)
    assert found.images.shape[1:] == p.shape
    assert found.images.dtype == np.float32
    inside = found.images[found.inside]
    assert (inside.min(), inside.max()) == (-1.0, 1.0)
    assert len(np.unique(found.images.reshape(len(found.images), -1), axis=0)) == len(found.images)
    assert found.noise.sum() >= 8
    assert not (found.noise & ~found.inside).any()
    standard = Preprocessing(12, 9, channels, per_image="standardize", layout=layout)
    assert np.isfinite(probes(standard.shape, standard).images).all()
