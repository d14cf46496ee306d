"""Statistics are numpy's; the stable window is where the series is steady."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsedge.runtime.profiling.timing import stable_window, summarize

times = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=300).map(np.array)


@given(times)
def test_percentiles_are_numpys(seconds):
    s = summarize(seconds)
    ms = 1e3 * seconds
    assert (s.p90, s.p95, s.p99, s.p99_9) == tuple(np.percentile(ms, (90, 95, 99, 99.9)))
    assert s.median == np.median(ms)
    assert (s.min, s.max, s.count) == (ms.min(), ms.max(), len(ms))
    assert s.std == pytest.approx(np.std(ms))
    assert s.cv == pytest.approx(np.std(ms) / np.mean(ms))
    assert s.throughput(8) == pytest.approx(8 / np.mean(seconds))


def test_a_steady_series_is_stable_from_its_start():
    seconds = 1e-3 * (1 + 0.02 * np.sin(np.arange(400)))
    window = stable_window(seconds)
    assert (window.start, window.count) == (0, 400)
    assert window.median == pytest.approx(1.0, rel=0.02)


def test_a_warm_up_is_cut_off():
    window = stable_window(1e-3 * np.r_[np.full(100, 3.0), np.ones(300)])
    assert window.start == 100
    assert window.median == 1.0


def test_two_speeds_are_not_stable():
    seconds = 1e-3 * np.tile(np.r_[np.ones(50), np.full(50, 2.0)], 4)
    assert stable_window(seconds).start is None
