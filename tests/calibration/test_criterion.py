"""What a file is judged by without labels: answers and margins, or numbers; and the gate on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import capsedge
from capsedge.calibration import mixed_precision
from capsedge.calibration.accuracy import Criterion, Gate, Outcome, compare, sample_outputs
from capsedge.calibration.quantize_options import QuantizeOptions
from capsedge.datasets import ImageSet
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.metrics import ErrorCount, OutputError, has_columns
from capsedge.runtime.load import load_bytes
from tests.foreign.files import IMAGES, MADE


def _outcome(reference: list, found: list, labels: list | None = None) -> Outcome:
    a, b = (np.array(v, np.float32) for v in (reference, found))
    data = ImageSet("test", np.zeros((len(a), 1)), None if labels is None else np.array(labels))
    return compare({"y": [a]}, {"y": [b]}, data, Criterion("y"))


def _numbers(reference: np.ndarray, found: np.ndarray) -> Outcome:
    data = ImageSet("test", np.zeros((len(reference), 1)))
    return compare({"y": [reference]}, {"y": [found]}, data, Criterion(None, ("y",)))


SURE, UNSURE = [0.9, 0.1], [0.5, 0.49]


def test_answers_that_change_count_and_the_sure_ones_may_not() -> None:
    reference = [SURE] * 60 + [UNSURE] * 40
    found = [SURE] * 60 + [UNSURE] * 39 + [UNSURE[::-1]]
    outcome = _outcome(reference, found)
    assert outcome.metric == "agreement"
    assert outcome.drop == pytest.approx(1.0)
    assert Gate().passes(outcome)  # 1 point, and its margin is small
    assert not Gate(0.9).passes(outcome)
    lost = _outcome(reference, [UNSURE[::-1], *found[1:-1], UNSURE])
    assert lost.drop == pytest.approx(1.0)
    assert lost.largest_changed_margin == pytest.approx(0.8)
    # FP32 was as sure of it as of most: not surer than half of the answers, so this alone passes ...
    assert Gate().passes(lost)
    very = [[5.0, 0.0], *reference[1:]]
    lost = _outcome(very, [[0.0, 5.0], *reference[1:]])
    assert any("margin of 5" in why for why in Gate().failures(lost))


def test_with_labels_the_gate_is_on_accuracy_as_ever() -> None:
    reference, found = [SURE] * 1000, [SURE] * 998 + [SURE[::-1]] * 2
    outcome = _outcome(reference, found, [0] * 1000)
    assert outcome.metric == "accuracy"
    assert outcome.drop == pytest.approx(0.2)
    assert not Gate().passes(outcome)
    assert Gate(0.2 + 1e-9).passes(outcome)


def test_numbers_are_judged_by_their_range() -> None:
    rng = np.random.default_rng(0)
    reference = (rng.random((100, 3)) * [180, 1, 1]).astype(np.float32)
    off = reference.copy()
    off[:, 1] += 0.02  # 2 % of its own range, and nothing beside that of the first
    outcome = _numbers(reference, off)
    assert outcome.metric == "error"
    assert outcome.drop == pytest.approx(2.0, rel=0.1)
    assert not Gate().passes(outcome)
    assert Gate(3.0).passes(outcome)
    one = reference.copy()
    one[7, 0] += 40.0  # one value is far off; the mean error is small
    outcome = _numbers(reference, one)
    assert outcome.drop < 1.0
    assert any("22." in why or "allowed" in why for why in Gate().failures(outcome))
    assert Gate(1.0, 30.0).passes(outcome)
    still = np.full((10, 2), 4.0, np.float32)
    assert _numbers(still, still + np.float32(0.004)).drop == pytest.approx(0.1, rel=0.01)
    assert _numbers(0 * still, 0 * still + 1).drop == np.inf
    assert _numbers(0 * still, 0 * still).drop == 0


def test_whole_numbers_and_sizes() -> None:
    count = ErrorCount("best", False)
    count.update(np.arange(10), np.array([*range(9), 0]))
    assert count.result().mean_share == pytest.approx(0.1)
    count = ErrorCount("where", False)
    with pytest.raises(UnsupportedModelError, match="depends on its values"):
        count.update(np.zeros(3), np.zeros(4))


def test_what_is_judged_is_said_and_written(tmp_path: Path) -> None:
    file = MADE["two_inputs_and_outputs"]()
    model, out = file.model.SerializeToString(), tmp_path / "q.onnx"
    report = capsedge.quantize(model, out, max_drop=5, calib_data=file.data)
    assert [o.name for o in report.outcome.outputs] == ["turned", "best"]
    assert report.criterion.startswith("the numbers of turned, best (the file names no output")
    record = {p.key: p.value for p in onnx.load(out).metadata_props}
    evaluation = json.loads(record["capsedge_quantization"])["evaluation"]
    assert evaluation["metric"] == "error"
    assert evaluation["max_drop"] == 5
    assert evaluation["max_error"] == 10
    assert evaluation["outputs"][0]["name"] == "turned"
    # The same with the scores named: their answers.
    report = capsedge.quantize(
        MADE["opset17"]().model.SerializeToString(),
        scores="y",
        calib_data=IMAGES,
    )
    assert report.outcome.metric == "agreement"
    assert report.max_drop == 1.0


def test_labels_tell_which_output_decides() -> None:
    model = MADE["opset17"]().model.SerializeToString()
    labels = np.arange(40) % 5
    data = answered(model)
    report = capsedge.quantize(
        model,
        max_drop=100,
        calib_data=IMAGES["x"][:20],
        data=data,
    )
    assert report.outcome.metric == "accuracy"
    assert "the class of y" in report.criterion
    words = MADE["words"]().model.SerializeToString()
    with pytest.raises(UsageError, match=r"labels up to 6"):
        capsedge.quantize(
            model,
            scores="y",
            calib_data=IMAGES["x"][:20],
            data=ImageSet("t", IMAGES["x"][20:], labels[20:] + 2),
        )
    data = answered(words)
    report = capsedge.quantize(
        words,
        max_drop=100,
        calib_data=IMAGES["x"][:20],
        data=data,
    )
    assert report.outcome.accuracy is not None
    # Labels that the model cannot know stop the work before it begins.
    assert data.labels is not None
    wrong = replace(data, labels=(data.labels + 1) % 5)
    with pytest.raises(UsageError, match="no better than chance"):
        capsedge.quantize(
            model,
            max_drop=100,
            calib_data=IMAGES["x"][:20],
            data=wrong,
        )


def answered(model: bytes) -> ImageSet:
    """Images with the model's own answers for labels."""
    data = ImageSet("test", IMAGES["x"][20:])
    found = sample_outputs(load_bytes(model, Path("m.onnx")), data)["y"]
    return replace(data, labels=found.reshape(len(found), -1).argmax(1))


def test_python_is_told_python() -> None:
    model = MADE["opset17"]().model.SerializeToString()
    x = IMAGES["x"]
    for arguments, word in (
        ({"calib_data": x[:, 0]}, "takes float32 [N, 1, 8, 8]"),
        ({"calib_data": {"z": x}}, "the inputs are x"),
        ({"calib_data": (255 * np.abs(x)).astype(np.uint8)}, "pixels cannot be prepared"),
        ({"calib_data": x, "options": QuantizeOptions(scores="z")}, "no output 'z'"),
        ({"calib_data": x, "data": x}, "used for calibration"),
        ({"calib_data": x[:2]}, "2 images are not enough"),
        (
            {"calib_data": x, "options": QuantizeOptions(max_drop=0, max_error=0)},
            "loses too much",
        ),
    ):
        with pytest.raises(capsedge.CapsedgeError) as caught:
            capsedge.quantize(model, **arguments)
        assert word in str(caught.value)
        assert "--" not in str(caught.value)


def test_arrays_of_files(tmp_path: Path) -> None:
    """npy, and npz under any name for a single input."""
    model = MADE["opset17"]().model.SerializeToString()
    np.save(tmp_path / "a.npy", IMAGES["x"])
    np.savez(tmp_path / "b.npz", whatever=IMAGES["x"])
    found = [
        capsedge.quantize(
            model,
            max_drop=100,
            max_error=100,
            calib_data=tmp_path / name,
        ).model
        for name in ("a.npy", "b.npz")
    ]
    assert onnx.load_from_string(found[0]).graph == onnx.load_from_string(found[1]).graph
    two = MADE["two_inputs_and_outputs"]()
    np.savez(tmp_path / "c.npz", x=two.data["x"])
    with pytest.raises(UsageError, match="does not have an array for every input"):
        capsedge.quantize(two.model.SerializeToString(), calib_data=tmp_path / "c.npz")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "precision", ["int8", "fp16", pytest.param("mixed", marks=pytest.mark.thorough)]
)
def test_without_labels_from_a_folder_of_images(path: Path, tmp_path: Path, precision: str) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for k in range(50):
        Image.fromarray(rng.integers(0, 256, (10, 10), dtype=np.uint8)).save(tmp_path / f"{k}.png")
    report = capsedge.quantize(
        path,
        max_drop=100,
        precision=precision,
        calib_data=tmp_path,
    )
    assert report.outcome.accuracy is None
    assert report.outcome.metric == "agreement"
    assert report.images["evaluation"] == 25


@pytest.mark.thorough
def test_full_like(tmp_path: Path) -> None:
    """A free dimension without a name, which ONNX Runtime took for -1 in the Shape of torch.full_like."""
    torch = pytest.importorskip("torch")
    from tests.exporters.own_nets import Operators

    path = tmp_path / "net.onnx"
    capsedge.export(Operators(scaled=True).eval(), path, example=torch.rand(2, 1, 10, 10))
    x = np.random.default_rng(0).random((60, 1, 10, 10)).astype(np.float32)
    for precision in ("int8", "fp16"):
        report = capsedge.quantize(path, precision=precision, max_drop=100, calib_data=x)
        assert report.outcome.images == 30
        assert report.outcome.error < 0.05


def test_an_output_with_one_value_a_sample_has_one_range() -> None:
    """``[N]`` of a file with a batch, whose last run is smaller than the others."""
    reference = [np.array([0, 100, 50], np.float32), np.array([100], np.float32)]
    found = [part + np.float32(1) for part in reference]
    data = ImageSet("test", np.zeros((4, 1)))
    outcome = compare({"y": reference}, {"y": found}, data, Criterion(None, ("y",), batched=True))
    assert outcome.drop == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shapes", "batched", "expected"),
    [
        ([(5, 3), (2, 3)], True, True),
        ([(5,), (2,)], True, False),
        ([(5,), (5,)], False, True),
        ([(5,), (2,)], False, False),
        ([(5, 65)], True, False),
        ([("N", 3)], True, True),
        ([("N", "K")], True, False),
        ([()], False, False),
    ],
)
def test_values_with_ranges_of_their_own(shapes: list, batched: bool, expected: bool) -> None:
    assert has_columns(shapes, batched) == expected


@pytest.mark.parametrize(
    ("mean", "largest", "fits"),
    [(0.007, 0.07, True), (0.008, 0.07, False), (0.007, 0.08, False), (0.02, 0.07, False)],
)
def test_a_search_leaves_room_for_other_images(mean: float, largest: float, fits: bool) -> None:
    """1 % and 10 % are allowed; the best of many candidates is a little lucky on the images of the search."""
    error = OutputError("values", 1.0, 2.0, mean, largest, 0.01)
    outcome = Outcome(100, None, None, 1.0, 0.01, outputs=(error,))
    assert mixed_precision._fits(Gate(), outcome) is fits
    assert Gate().passes(outcome) is (mean <= 0.01)
