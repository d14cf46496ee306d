"""Short runs of a module have one thread while it is exported; long ones have all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from capsedge.exporters import subject


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("long", "inside"), [(float("inf"), 1), (0.0, 2)])
def test_a_long_run_brings_the_threads_back(
    monkeypatch: pytest.MonkeyPatch, long: float, inside: int
) -> None:
    monkeypatch.setattr(subject, "_LONG", long)
    with subject.one_thread():
        assert torch.get_num_threads() == 1
        with subject.watched():
            pass
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 2


def test_an_error_restores_the_threads() -> None:
    with pytest.raises(ZeroDivisionError), subject.one_thread(), subject.watched():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def test_outside_of_an_export_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_LONG", 0.0)
    torch.set_num_threads(1)
    with subject.watched():
        pass
    assert torch.get_num_threads() == 1
