"""Several models as one: what is averaged, what does not fit, and how images reach every member."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import capsedge
from capsedge.errors import ArtefactError, ShapeError, UsageError
from capsedge.runtime import load as loading
from capsedge.runtime.metadata.metadata import Outputs, Preprocessing
from capsedge.runtime.metadata.scores import scores_of
from capsedge.runtime.session.ensemble import average, mean
from capsedge.runtime.session.predictions import Prediction
from capsedge.spec import limits
from tests.runtime.models import SIDE, capsule_model, metadata, save
from tests.runtime.pictures import LEFT, encoded

FULL = np.full((SIDE, SIDE), 200, np.uint8)


def made(place: Path, gain: float = 4.0, **changes: Any) -> Path:
    """A file; another gain gives other scores."""
    options = {k: changes.pop(k) for k in ("scores", "batch", "reconstruction") if k in changes}
    described = metadata(**changes).to_properties()
    return save(capsule_model(properties=described, gain=gain, **options), place)


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    return [made(tmp_path / "a.onnx"), made(tmp_path / "b.onnx", 1.0)]


# What is averaged


@given(arrays(np.float64, (3, 4, 5), elements=st.floats(0, 1)))
def test_the_mean_lies_between_the_members_and_keeps_equal_scores(rows: np.ndarray) -> None:
    found = mean(list(rows))
    assert (found >= rows.min(0) - 1e-15).all()
    assert (found <= rows.max(0) + 1e-15).all()
    np.testing.assert_allclose(found, rows.mean(0), rtol=1e-14)
    assert (mean([rows[0]] * 4) == rows[0]).all()


@given(arrays(np.float64, (2, 4), elements=st.floats(0, 1)), st.integers(1, 4), st.floats(0, 1))
def test_labels_follow_the_averaged_scores(scores: np.ndarray, top: int, least: float) -> None:
    found = [Prediction((), row, np.zeros((4, 3), np.float32), "length") for row in scores]
    one = average(found, [False, False], str, top, least)
    assert one.scores.tolist() == mean(list(scores)).tolist()
    assert len(one.labels) == min(top, int((one.scores >= least).sum()))
    assert [label.score for label in one.labels] == sorted(one.scores, reverse=True)[
        : len(one.labels)
    ]
    assert one.poses.shape == (4, 0)


@given(arrays(np.float32, (2, 1, 5), elements=st.floats(-40, 40, width=32)))
def test_logits_are_averaged_as_probabilities(logits: np.ndarray) -> None:
    rows = [scores_of(each, "logits", False)[0][0] for each in logits]
    assert mean(rows).sum() == pytest.approx(1)


def test_lengths_are_averaged(pair: list[Path]) -> None:
    with capsedge.load(pair) as ensemble:
        (found,) = ensemble.predict(LEFT)
        alone = [member.predict(LEFT)[0] for member in ensemble.members]
    assert alone[0].score != alone[1].score
    assert found.scores.tolist() == mean([p.scores for p in alone]).tolist()
    assert (found.label, found.score_kind) == ("left", "length")
    assert found.labels[0].pose.size == 0


def test_logits_and_probabilities(tmp_path: Path) -> None:
    files = [made(tmp_path / f"{k}.onnx", gain, scores="logits") for k, gain in enumerate((1, 9))]
    ensemble = capsedge.load(files)
    (found,) = ensemble(LEFT)
    assert found.score_kind == ensemble.score_kind == "probability"
    assert found.scores.sum() == pytest.approx(1)


def test_several_labels(tmp_path: Path) -> None:
    files = [
        made(tmp_path / f"{k}.onnx", gain, task="multi-label") for k, gain in enumerate((9, 8))
    ]
    (found,) = capsedge.load(files)(FULL)
    assert {label.name for label in found.labels} == {"left", "right"}


def test_values_of_a_regression(tmp_path: Path) -> None:
    outputs = Outputs(values=("lengths",), names=("x", "y", "z"), units=("m", "", ""))
    declared = {"task": "regression", "outputs": outputs, "class_names": ()}
    files = [made(tmp_path / f"{k}.onnx", gain, **declared) for k, gain in enumerate((1, 9))]
    ensemble = capsedge.load(files)
    (found,) = ensemble(LEFT)
    alone = [member.predict(LEFT)[0].values for member in ensemble.members]
    for value, *parts in zip(found.values, *alone, strict=True):
        assert value.value == sum(p.value for p in parts) / 2
    assert found.values[0].unit == "m"
    with pytest.raises(UsageError, match="estimates"):
        ensemble.predict(LEFT, top_k=2)


def test_nothing_to_see_needs_all_members_that_judge() -> None:
    def said(nothing: str) -> Prediction:
        return Prediction((), np.zeros(2), np.zeros((2, 0), np.float32), "length", atypical=nothing)

    both = [said("blank"), said("")]
    assert average(both, [True, True], str, 1, None).atypical == ""
    assert average(both, [True, False], str, 1, None).atypical == "blank"
    assert average([said(""), said("")], [False, False], str, 1, None).atypical == ""


# How images reach every member


def different(tmp_path: Path) -> list[Path]:
    """Members that prepare images differently: the second takes them to twice the range."""
    other = Preprocessing(SIDE, SIDE, 1, mean=(0.5,), std=(0.5,))
    return [made(tmp_path / "a.onnx"), made(tmp_path / "b.onnx", preprocessing=other)]


def test_each_member_prepares_for_itself(tmp_path: Path) -> None:
    ensemble = capsedge.load(different(tmp_path))
    given = ensemble.prepare(LEFT)
    assert given.shape == (2, 1, SIDE, SIDE)
    for k, member in enumerate(ensemble.members):
        assert (given[k] == member.prepare(LEFT)).all()
    wanted = mean([member(LEFT)[0].scores for member in ensemble.members]).tolist()
    for images, options in (
        (LEFT, {}),
        (io.BytesIO(encoded(LEFT)), {}),
        ((image for image in [LEFT]), {}),
        (given[None], {"prepared": True}),
    ):
        assert ensemble.predict(images, **options)[0].scores.tolist() == wanted
    for options, error in (({"invert": True}, UsageError), ({}, ShapeError)):
        wrong = given[None] if options else given[None, :1]
        with pytest.raises(error):
            ensemble.predict(wrong, prepared=True, **options)
    with pytest.raises(UsageError, match="differently"):
        ensemble.predict(given[:1], prepared=True)


def test_an_open_file_is_read_once_for_all(pair: list[Path]) -> None:
    ensemble = capsedge.load(pair)
    assert ensemble.predict(io.BytesIO(encoded(LEFT)))[0].label == "left"
    found = ensemble.stream(iter([LEFT, LEFT[:, ::-1]]))
    assert [p.label for p in found] == ["left", "right"]
    assert ensemble.predict([]) == []


def test_a_light_image_is_inverted_for_all(pair: list[Path]) -> None:
    (found,) = capsedge.load(pair).predict(255 - LEFT, invert=True)
    assert found.label == "left"


def test_fixed_batches(tmp_path: Path) -> None:
    files = [made(tmp_path / "a.onnx", batch=2), made(tmp_path / "b.onnx", 1.0, batch=3)]
    found = capsedge.load(files).predict(np.stack([LEFT] * 5))
    assert [p.label for p in found] == ["left"] * 5


@pytest.mark.parametrize("threads", [1, 3, 4, 5])
def test_threads_are_shared(pair: list[Path], threads: int) -> None:
    with capsedge.load(pair, threads=threads) as ensemble:
        assert ensemble.together == (threads >= 2 * loading.SIDE_BY_SIDE)
        counts = [member.backend.threads for member in ensemble.members]
        assert (sum(counts) if ensemble.together else counts[0]) == threads
        alone = mean([m(LEFT)[0].scores for m in ensemble.members])
        assert ensemble(LEFT)[0].scores.tolist() == alone.tolist()


# What does not fit, and what is refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"class_names": ("left", "none", "right")}, "number 1 is 'right'"),
        ({"task": "multi-label"}, "task: single-label and multi-label"),
        ({"scores": "logits"}, "kind of scores"),
        ({"preprocessing": None}, "preprocessing"),
    ],
)
def test_files_that_do_not_fit(pair: list[Path], changes: dict[str, Any], said: str) -> None:
    other = made(pair[1], 2.0, **changes)
    with pytest.raises(UsageError) as error:
        capsedge.load([pair[0], other])
    assert said in error.value.why


def test_other_sizes_do_not_fit(pair: list[Path], tmp_path: Path) -> None:
    other = metadata(preprocessing=Preprocessing(SIDE, SIDE, 3)).to_properties()
    colour = save(capsule_model(properties=other, channels=3), tmp_path / "colour.onnx")
    with pytest.raises(UsageError, match=r"input: \[1, 8, 8\] and \[3, 8, 8\]"):
        capsedge.load([pair[0], colour])


def test_a_file_without_metadata(pair: list[Path], tmp_path: Path) -> None:
    plain = save(capsule_model(properties={}), tmp_path / "plain.onnx")
    with pytest.raises(ArtefactError, match="states no classes") as caught:
        capsedge.load([pair[0], plain])
    assert f"capsedge optimize {plain} -o described.onnx --classes labels.txt" in caught.value.fix


def test_the_number_of_members(pair: list[Path]) -> None:
    for count in (0, 1, limits.MEMBERS + 1):
        with pytest.raises(UsageError, match=f"ensemble of {count} model"):
            capsedge.load(pair[:1] * count)


def test_the_same_file_twice(pair: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(pair[0].read_bytes())
    for other, said in ((pair[0], "given twice"), (copy, "is the same as")):
        with pytest.raises(UsageError, match=said):
            capsedge.load([pair[0], other])


def test_members_are_sessions() -> None:
    with pytest.raises(UsageError, match="is not a session"):
        capsedge.Ensemble([1, 2])  # type: ignore[list-item]


def test_what_belongs_to_one_network(pair: list[Path]) -> None:
    ensemble = capsedge.load(pair)
    for call in (ensemble.reconstruct, ensemble.run):
        with pytest.raises(UsageError, match="An ensemble does not"):
            call()


def test_other_methods_of_a_session_are_those_of_the_members(pair: list[Path]) -> None:
    ensemble = capsedge.load(pair)
    with pytest.raises(AttributeError, match=r"ensemble\.members\[0\]\.run_batches"):
        ensemble.run_batches  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"ensemble\.members\[0\]\.metadata"):
        ensemble.metadata  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"has no 'colour'$"):
        ensemble.colour  # type: ignore[attr-defined] # noqa: B018


def test_it_ends_with_its_block(pair: list[Path]) -> None:
    with capsedge.load(pair, threads=8) as ensemble:
        assert repr(ensemble).startswith(
            "<Ensemble of 2: mean length, run side by side\n  a.onnx + b"
        )
        assert str(pair[1]) in ensemble._repr_html_()
    assert ensemble.closed
    assert all(member.closed for member in ensemble.members)
    for call in (ensemble.predict, ensemble.stream):
        with pytest.raises(UsageError, match="is closed"):
            call(LEFT)
