"""How well votes agree with each class, by iteration, as histograms (Hinton et al. 2018, figure 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.viz.examples import best, class_names, read_examples
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import SERIES, blank, fit, plain
from capsedge.viz.traced import check_classes, layer_named, read_trace, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsedge.runtime.routing_trace import TracedLayer

MOST_IMAGES = 4
PARENTS = 3
BINS = 30


@dataclass(frozen=True, eq=False)
class Agreed:
    """The histograms of one image.

    Attributes:
        image: its name.
        parents: names of the parents shown, the strongest first.
        edges: ``[B + 1]`` of the bins.
        counts: ``[T, K, B]``, votes for each parent, each weighted with its coupling.
    """

    image: str
    parents: tuple[str, ...]
    edges: NDArray[np.float64]
    counts: NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Agreement(Picture):
    """Histograms of the agreement, or of the distances, of votes by iteration.

    Attributes:
        agreed: one per image.
        layer: name of the layer.
        distances: whether these are distances of votes and poses; otherwise products of the two.
    """

    agreed: tuple[Agreed, ...]
    layer: str
    distances: bool

    @property
    def title(self) -> str:
        """With what is counted."""
        return "Distance of votes by iteration" if self.distances else "Agreement by iteration"

    @property
    def _axis(self) -> str:
        return "distance of vote and pose" if self.distances else "vote · pose"

    @property
    def description(self) -> str:
        """What the histograms count."""
        told = "; ".join(f"{a.image}: {', '.join(a.parents)}" for a in self.agreed)
        good = "small distances are votes that agree" if self.distances else "large products agree"
        return (
            f"Histograms of {self._axis} in the layer {self.layer} after each iteration, each vote weighted "
            f"with its coupling: {good}. The strongest parents: {told}."
        )

    def _figure(self) -> Figure:
        """One row per image, one column per iteration."""
        count, steps = len(self.agreed), self.agreed[0].counts.shape[0]
        figure = blank(max(6.0, 2.8 * steps), 0.5 + 2.2 * count, self.title, self.model)
        rows = figure.subplots(count, steps, squeeze=False, sharex="row", sharey="row")
        for row, agreed in zip(rows, self.agreed, strict=True):
            for t, axis in enumerate(row):
                self._histogram(axis, agreed, t)
            row[0].legend(fontsize=7, frameon=False)
            row[0].set_ylabel("votes", fontsize=8)
        return figure

    def _histogram(self, axis: Any, agreed: Agreed, t: int) -> None:
        for k, name in enumerate(agreed.parents):
            axis.stairs(
                agreed.counts[t, k], agreed.edges, color=SERIES[k], fill=k == 0,
                alpha=0.55 if k == 0 else 1.0, label=fit(name),
            )  # fmt: skip
        plain(axis, f"{fit(agreed.image, 18)}, iteration {t + 1}", self._axis)

    def numbers(self) -> dict[str, Any]:
        """Edges and counts of each image."""
        return {
            "layer": self.layer,
            "counted": self._axis,
            "images": [
                {
                    "image": a.image,
                    "parents": list(a.parents),
                    "edges": rounded(a.edges),
                    "votes": rounded(a.counts),
                }
                for a in self.agreed
            ],
        }


def compute(
    session: Session, images: Images, *, layer: str = "", invert: bool = False
) -> Agreement:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.agreement`."""
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    trace = read_trace(session, examples)
    found = layer_named(trace, layer)
    of_classes = found is trace.layers[-1]
    if of_classes:
        check_classes(session, found, len(examples.predictions[0].scores))
    agreed = []
    for n, prediction in enumerate(examples.predictions):
        if of_classes:
            shown = best(prediction.scores, PARENTS)
            names = class_names(session, shown)
        else:
            shown = best(table(found.couplings, n)[-1].sum(axis=0), PARENTS)
            names = [f"type {j}" for j in shown]
        edges, counts = _histograms(found, n, shown)
        agreed.append(Agreed(examples.names[n], tuple(names), edges, counts))
    return Agreement(
        model=session.path.name,
        notes=examples.notes,
        agreed=tuple(agreed),
        layer=found.name,
        distances=found.distances is not None,
    )


def _histograms(
    layer: TracedLayer, image: int, shown: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges ``[B + 1]``, the same for all iterations, and counts ``[T, K, B]``."""
    counted = layer.agreement if layer.distances is None else layer.distances
    values, weights = table(counted, image)[..., shown], table(layer.couplings, image)[..., shown]
    low, high = float(values.min()), float(values.max())
    # A few votes that are far off would leave the others no room; the outermost bins take them.
    low, high = (
        max(low, float(np.quantile(values, 0.005))),
        min(high, float(np.quantile(values, 0.995))),
    )
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    inside = np.clip(values, edges[0], edges[-1])
    counts = [
        [
            np.histogram(inside[t, :, k], edges, weights=weights[t, :, k])[0]
            for k in range(len(shown))
        ]
        for t in range(layer.iterations)
    ]
    return edges, np.array(counts)
