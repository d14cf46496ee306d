"""The tables that inputs index, as far as they refuse an index."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from capsedge.models.user.looked_up_tables import TableBounds, table_bounds, table_sizes  # noqa: E402
from tests.tables import table  # noqa: E402

LookUp = Callable[[nn.Embedding, nn.Embedding, Tensor], Tensor]
ONE, NONE = TableBounds(30, 30), TableBounds()


class LooksUp(nn.Module):
    """Items and a user, from tables of 30 and 5 entries."""

    def __init__(self, look_up: LookUp) -> None:
        super().__init__()
        self.item, self.user, self.look_up = nn.Embedding(30, 4), nn.Embedding(5, 4), look_up

    def forward(self, ids: Tensor) -> Tensor:
        return self.look_up(self.item, self.user, ids)


def _cleaned(ids: Tensor) -> Tensor:
    changed = ids.clone()
    changed[changed < 0] = 0
    return changed


def _cleaned_by_a_view(ids: Tensor) -> Tensor:
    changed = ids.clone()
    changed[:, 0].clamp_(min=0)
    return changed


@table(
    "look_up, bounds",
    [
        (lambda item, user, ids: item(ids.reshape(-1).long().unsqueeze(0)), ONE),
        (lambda item, user, ids: item(ids % 30), NONE),  # any number may come
        (lambda item, user, ids: item(ids.clamp(max=29)), NONE),
        (lambda item, user, ids: item(ids[:, :2]), NONE),  # of the other columns, it says nothing
        (lambda item, user, ids: item(ids[:, 0]) + item(ids[:, 1:]).sum(1), ONE),
        (lambda item, user, ids: user(ids[:, 0]) + item(ids[:, 1:]).sum(1), TableBounds(5, 30)),
        (lambda item, user, ids: item(ids) + user(ids), TableBounds(5, 5)),
        (lambda item, user, ids: item(torch.stack(ids.unbind(1)[::-1], 1)), ONE),
        (lambda item, user, ids: item(torch.cat([ids, torch.zeros_like(ids)], 1)), NONE),
        (lambda item, user, ids: item(_cleaned(ids)), NONE),  # negative numbers are welcome
        (lambda item, user, ids: item(_cleaned_by_a_view(ids)), NONE),
        (lambda item, user, ids: item.weight[ids.long()], NONE),
        (lambda item, user, ids: item(torch.zeros(2, 6).long().to(ids)), NONE),
        (lambda item, user, ids: item(ids).missing, NONE),
    ],
)
def test_what_certainly_refuses_other_numbers(look_up: LookUp, bounds: TableBounds) -> None:
    assert table_bounds(LooksUp(look_up), [torch.zeros(2, 6, dtype=torch.int32)]) == [bounds]


@table(
    "look_up, size",
    [
        (lambda item, user, ids: item(ids % 30), 30),
        (lambda item, user, ids: user(ids[:, 0]) + item(ids[:, 1:]).sum(1), 5),
        (
            lambda item, user, ids: (
                item(torch.cat([ids, ids], 1)) + user(ids.unbind(1)[0])[:, None]
            ),
            5,
        ),
        (lambda item, user, ids: item.weight[ids.long()], 30),
        (lambda item, user, ids: item((ids > 3).long()), None),
    ],
)
def test_the_smallest_table_is_drawn_from(look_up: LookUp, size: int | None) -> None:
    assert table_sizes(LooksUp(look_up), [torch.zeros(2, 6, dtype=torch.int32)]) == [size]
