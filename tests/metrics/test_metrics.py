"""The figures of a comparison on values that are known by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.errors import UsageError
from capsedge.metrics import Decisions, angles
from capsedge.tolerance import (
    APPROXIMATE_AGREEMENT,
    DEFAULTS,
    MAX_GROWTH,
    NOISE_FACTOR,
    OTHER_OUTPUTS,
    Tolerance,
    excess,
    least_agreement,
    tolerances,
    undefined,
)
from capsedge.verification.comparison import OutputMetrics
from capsedge.verification.verify_options import parse_output_tolerance
from tests.conftest import ROOT
from tests.runtime.models import capsule_model, metadata, save


def test_tolerances_are_those_of_the_page() -> None:
    page = (ROOT / "docs/explanation/proof.md").read_text()
    found = {
        name: (float(atol), float(rtol))
        for names, atol, rtol in re.findall(
            r"^\| (\S.*?) \| (\d\S*) \| (\d\S*) \|", page, re.MULTILINE
        )
        for name in names.replace("`", "").split(", ")
    }
    wanted = {name: (tolerance.atol, tolerance.rtol) for name, tolerance in DEFAULTS.items()}
    assert found == wanted | {"other names": (OTHER_OUTPUTS.atol, OTHER_OUTPUTS.rtol)}


def test_figures_of_an_output() -> None:
    metrics = OutputMetrics("poses", Tolerance(0.1, 0.0))
    metrics.update(np.array([[3.0, 4.0]]), np.array([[3.0, 4.05]]))
    metrics.update(np.array([[0.0, 0.0]]), np.array([[0.2, 0.0]]))
    assert metrics.max_abs == pytest.approx(0.2)
    assert metrics.mean_abs == pytest.approx(0.25 / 4)
    assert metrics.relative == pytest.approx(0.2 / 4)
    assert metrics.nmse == pytest.approx((0.05**2 + 0.2**2) / 25)
    assert (metrics.over, metrics.worst_image) == (1, 1)
    assert metrics.worst == pytest.approx(2.0)
    assert not metrics.passed


def test_relative_part_follows_the_size_of_the_pose() -> None:
    metrics = OutputMetrics("poses", Tolerance(0.0, 0.01))
    metrics.update(np.array([[10.0, 0.0]]), np.array([[10.0, 0.09]]))
    assert metrics.passed
    metrics.update(np.array([[1.0, 0.0]]), np.array([[1.0, 0.09]]))
    assert metrics.over == 1


def test_noise_widens_the_tolerance() -> None:
    metrics = OutputMetrics("lengths", Tolerance(0.0, 0.0))
    wanted, found = np.array([[1.0], [1.0]]), np.array([[1.0005], [1.0005]])
    metrics.update(wanted, found, np.array([[2e-4], [1e-4]]))
    assert (metrics.over, metrics.worst_image) == (1, 1)


def test_no_noise_widens_it_without_limit() -> None:
    """Not by more than MOST of an image's largest value, whatever was measured, NaN too."""
    reference = np.array([[[4.0, 0.0], [0.5, 0.0]], [[0.0, 0.0], [0.1, 0.0]]])
    limits = np.array([4.0, 0.1]) * MAX_GROWTH
    for noise in (1.0, np.inf, np.nan):
        for share, passes in ((0.999, True), (1.001, False)):
            off = np.broadcast_to(share * limits[:, None, None], reference.shape)
            ratio = excess(off, reference, Tolerance(0.0, 0.0), np.full((2, 2, 1), noise))
            assert bool((ratio <= 1).all()) == passes, (noise, share)
    assert undefined(reference, np.array([[[9e-4], [1e-9]]] * 2)).tolist() == [
        [[False] * 2] * 2,
        [[True] * 2, [False] * 2],
    ]


def test_an_element_near_the_exact_value_passes() -> None:
    """FP64 is the referee: what eager FP32 lost is no error of the artefact; bounded too."""
    wanted, exact = np.array([[1.0], [1.0]]), np.array([[1.0003], [1.0003]])
    for found, conditioning, over in ((1.0003, 0.0, 0), (1.0005, 1e-4, 0), (1.4, 1.0, 2)):
        metrics = OutputMetrics("poses", Tolerance(1e-5, 0.0))
        metrics.update(wanted, np.full((2, 1), found), 0.0, exact, np.full((2, 1), conditioning))
        assert (metrics.over, metrics.undefined) == (over, over), found


def test_one_rule_for_all_that_judge() -> None:
    """atol + rtol * (largest magnitude of the pose) + NOISE * noise."""
    reference = np.array([[[3.0, -4.0], [0.0, 0.0]]])
    difference = np.array([[[0.5, 0.0], [0.1, 0.0]]])
    ratio = excess(difference, reference, Tolerance(0.1, 0.1))
    np.testing.assert_allclose(ratio, [[[1.0, 0.0], [1.0, 0.0]]])
    noise = np.array([[[4.0 * MAX_GROWTH / NOISE_FACTOR], [0.0]]])
    ratio = excess(difference, reference, Tolerance(0.1, 0.1), noise)
    np.testing.assert_allclose(ratio, [[[0.5 / (0.5 + 4 * MAX_GROWTH), 0.0], [1.0, 0.0]]])
    nothing_allowed = excess(difference, reference, Tolerance(0.0, 0.0))
    np.testing.assert_array_equal(nothing_allowed, [[[np.inf, 0.0], [np.inf, 0.0]]])


def test_lengths_beyond_one_are_judged_by_the_largest() -> None:
    """Nothing changes for those within [0, 1]; a tolerance that is given stays absolute."""
    reference = np.array([[0.9, 0.1], [1.0, 0.5], [8.0, 0.5]])
    found = reference + 2e-5
    default, given = (
        tolerances(["lengths"], stated)["lengths"] for stated in ((), [("", 1e-5, 0.0)])
    )
    np.testing.assert_allclose(
        excess(found - reference, reference, default), [[2, 2], [2, 2], [0.25, 0.25]]
    )
    np.testing.assert_allclose(excess(found - reference, reference, given), np.full((3, 2), 2))


def test_zero_tolerance_takes_equal_values_only() -> None:
    metrics = OutputMetrics("lengths", Tolerance(0.0, 0.0))
    metrics.update(np.ones((2, 3)), np.ones((2, 3)))
    assert metrics.passed
    metrics.update(np.ones((1, 3)), np.full((1, 3), 1 + 1e-7))
    assert metrics.over == 3
    assert metrics.to_dict()["worst_over_tolerance"] is None


def test_lost_values_are_not_differences() -> None:
    metrics = OutputMetrics("lengths", Tolerance(1.0, 0.0))
    metrics.update(np.array([[1.0, 2.0, np.inf]]), np.array([[np.nan, np.inf, 7.0]]))
    assert metrics.not_finite == 2
    assert metrics.max_abs == 0.0
    assert not metrics.passed


def test_flips_by_margin() -> None:
    decisions = Decisions()
    wanted = np.array([[0.9, 0.1, 0.0], [0.5, 0.49, 0.0], [0.2, 0.8, 0.0]])
    found = np.array([[0.1, 0.9, 0.0], [0.49, 0.5, 0.0], [0.2, 0.8, 0.0]])
    decisions.update(wanted, found, np.array([0, 1, 1]))
    document = decisions.to_dict()
    assert document["agreement"] == pytest.approx(1 / 3)
    assert [f["image"] for f in document["flips_by_margin"]] == [0, 1]
    first, _ = decisions.to_dict(["a/1.png", "b/2.png", "b/3.png"], "xyz".__getitem__)[
        "flips_by_margin"
    ]
    assert first["name"] == "a/1.png"
    assert (first["reference"], first["reference_classes"]) == ([0], ["x"])
    assert (first["artefact"], first["artefact_classes"]) == ([1], ["y"])
    assert "name" not in document["flips_by_margin"][0]
    assert [f["margin"] for f in document["flips_by_margin"]] == pytest.approx([0.8, 0.01])
    assert document["accuracy_reference"] == pytest.approx(2 / 3)
    assert document["accuracy_artefact"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("label", [3, -1])
def test_labels_of_other_classes_are_no_mistakes(label: int) -> None:
    scores = np.array([[0.9, 0.1, 0.0]])
    with pytest.raises(UsageError, match=f"the label {label}") as caught:
        Decisions().update(scores, scores, np.array([label]))
    assert "3 classes" in caught.value.why


def test_a_tie_is_no_flip_where_ties_are_meant() -> None:
    decisions = Decisions(tie=1e-5)
    decisions.update(np.array([[0.5, 0.5 - 1e-7]]), np.array([[0.5 - 1e-7, 0.5]]))
    assert (decisions.ties, len(decisions.flips), decisions.agreement) == (1, 0, 1.0)


def test_label_sets() -> None:
    decisions = Decisions(multi_label=True)
    decisions.update(np.array([[0.9, 0.6, 0.1]]), np.array([[0.8, 0.45, 0.1]]))
    (flip,) = decisions.flips
    assert (flip.reference, flip.artefact) == ((0, 1), (0,))
    assert flip.margin == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("scores", "task", "threshold"),
    [("lengths", "single-label", 0.5), ("logits", "multi-label", 0.0)],
)
def test_decisions_are_those_of_the_model(
    scores: str, task: str, threshold: float, tmp_path: Path
) -> None:
    model = capsule_model(scores=scores, properties=metadata(task=task).to_properties())
    decisions = Decisions.of(capsedge.load(save(model, tmp_path / "m.onnx")))
    assert decisions is not None
    assert (decisions.multi_label, decisions.threshold) == (task == "multi-label", threshold)
    assert decisions.accuracy_artefact is decisions.accuracy_reference is None


@pytest.mark.parametrize("degrees", [1e-6, 1e-3, 1.0, 45.0, 90.0, 179.999, 180.0])
def test_angles_small_and_large(degrees: float) -> None:
    a = np.array([[3.0, 0.0, 0.0]])
    radians = math.radians(degrees)
    b = 0.2 * np.array([[math.cos(radians), math.sin(radians), 0.0]])
    assert angles(a, b)[0] == pytest.approx(degrees, rel=1e-9)


def test_angles_of_vectors_without_length() -> None:
    zero, one = np.zeros((1, 2)), np.array([[1.0, 0.0]])
    assert angles(zero, zero)[0] == 0.0
    assert angles(zero, one)[0] == pytest.approx(90.0)


def test_poses_that_are_not_finite_have_no_angle() -> None:
    decisions = Decisions()
    poses = np.ones((2, 3, 4))
    broken = poses.copy()
    broken[0, 0, 0] = np.nan
    decisions.update_poses(poses, broken, np.eye(3)[:2])
    assert decisions.max_angle == 0.0
    assert decisions.max_length_error == 0.0


def test_frozen_couplings_need_not_agree_as_often() -> None:
    assert least_agreement(metadata()) == 1.0
    assert least_agreement(metadata(calibration={"frozen_couplings": {}})) == APPROXIMATE_AGREEMENT


def test_tolerance_grammar() -> None:
    names = ["lengths", "poses", "mine", "trace/poses"]
    table = tolerances(names)
    assert table["trace/poses"] == Tolerance(1e-4, 1e-4)
    assert table["lengths"] == Tolerance(1e-5, 0.0, unit=True)
    assert table["mine"] == OTHER_OUTPUTS
    stated = [parse_output_tolerance(text) for text in ("1e-3,0.25", "poses:0.5,0.25")]
    table = tolerances(names, stated)
    assert table["lengths"] == Tolerance(1e-3, 0.25)
    assert table["poses"] == Tolerance(0.5, 0.25)
    for bad in ("x", "1", "poses:", "poses:one,1", "poses:1,2,3"):
        with pytest.raises(UsageError, match="ATOL,RTOL"):
            parse_output_tolerance(bad)
