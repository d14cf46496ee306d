"""Observers choose ranges as their definitions say; tables come back and refuse what is stale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capsedge.calibration.ranges import BINS, METHODS, CalibrationTable, Histogram, range_method
from capsedge.errors import ArtefactError, UsageError


def _histogram(values: np.ndarray) -> Histogram:
    low, high = float(values.min()), float(values.max())
    return Histogram(low, high, np.histogram(values, BINS, (low, high))[0])


def _error(values: np.ndarray, low: float, high: float) -> float:
    step = (high - low) / 255
    rounded = low + np.rint((np.clip(values, low, high) - low) / step) * step
    return float(np.square(values - rounded).mean())


@pytest.fixture(scope="module")
def relu() -> np.ndarray:
    """Half-normal values with a few outliers, as activations have them."""
    rng = np.random.default_rng(0)
    values = np.maximum(rng.normal(size=200_000), 0)
    values[:3] = (40.0, 55.0, 60.0)
    return values


def test_minmax_covers_all_and_the_others_clip_outliers(relu: np.ndarray) -> None:
    h = _histogram(relu)
    ranges = {name: METHODS[name](h) for name in METHODS}
    assert ranges["minmax"] == (0.0, 60.0)
    for name in ("percentile", "entropy", "mse"):
        low, high = ranges[name]
        assert low == 0.0
        assert 2.0 < high < 60.0, (name, high)
    share = (relu <= ranges["percentile"][1]).mean()
    assert share >= 0.9999 - 1 / BINS


def test_mse_is_the_least_squares_range(relu: np.ndarray) -> None:
    h = _histogram(relu)
    chosen = _error(relu, *METHODS["mse"](h))
    for share in (1.0, 0.5, 0.2):
        assert chosen <= _error(relu, 0.0, 60.0 * share) * 1.02


def test_values_of_both_signs_and_constants() -> None:
    rng = np.random.default_rng(1)
    both = _histogram(rng.normal(size=50_000))
    for name, method in METHODS.items():
        low, high = method(both)
        assert low < -1, name
        assert high > 1, name
    constant = Histogram(2.0, 2.0, np.array([7] + [0] * (BINS - 1)))
    for method in METHODS.values():
        low, high = method(constant)
        assert np.isfinite([low, high]).all()


def test_unknown_method() -> None:
    with pytest.raises(UsageError, match="one of: minmax"):
        range_method("median")


def test_a_table_comes_back(relu: np.ndarray, tmp_path: Path) -> None:
    table = CalibrationTable.from_histograms("m", "d", "mse", 5, "test", {"relu": _histogram(relu)})
    path = tmp_path / "t.json"
    table.save(path)
    again = CalibrationTable.load(path)
    assert again.entries["relu"].low == table.entries["relu"].low
    assert again.entries["relu"].high == table.entries["relu"].high
    np.testing.assert_array_equal(
        again.entries["relu"].histogram.counts, table.entries["relu"].histogram.counts
    )
    again.check("m", "d", "mse", ["relu"], path)
    with pytest.raises(ArtefactError, match="no entry for 'tanh'"):
        again.check("m", "d", "mse", ["relu", "tanh"], path)
    for key in (("x", "d", "mse"), ("m", "x", "mse"), ("m", "d", "minmax")):
        with pytest.raises(ArtefactError, match="stale"):
            again.check(*key, [], path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 9}', '{"schema": 1, "tensors": {"x": 1}}', "\0"]
)
def test_damaged_tables(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ArtefactError, match="not a readable calibration table"):
        CalibrationTable.load(path)
    with pytest.raises(UsageError, match="no such file"):
        CalibrationTable.load(tmp_path / "none.json")
