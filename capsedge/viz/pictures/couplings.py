"""How routing decides: couplings by iteration, and how their softmax sharpens (Sabour et al. 2017, A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.session import Session
from capsedge.runtime.vision.inputs import Images
from capsedge.viz.examples import MOST_CLASSES, Examples, best, class_names, read_examples
from capsedge.viz.picture import Picture, rounded
from capsedge.viz.style import BEST, OTHER, SERIES, SOFT, blank, fit, plain
from capsedge.viz.traced import entropy, over_parents, read_trace, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsedge.runtime.routing_trace import Trace

MOST_ROWS = 6
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_NAMED = 4  # parents with a colour of their own


@dataclass(frozen=True, eq=False)
class Routed:
    """The couplings of one layer for one image.

    Attributes:
        image: its name.
        layer: its name.
        parents: names of the parents shown: the best class, then by their mean coupling in the end.
        means: ``[T, K]``, mean coupling of the children to each of them.
        entropies: ``[T, Q]``, the quantiles `QUANTILES` over the children of the entropy of their couplings,
            0 if a child has one parent, 1 if it has all alike.
        largest: ``[T, B]``, the share of children by their largest coupling, in B equal bins from 0 to 1.
    """

    image: str
    layer: str
    parents: tuple[str, ...]
    means: NDArray[np.float64]
    entropies: NDArray[np.float64]
    largest: NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Couplings(Picture):
    """Couplings by iteration.

    Attributes:
        routed: one per image and layer.
    """

    routed: tuple[Routed, ...]

    title = "Couplings by iteration"

    @property
    def description(self) -> str:
        """How far each layer has decided."""
        told = "; ".join(
            f"{r.image}, {r.layer}: entropy {r.entropies[0, 2]:.2f} to {r.entropies[-1, 2]:.2f}"
            for r in self.routed
        )
        return (
            "Left, the mean coupling of the children to each parent; in the middle, the entropy of a child's "
            "couplings, from 1 (all parents alike) to 0 (one parent): median, half and nine tenths of the "
            f"children; right, the children by their largest coupling. Medians: {told}."
        )

    def _figure(self) -> Figure:
        """A row of three charts per image and layer."""
        count = len(self.routed)
        figure = blank(10, 0.5 + 2.4 * count, self.title, self.model)
        for row, routed in zip(figure.subplots(count, 3, squeeze=False), self.routed, strict=True):
            self._means(row[0], routed)
            self._entropies(row[1], routed)
            self._largest(row[2], routed)
        return figure

    def _means(self, axis: Any, routed: Routed) -> None:
        steps = np.arange(1, len(routed.means) + 1)
        for k in reversed(range(len(routed.parents))):
            colour = SERIES[k] if k < _NAMED else OTHER
            label = fit(routed.parents[k]) if k < _NAMED else None
            axis.plot(steps, routed.means[:, k], "o-", color=colour, label=label, markersize=4)
        axis.legend(fontsize=7, frameon=False, reverse=True)
        _by_iteration(
            axis, steps, f"{fit(routed.image, 18)}, {fit(routed.layer, 18)}", "mean coupling"
        )
        axis.set_ylim(bottom=0)

    def _entropies(self, axis: Any, routed: Routed) -> None:
        steps = np.arange(1, len(routed.entropies) + 1)
        low, quarter, median, three, high = routed.entropies.T
        axis.fill_between(steps, low, high, color=BEST, alpha=0.15, linewidth=0)
        axis.fill_between(steps, quarter, three, color=BEST, alpha=0.3, linewidth=0)
        axis.plot(steps, median, "o-", color=BEST, markersize=4)
        axis.set_ylim(0, 1.02)
        _by_iteration(axis, steps, "how sharp the softmax is", "entropy of a child's couplings")

    def _largest(self, axis: Any, routed: Routed) -> None:
        edges = np.linspace(0.0, 1.0, routed.largest.shape[1] + 1)
        total = len(routed.largest)
        for t, shares in enumerate(routed.largest):
            axis.stairs(
                shares, edges, color=BEST, alpha=0.25 + 0.75 * (t + 1) / total, label=f"{t + 1}",
                linewidth=1 + (t + 1 == total),
            )  # fmt: skip
        axis.legend(title="iteration", title_fontsize=7, fontsize=7, frameon=False)
        plain(axis, "children by largest coupling", "largest coupling", "share of children")

    def numbers(self) -> dict[str, Any]:
        """Means, quantiles and histograms of each image and layer."""
        return {
            "quantiles": list(QUANTILES),
            "layers": [
                {
                    "image": r.image,
                    "layer": r.layer,
                    "parents": list(r.parents),
                    "mean_couplings": rounded(r.means),
                    "entropies": rounded(r.entropies),
                    "largest_couplings": rounded(r.largest),
                }
                for r in self.routed
            ],
        }


def _by_iteration(axis: Any, steps: NDArray[np.int64], title: str, y: str) -> None:
    axis.set_xticks(steps)
    axis.grid(axis="y", color="#eef0f2")
    plain(axis, title, "iteration", y)
    axis.tick_params(colors=SOFT)


def compute(session: Session, images: Images, *, invert: bool = False) -> Couplings:
    """The numbers of the picture; arguments and errors as for `capsedge.viz.couplings`."""
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_ROWS)
    trace = read_trace(session, examples)
    pairs = [(n, k) for n in range(len(examples)) for k in range(len(trace.layers))]
    left_out = f"Only the first {MOST_ROWS} of {len(pairs)} pairs of image and layer are shown."
    return Couplings(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if len(pairs) > MOST_ROWS else ()),
        routed=tuple(_routed(session, examples, trace, n, k) for n, k in pairs[:MOST_ROWS]),
    )


def _routed(session: Session, examples: Examples, trace: Trace, image: int, k: int) -> Routed:
    layer = trace.layers[k]
    couplings = table(layer.couplings, image)
    means = couplings.astype(np.float64).mean(axis=1)
    shown = best(means[-1], MOST_CLASSES)
    scores = examples.predictions[image].scores
    of_classes = k == len(trace.layers) - 1 and couplings.shape[-1] == len(scores)
    if of_classes:
        winner = best(scores, 1)[0]
        shown = [winner, *(j for j in shown if j != winner)][:MOST_CLASSES]
    shares = over_parents(couplings)
    bins = [np.histogram(row, bins=20, range=(0, 1))[0] / row.size for row in shares.max(axis=-1)]
    return Routed(
        examples.names[image],
        layer.name,
        tuple(class_names(session, shown) if of_classes else [f"type {j}" for j in shown]),
        means[:, shown],
        np.quantile(entropy(shares), QUANTILES, axis=1).T,
        np.array(bins),
    )
