"""Find the output with a network's scores by its values, not its name, and read scores from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.metadata.map_scores import looks_like_maps
from capsedge.spec import limits
from capsedge.spec.vocabularies import LENGTHS, LOGITS, POSES

# Scores [N, J]; with axes of 1 between or behind; class capsules [N, J, P], whose lengths are the scores.
AS_IT_IS, FLAT, CAPSULES = "as it is", "flat", "capsules"
SCORES = (LENGTHS, LOGITS)  # the names of scores in files of the package
ONE_LINE = "return v.norm(dim=-1)"
_EVIDENCE = 14  # bits: agreement by chance is rarer than 1 in 16,000
_SURE = 0.999

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class ScoresChoice:
    """The output that decides the class, as chosen by the values of a file's outputs.

    Attributes:
        output: its name.
        form: what it holds, `AS_IT_IS`, `FLAT` or `CAPSULES`.
        classes: how many.
        poses: the output with the capsules whose lengths are the scores; empty if there is none.
        reason: the reason for this choice, as text.
    """

    output: str
    form: str
    classes: int
    poses: str
    reason: str


@dataclass(frozen=True)
class ChosenScores:
    """Why an output was chosen as the scores, as the file states.

    Attributes:
        reason: the reason, for the user.
        made_of: the output from which export computed the scores; empty if the network itself computes them.
        classes: how many scores were made.
        capsules: whether they are lengths of capsules; otherwise further axes of 1 were removed.
    """

    reason: str
    made_of: str = ""
    classes: int = 0
    capsules: bool = False

    def __post_init__(self) -> None:
        if max(len(self.reason), len(self.made_of)) > limits.ORIGIN_CHARACTERS:
            raise ValueError(f"a text on the scores has over {limits.ORIGIN_CHARACTERS} characters")
        if bool(self.made_of) != (1 <= self.classes <= limits.WIDTH):
            raise ValueError(f"{self.classes} scores made of '{self.made_of[:80]}'")


@dataclass(frozen=True)
class _ScoresCandidate:
    """An output with a score or a capsule for each class; ``scores`` ``[n, J]`` are its values or lengths."""

    name: str
    scores: Array
    sizes: tuple[int, ...]
    form: str

    @property
    def capsules(self) -> bool:
        return self.form == CAPSULES

    @property
    def in_words(self) -> str:
        """The output for a person."""
        if self.capsules:
            return f"the lengths of {self.name} {list(self.sizes)}"
        return f"{self.name} {list(self.sizes)}"


def shape_fault(name: str, sizes: Sequence[int | str | None], classes: int = 0) -> str:
    """The fault in scores' shape, empty if ``[N, classes]``; ``classes`` is 0 where not known."""
    if len(sizes) != 1:
        capsules = f"; that of capsules gives their lengths: {ONE_LINE}" if len(sizes) == 2 else ""
        return f"'{name}' has {list(sizes)} for an image, not a score for each class{capsules}"
    if classes and isinstance(sizes[0], int) and sizes[0] != classes:
        return f"{classes} classes are named, '{name}' has {sizes[0]} scores"
    return ""


def choose_scores(
    outputs: Arrays,
    classes: int,
    *,
    at_least: bool = False,
    inside: NDArray[np.bool_] | None = None,
    images: Sequence[int] = (),
    others: Arrays | None = None,
    adds: bool = True,
) -> ScoresChoice:
    """The output that holds scores.

    A mask, which only marks the class with the largest value in another output, is never chosen. Of outputs
    that are known functions of each other, such as logits and their softmax, the lengths of capsules are
    chosen, or else probabilities. If two outputs decide differently, the user is asked.

    Args:
        outputs: by name, on several different images, first axis.
        classes: how many there are; 0 where that is not known.
        at_least: whether there may be more.
        inside: rows whose images have the range of pixels; all by default.
        images: shape of the input of one image: an output of this shape is a picture, and where the number
            of classes is open, so is one of as many values.
        others: further inputs, of which an output may be a copy: a label.
        adds: whether the caller can add lengths to the network, as export does.
    """

    def fits(count: int) -> bool:
        return count >= classes if at_least else classes in (0, count)

    rows = max(map(len, outputs.values()), default=0)
    candidates = _candidates(outputs, fits, tuple(images), rows)
    if at_least or not classes:
        candidates = [c for c in candidates if not _picture(c, images)]
    masks = _masks(candidates, dict(others or {}))
    left = [c for c in candidates if c.name not in masks]
    if not left:
        raise _no_scores(outputs, classes, fits, images)
    passed_over = "".join(f"; {name} is {why}" for name, why in masks.items())
    plain = [c for c in left if not c.capsules]
    capsules = [c for c in left if c.capsules]

    def choice_of(one: _ScoresCandidate, poses: str, reason: str) -> ScoresChoice:
        return ScoresChoice(one.name, one.form, one.scores.shape[1], poses, reason + passed_over)

    lengths = [c for c in capsules if _squashed(c, inside) or not plain]
    rivals = [*plain, *lengths]
    if len(rivals) == 1:
        return choice_of(rivals[0], *_alone(rivals[0], capsules))
    if _all_related(rivals):
        equal = [(p, c) for p in plain for c in capsules if _close(p.scores, c.scores)]
        if equal:
            one, of = equal[0]
            return choice_of(one, of.name, f"it holds the lengths of {of.name}")
        one = next((c for c in plain if _sums_to_one(c.scores)), rivals[0])
        alike = ", ".join(c.in_words for c in rivals if c is not one)
        source = lengths[0].name if lengths else ""
        return choice_of(
            one, source, f"it and {alike} are functions of each other and decide alike"
        )
    if len(plain) == 1:
        one = plain[0]
        if lengths and all(_decide_alike(one.scores, c.scores) for c in lengths):
            names = ", ".join(c.in_words for c in lengths)
            return choice_of(one, lengths[0].name, f"it decides as {names} on all test images")
        if one.name in SCORES and [c.name for c in lengths] == [POSES]:
            reason = f"it is called {one.name} and stands beside {POSES}, as in files of capsedge"
            return choice_of(one, POSES, reason)
    raise _question(rivals, inside, adds)


def _alone(one: _ScoresCandidate, capsules: Sequence[_ScoresCandidate]) -> tuple[str, str]:
    """The poses that belong to the only candidate, and why it was chosen."""
    if one.capsules:
        return one.name, f"only {one.name} has a capsule for each class"
    reason = f"only {one.name} has a score for each class"
    source = next((c.name for c in capsules if _close(one.scores, c.scores)), "")
    if capsules and not source:
        names = ", ".join(c.name for c in capsules)
        reason += f"; lengths of {names} exceed 1, so they are poses"
    return source, reason


def has_candidates(outputs: Arrays, least: int, images: Sequence[int]) -> bool:
    """Whether an output has the shape of at least this many scores or capsules; pictures do not count."""
    rows = max(map(len, outputs.values()), default=0)
    candidates = _candidates(outputs, lambda count: count >= least, tuple(images), rows)
    return not all(_picture(c, images) for c in candidates)


def _picture(c: _ScoresCandidate, images: Sequence[int]) -> bool:
    """Whether an output has a value for each of the input's: a reconstruction."""
    return bool(images) and not c.capsules and c.scores.shape[1] == prod(images)


def why_scores_are_mask(name: str, outputs: Arrays) -> str:
    """Why a named output of scores is a mask; empty if it is none."""
    value = outputs.get(name, np.zeros(0))
    width = value.shape[1] if value.ndim > 1 else 0
    candidates = _candidates(outputs, lambda count: count == width, (), len(value))
    return _masks(candidates, {}).get(name, "")


def score_warnings_of(
    name: str, scores: Array, probabilities: Array, noise: NDArray[np.bool_]
) -> list[str]:
    """Warnings about meaningless scores.

    Args:
        scores: ``[n, J]``, of different images.
        probabilities: the same as a prediction shows them.
        noise: rows of noise.
    """
    fix = (
        "The output may be a mask made by argmax, or the range of the inputs may differ from "
        f"training: choose another output as scores, or let forward `{ONE_LINE}`, or correct the "
        "range"
    )
    spread = scores.max(0) - scores.min(0)
    if len(scores) > 1 and (spread <= 1e-6 * max(float(np.abs(scores).max()), 1e-30)).all():
        return [
            f"{name}: the scores of all {len(scores)} test images are equal, so they do not depend on the "
            f"image. {fix}"
        ]
    sure = probabilities[noise].max(1) if noise.any() and scores.shape[1] > 1 else np.zeros(0)
    if len(sure) and (sure > _SURE).all():
        return [
            f"{name}: a score is above {_SURE} for each of {len(sure)} images of noise, so the "
            f"scores do not measure confidence. {fix}"
        ]
    return []


def decision_warnings(scores: Array) -> list[str]:
    """Warnings about the scores ``[n, J]`` of a user's own images.

    A softmax or a sigmoid in floating point does not reach 0 and 1 in all of them.
    """
    if not len(scores) or scores.shape[1] < 2:
        return []
    marks = np.isin(scores, (0.0, 1.0)).all() and (scores.sum(1) == 1).all()
    if not marks:
        return []
    return [
        f"every score is exactly 0 or 1, with one 1 per image ({len(scores)} in all): a mask made "
        "by argmax, which does not measure confidence. Export it again with another output as "
        f"scores, or with `{ONE_LINE}` in forward"
    ]


def _candidates(
    outputs: Arrays, fits: Callable[[int], bool], images: tuple[int, ...], rows: int
) -> list[_ScoresCandidate]:
    """The outputs that have the shape of scores or of class capsules; whole numbers are neither.

    Axes of 1 do not count: ``[N, J, P, 1]`` and ``[N, 1, J, P]`` are capsules, too.
    """
    candidates = []
    one_class = fits(1) and not fits(2)
    for name, value in outputs.items():
        if value.dtype.kind != "f" or value.ndim < 2 or len(value) != rows:
            continue
        sizes = tuple(value.shape[1:])
        axes = tuple(size for size in sizes if size != 1)
        if one_class:
            axes = (1, *axes) if sizes[0] == 1 else ()
        elif len(sizes) == 1:
            axes = sizes
        if sizes == images or len(axes) not in (1, 2) or not fits(axes[0]):
            continue
        values = value.reshape(rows, *axes)
        if len(axes) == 1:
            candidates.append(
                _ScoresCandidate(name, values, sizes, FLAT if len(sizes) > 1 else AS_IT_IS)
            )
        else:
            candidates.append(_ScoresCandidate(name, capsule_lengths(values), sizes, CAPSULES))
    return candidates


def capsule_lengths(capsules: Array) -> Array:
    """Lengths ``[n, J]`` of ``[n, J, P]``: the Euclidean norm, as of the package's own class capsules."""
    return np.asarray(np.sqrt(np.square(capsules.astype(np.float64)).sum(-1)))


def _masks(candidates: Sequence[_ScoresCandidate], others: dict[str, Array]) -> dict[str, str]:
    """Outputs that only mark the class with the largest value in another output, with the reason, by name."""
    masks: dict[str, str] = {}
    marks = {c.name: _marked(c.scores, c.capsules) for c in candidates}
    for c in candidates:
        marked = marks[c.name]
        if marked is None:
            continue
        sources = [
            (o.in_words, o.scores) for o in candidates if o.name != c.name and marks[o.name] is None
        ]
        sources += [
            (f"the input {name}", value)
            for name, value in others.items()
            if value.ndim == 2 and value.shape == c.scores.shape
        ]
        for description, scores in sources:
            if scores.shape[1] == c.scores.shape[1] and _at_largest(marked, scores):
                what = "all capsules but one zeroed" if c.capsules else "one class marked per image"
                masks[c.name] = f"a mask ({what}: the largest of {description})"
                break
    return masks


def _marked(scores: Array, capsules: bool) -> NDArray[np.intp] | None:
    """The class ``[n]`` that stands out if all others have the same value in all rows; else None."""
    finite = scores[np.isfinite(scores).all(1)]
    if not len(finite):
        return None
    if scores.shape[1] == 1:
        ones = np.allclose(finite, 1, atol=1e-6)
        return np.zeros(len(scores), np.intp) if ones else None
    low = finite.min()
    apart = finite > low + 1e-6 * max(abs(float(low)), 1.0)
    if not (apart.sum(1) == 1).all():
        return None
    # Of two scores the smaller may be 0 by a ReLU: a mask's larger one is the same in all rows.
    largest = finite.max(1)
    if finite.shape[1] == 2 and not capsules and not np.allclose(largest, largest[0], rtol=1e-5):
        return None
    return np.asarray(scores.argmax(1))


def _at_largest(marked: NDArray[np.intp], scores: Array) -> bool:
    """Whether classes are those of the largest scores, in more rows than chance gives."""
    finite = np.isfinite(scores).all(1)
    values, classes = scores[finite], marked[finite]
    if values.shape[1] == 1:
        return len(values) > 1 and float(values.max() - values.min()) > 1e-6
    ordered = np.sort(values, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 1e-5 * np.maximum(np.abs(ordered[:, -1]), 1e-12)
    if not (values.argmax(1) == classes)[clear].all():
        return False
    several = len(np.unique(classes[clear])) > 1
    return several and int(clear.sum()) * log2(values.shape[1]) >= _EVIDENCE


def _decide_alike(a: Array, b: Array) -> bool:
    """Whether two scores choose the same class in all rows, more of them than chance gives."""
    return a.shape == b.shape and _at_largest(np.asarray(a.argmax(1)), b)


def _squashed(c: _ScoresCandidate, inside: NDArray[np.bool_] | None) -> bool:
    """Whether lengths are at most 1, like those of capsules that represent probabilities."""
    lengths = c.scores if inside is None else c.scores[inside]
    return bool((lengths[np.isfinite(lengths)] <= 1 + 1e-4).all())


def _close(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    rows = np.isfinite(a).all(1) & np.isfinite(b).all(1)
    return bool(rows.any()) and np.allclose(a[rows], b[rows], rtol=1e-3, atol=1e-4)


def _all_related(candidates: Sequence[_ScoresCandidate]) -> bool:
    """Whether each is a known increasing function of the first, or the first of it."""
    first, *rest = candidates
    return all(_function(first.scores, c.scores) or _function(c.scores, first.scores) for c in rest)


def _function(a: Array, b: Array) -> bool:
    """Whether b is a, its square, softmax, log-softmax or sigmoid."""
    if a.shape != b.shape:
        return False
    values = a.astype(np.float64)
    with np.errstate(all="ignore"):
        powers = np.exp(values - values.max(1, keepdims=True))
        softmax = powers / powers.sum(1, keepdims=True)
        forms = (values, values**2, softmax, np.log(softmax), 1 / (1 + np.exp(-values)))
        return any(_close(form, b) for form in forms)


def _sums_to_one(scores: Array) -> bool:
    rows = scores[np.isfinite(scores).all(1)]
    whole = scores.shape[1] > 1 and np.allclose(rows.sum(1), 1, atol=1e-3)
    return bool(whole and (rows >= 0).all())


def _question(
    rivals: Sequence[_ScoresCandidate], inside: NDArray[np.bool_] | None, adds: bool
) -> UsageError:
    """Several outputs may be meant."""
    classes = [c.scores[inside if inside is not None else slice(None)].argmax(1) for c in rivals]
    differ = sum(len(set(row)) > 1 for row in zip(*classes, strict=True))
    choices = f"choose different classes for {differ} of {len(classes[0])} test images"
    if not differ:
        choices = f"have different values, although they choose the same classes for {len(classes[0])} images"
    options, python = [], []
    for c in rivals:
        if c.capsules and not adds:
            way = f"`{ONE_LINE}` in forward for the lengths of {c.name}"
            options.append(way)
            python.append(way)
            continue
        lengths = " for its lengths" if c.capsules else ""
        options.append(f"--describe scores={c.name}{lengths}")
        python.append(f"scores={c.name!r}{lengths}")
    lines = "" if not adds else f" In code: return only one (for capsules v: `{ONE_LINE}`)."
    return UsageError(
        f"{len(rivals)} outputs could hold the class scores.",
        f"They are {' and '.join(c.in_words for c in rivals)}, and {choices}.",
        f"Name the output that decides the class: {' or '.join(python)}.{lines}",
        command=f"Name the output that decides the class: {' or '.join(options)}.{lines}",
    )


def _no_scores(
    outputs: Arrays, classes: int, fits: Callable[[int], bool], images: Sequence[int]
) -> UsageError:
    sizes = ", ".join(f"{name} {list(value.shape[1:])}" for name, value in outputs.items())
    line = f"`{ONE_LINE}` for class capsules v [N, classes, size]"
    for value in outputs.values():
        shape = value.shape[1:]
        if shape == (1,) and classes == 2:
            line = "of one probability p [N, 1] `return torch.cat([1 - p, p], dim=1)`"
        if value.dtype.kind != "f" or len(shape) < 2:
            continue
        if len(shape) == 2 and not fits(shape[0]) and fits(shape[1]):
            line = f"`return v.norm(dim=1)` for capsules {list(shape)} with the classes last"
        elif len(shape) > 2 and fits(shape[0]):
            line = (
                f"the activation of each class; for capsules {list(shape)} whose lengths it was trained by, "
                "`return v.flatten(2).norm(dim=-1)`"
            )
    masks = [n for n, value in outputs.items() if looks_like_maps(value.shape[1:], images)]
    wanted = "one class" if classes == 1 else f"{classes or 'the'} classes"
    fix = f"Let forward return a score for each class, {line}; or name as many classes as there are scores."
    maps, python, command = "", "", ""
    if masks:
        maps = f" {masks[0]} looks like a mask: it has a score for every pixel."
        python = "If the network segments images, set task='segmentation'. Otherwise: "
        command = "If the network segments images, add --task segmentation. Otherwise: "
    return UsageError(
        f"None of the outputs could hold the scores of {wanted}.",
        f"The outputs for one image: {sizes}.{maps}",
        python + fix,
        command=command + fix,
    )


def scores_of(
    output: NDArray[Any], kind: str, multi_label: bool
) -> tuple[NDArray[np.float64], str]:
    """Scores ``[N, J]`` and their kind, from the model's output of ``length``, ``logits`` or ``probability``.

    docs/reference/runtime.md ("Scores") specifies them, so that C++ computes the same bits.
    """
    values = output.astype(np.float64)
    if kind != "logits":
        return values, kind
    if multi_label:
        # the two halves never overflow
        small = _exp(-np.abs(values))
        return np.where(values >= 0, 1.0, small) / (1.0 + small), "probability"
    values = _exp(values - values.max(axis=-1, keepdims=True))
    # sum() would add in another order
    return values / np.add.accumulate(values, axis=-1)[..., -1:], "probability"


def _exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The C library's ``exp``, as in C++; numpy's own differs in the last bit between processors."""
    return np.array([math.exp(v) for v in values.ravel()], np.float64).reshape(values.shape)
