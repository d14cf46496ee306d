"""Pictures of routing, for every routing: what is drawn is in the trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import capsedge
from capsedge.runtime.session.classify import blend_class_pictures
from capsedge.runtime.session.routing_trace import Trace
from capsedge.runtime.zoo import default_model
from capsedge.viz import evidence_figures, routing_figures
from capsedge.viz.trace_data import (
    Grid,
    entropy,
    even,
    grid_over_input,
    over_parents,
    shares_of_class,
)
from tests.viz import traces
from tests.viz.conftest import SAMPLES

pytest.importorskip("matplotlib")
FILE = SAMPLES / "digit-5.png"
ROUTINGS = ("dynamic", "em", "attention")


@pytest.fixture(params=ROUTINGS)
def traced(request: pytest.FixtureRequest) -> Iterator[capsedge.Session]:
    """A session with a trace made by hand, of each routing."""
    with capsedge.load(f"digits-{request.param}") as session:
        session.trace = lambda images, prepared: traces.trace(request.param, len(images))
        session.can.check_trace = lambda: None
        session.made = traces.trace(request.param)
        yield session


def test_couplings(traced: capsedge.Session):
    figure = capsedge.viz.couplings(traced, FILE)
    layers = traced.made.layers
    assert len(figure.axes) == 3 * len(layers)
    means, entropies, largest = figure.axes[-3:]
    last = layers[-1].couplings[0].astype(np.float64)
    best = means.get_lines()[-1]  # drawn above the others
    assert best.get_label() == "5"
    np.testing.assert_allclose(best.get_ydata(), last.mean(axis=1)[:, 5], rtol=1e-6)
    (median,) = entropies.get_lines()
    p = last
    wanted = -(p * np.log(p)).sum(axis=-1) / np.log(10)
    np.testing.assert_allclose(median.get_ydata(), np.median(wanted, axis=1), rtol=1e-5)
    for t, stairs in enumerate(largest.patches):
        counts, _ = np.histogram(last[t].max(axis=-1), 20, (0, 1))
        np.testing.assert_allclose(stairs.get_data().values, counts / last.shape[1])


def test_agreement(traced: capsedge.Session):
    found = routing_figures.compute_agreement(traced, FILE)
    layer = traced.made.layers[-1]
    distances = traced.metadata.routing == "em"
    assert found.distances is distances
    counted = layer.distances if distances else layer.agreement
    (drawn,) = found.agreed
    assert drawn.parents[0] == "5"
    # Every vote is in a bin, with its coupling.
    np.testing.assert_allclose(
        drawn.counts[:, 0].sum(axis=1), layer.couplings[0, :, :, 5].sum(axis=1), rtol=1e-5
    )
    inside = np.clip(counted[0, 1, :, 5], drawn.edges[0], drawn.edges[-1])
    wanted, _ = np.histogram(inside, drawn.edges, weights=layer.couplings[0, 1, :, 5])
    axis = found.draw().axes[1]
    np.testing.assert_allclose(axis.patches[0].get_data().values, wanted)
    with pytest.raises(capsedge.UsageError, match="Choose one of:"):
        routing_figures.compute_agreement(traced, FILE, layer="none")
    assert routing_figures.compute_agreement(traced, FILE, layer=traced.made.layers[0].name).agreed


def test_iterations(traced: capsedge.Session):
    found = routing_figures.compute_iterations(traced, FILE)
    layer, (image,) = traced.made.layers[-1], found.per_image
    if traced.metadata.routing == "em":
        wanted = layer.activations[0]
    elif traced.metadata.routing == "dynamic":
        wanted = np.linalg.norm(layer.poses[0], axis=-1)
    else:
        c = layer.couplings[0]
        wanted = (c * layer.agreement[0]).sum(axis=1) / c.sum(axis=1)
    np.testing.assert_allclose(image.strengths, wanted, rtol=1e-4)
    figure = found.draw()
    bars = [axis for axis in figure.axes if axis.patches]
    assert len(bars) == layer.iterations
    for t, axis in enumerate(bars):
        widths = [bar.get_width() for bar in axis.patches]
        np.testing.assert_allclose(widths, wanted[t], rtol=1e-4)
    if image.pictures is not None:
        decoded = traced.decode(layer.poses[0, :, 5], 5)
        drawn = figure.axes[2].images[0].get_array()
        assert np.array_equal(drawn, blend_class_pictures(decoded[:1], [0]))


def test_responsibilities(traced: capsedge.Session):
    found = evidence_figures.compute_responsibilities(traced, FILE)
    assert found.names[0][0] == "5"
    np.testing.assert_allclose(found.shares.sum(axis=(2, 3)), 1.0, rtol=1e-6)
    axis = found.draw().axes[1]
    assert np.array_equal(axis.images[1].get_array(), 100 * found.shares[0, 0])
    assert tuple(axis.images[1].get_extent()) == pytest.approx(found.grid.extent)
    one = evidence_figures.compute_responsibilities(traced, FILE, of="3")
    assert one.names == (("3",),)


def test_a_part_is_found_where_it_was_put():
    """One child has all of the class: the map names its place, through one layer and through two."""
    above = traces.layer("attention", (1, 1), (3, 3), 1, 6, 10, name="classes")
    zero = np.zeros_like(above.couplings)
    zero[0, -1, (2 * 3 + 1) * 6 + 4, 7] = 1.0  # type 4 at row 2, column 1
    above = replace(above, couplings=zero, agreement=np.ones_like(zero))
    one = shares_of_class([above], 0, 7)
    assert np.argwhere(one.shares).tolist() == [[2, 1]]
    below = traces.layer("attention", (3, 3), (2, 3), 2, 8, 6)
    zero = np.zeros_like(below.couplings)
    zero[0, -1, 2, 1, (1 * 3 + 2) * 8 + 5, 4] = 1.0  # of that parent, type 5 at row 1, column 2
    below = replace(below, couplings=zero, agreement=np.ones_like(zero))
    two = shares_of_class([below, above], 0, 7)
    assert two.layer == "capsules.0"
    assert np.argwhere(two.shares).tolist() == [[2 * 2 + 1, 2 * 1 + 2]]
    assert two.shares.sum() == pytest.approx(1.0)


def test_children_ordered_by_type_lie_in_the_same_places():
    layer = traces.layer("attention", (1, 1), (3, 2), 1, 4, 10, name="classes")

    def by_type(values: np.ndarray) -> np.ndarray:
        places = values.reshape(*values.shape[:2], 6, 4, values.shape[-1])
        return places.swapaxes(2, 3).reshape(values.shape)

    turned = replace(
        layer,
        types_first=True,
        couplings=by_type(layer.couplings),
        agreement=by_type(layer.agreement),
    )
    wanted = shares_of_class([layer], 0, 7).shares
    np.testing.assert_allclose(shares_of_class([turned], 0, 7).shares, wanted)
    assert not np.allclose(
        shares_of_class([replace(turned, types_first=False)], 0, 7).shares, wanted
    )


def test_in_em_routing_a_child_counts_as_much_as_it_is_active():
    """The weights of the M-step: responsibility times activation (Hinton et al. 2018, procedure 1)."""
    layer = traces.layer("em", (1, 1), (3, 3), 1, 6, 10, name="classes")
    weights = layer.couplings[0, -1, :, 7].astype(np.float64) * layer.children[0, -1]
    wanted = (weights / weights.sum()).reshape(3, 3, 6).sum(axis=-1)
    np.testing.assert_allclose(shares_of_class([layer], 0, 7).shares, wanted, rtol=1e-6)
    children = layer.children.copy()
    children[0, -1, 6:12] = 0.0  # row 0, column 1
    found = shares_of_class([replace(layer, children=children)], 0, 7).shares
    assert found[0, 1] == 0
    assert (np.delete(found.reshape(-1), 1) > 0).all()


def test_a_trace_of_em_routing_without_the_children_is_refused():
    layer = replace(traces.layer("em", (1, 1), (3, 3), 1, 6, 10), children=None)
    with pytest.raises(capsedge.UsageError, match="--with trace"):
        shares_of_class([layer], 0, 7)


def test_children_without_a_place_are_refused():
    layer = replace(traces.dynamic(), child_grid=None, kernel=None, strides=None)
    with pytest.raises(capsedge.UsageError, match="positions of the children"):
        shares_of_class([layer], 0, 0)


def test_a_trace_of_other_shapes_is_refused(dynamic: capsedge.Session, monkeypatch):
    good = traces.dynamic()
    for wrong in (
        replace(good, agreement=good.agreement[..., :-1]),
        replace(good, iterations=7),
        replace(good, grid=(2, 2)),
        replace(good, poses=good.poses[:, :, :3]),
    ):
        monkeypatch.setattr(dynamic, "trace", lambda *_, t=wrong, **__: Trace((t,)), raising=False)
        monkeypatch.setattr(dynamic.can, "check_trace", lambda: None)
        with pytest.raises(capsedge.ArtefactError, match="does not fit its graph"):
            routing_figures.compute_couplings(dynamic, FILE)


@pytest.mark.parametrize("kind", ["couplings", "poses", "agreement"])
def test_what_is_not_finite_is_refused(dynamic: capsedge.Session, monkeypatch, kind: str):
    good = traces.dynamic()
    values = getattr(good, kind).copy()
    values[0, 0, 0, 0] = np.nan
    broken = Trace((replace(good, **{kind: values}),))
    monkeypatch.setattr(dynamic, "trace", lambda *_, **__: broken)
    monkeypatch.setattr(dynamic.can, "check_trace", lambda: None)
    with pytest.raises(capsedge.ArtefactError, match="NaN"):
        routing_figures.compute_agreement(dynamic, FILE)


def test_softmax_over_parents_children_or_with_a_rest():
    p = traces.dynamic().couplings[0]
    assert over_parents(p) is p
    turned = np.swapaxes(p, -1, -2)
    assert np.array_equal(over_parents(turned), p)
    leaky = over_parents(p * 0.5)
    np.testing.assert_allclose(leaky[..., -1], 0.5, atol=1e-6)
    assert entropy(np.eye(3)).tolist() == pytest.approx([0, 0, 0], abs=1e-9)
    assert entropy(np.full((1, 4), 0.25)).tolist() == pytest.approx([1])


def test_cells_lie_where_their_windows_are():
    """Two 9 x 9 windows, the second with stride 2: the first cell sees pixels 0 to 16."""
    grid, known = grid_over_input(default_model(), (28, 28), (6, 6))
    assert known
    assert grid == Grid((6, 6), (8.0, 8.0), (2.0, 2.0))
    assert grid.extent == (7.0, 19.0, 19.0, 7.0)
    spread, known = grid_over_input(default_model(), (28, 28), (4, 4))
    assert not known
    assert spread == even((28, 28), (4, 4))
    assert spread.extent == (-0.5, 27.5, 27.5, -0.5)


@pytest.mark.parametrize("picture", ["iterations", "couplings", "agreement", "responsibilities"])
def test_a_file_without_trace_says_how_to_get_one(dynamic: capsedge.Session, picture: str):
    with pytest.raises(capsedge.UsageError, match="--with trace"):
        getattr(capsedge.viz, picture)(dynamic, FILE)
