"""Draw the course of routing: iterations side by side, couplings, agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images.inputs import Images
from capsedge.runtime.session.classify import blend_class_pictures
from capsedge.runtime.session.routing_trace import TracedLayer
from capsedge.runtime.session.session import Session
from capsedge.viz.examples import MOST_CLASSES, Examples, best_classes, class_names, read_examples
from capsedge.viz.figure import (
    BEST,
    OTHER,
    SERIES,
    SOFT,
    Picture,
    blank,
    fit,
    label_axes,
    rounded_lists,
)
from capsedge.viz.trace_data import (
    check_parents_are_classes,
    entropy,
    layer_named,
    over_parents,
    read_trace,
    strengths,
    table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsedge.runtime.session.routing_trace import Trace


# --- Iterations: each class's strength after each, and what its pose decodes to ---

MOST_IMAGES = 4


@dataclass(frozen=True, eq=False)
class ImageIterations:
    """The iterations of one image.

    Attributes:
        classes: numbers of the classes shown, in their order in the model.
        names: names of these classes.
        strengths: ``[T, K]``.
        winner: number of the best class.
        pictures: ``[T, C, H, W]``, the decoder's picture of the winner's pose; None without a decoder.
        moved: ``[T]``, distance of the winner's pose from its pose after the last iteration.
    """

    classes: tuple[int, ...]
    names: tuple[str, ...]
    strengths: NDArray[np.float64]
    winner: int
    pictures: NDArray[np.float32] | None
    moved: NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Iterations(Picture):
    """The class layer after each iteration.

    Attributes:
        examples: the images.
        per_image: one per image.
        measure: what a strength measures.
    """

    examples: Examples
    per_image: tuple[ImageIterations, ...]
    measure: str

    title = "Routing iterations side by side"

    @property
    def description(self) -> str:
        """The strength of the winner after each iteration."""
        text = "; ".join(
            f"{image}, class {i.names[i.classes.index(i.winner)]}: "
            + ", ".join(f"{s:.3f}" for s in i.strengths[:, i.classes.index(i.winner)])
            for image, i in zip(self.examples.names, self.per_image, strict=True)
        )
        decoded = (
            "; the picture is what the decoder makes of the winner's pose at that point"
            if self._decoded
            else ""
        )
        return (
            f"The {self.measure} of each class after each routing iteration, the winner in blue{decoded}. "
            f"{text}."
        )

    @property
    def _decoded(self) -> bool:
        return self.per_image[0].pictures is not None

    def _figure(self) -> Figure:
        """A row per image: the input, then each iteration's bars, beside the winner's picture."""
        count, steps = len(self.per_image), len(self.per_image[0].strengths)
        each = 2 if self._decoded else 1
        ratios = [1.0, *([1.3, 0.8][:each] * steps)]
        width = 1.7 * sum(ratios)
        figure = blank(max(width, 5.0), 0.6 + 2.1 * count, self.title, self.model)
        rows = figure.subplots(count, 1 + each * steps, squeeze=False, width_ratios=ratios)
        for n, (image, *others) in enumerate(rows):
            image.imshow(self.examples.pixels[n], interpolation="none")
            image.axis("off")
            image.set_title(fit(self.examples.names[n], 18), fontsize=9, loc="left")
            for t in range(steps):
                self._bars(others[each * t], n, t)
                if self._decoded:
                    self._picture(others[each * t + 1], n, t)
        return figure

    def _bars(self, axis: Any, n: int, t: int) -> None:
        bars = self.per_image[n]
        colours = [BEST if j == bars.winner else OTHER for j in bars.classes]
        axis.barh(range(len(bars.classes)), bars.strengths[t], color=colours)
        axis.set_yticks(range(len(bars.classes)), [fit(name, 8) for name in bars.names])
        axis.invert_yaxis()
        low, high = float(bars.strengths.min()), float(bars.strengths.max())
        axis.set_xlim(min(0.0, low) * 1.05, max(high, 1e-6) * 1.05)
        label_axes(axis, f"iteration {t + 1}", self.measure)

    def _picture(self, axis: Any, n: int, t: int) -> None:
        pictures = self.per_image[n].pictures
        assert pictures is not None
        axis.imshow(blend_class_pictures(pictures[t : t + 1], [0]), interpolation="none")
        axis.axis("off")
        axis.set_title(f"{self.per_image[n].moved[t]:.2f} from the last", fontsize=7.5, color=SOFT)

    def numbers(self) -> dict[str, Any]:
        """Strengths and distances of each image by iteration."""
        return {
            "measure": self.measure,
            "images": [
                {
                    "image": image,
                    "classes": list(i.names),
                    "strengths": rounded_lists(i.strengths),
                    "distance_from_last": rounded_lists(i.moved),
                    "pictures": None if i.pictures is None else rounded_lists(i.pictures),
                }
                for image, i in zip(self.examples.names, self.per_image, strict=True)
            ],
        }


def compute_iterations(session: Session, images: Images, *, invert: bool = False) -> Iterations:
    """The data of the picture; arguments and errors as for `capsedge.viz.iterations`."""
    session.can.check_classes()
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    last = read_trace(session, examples.inputs).layers[-1]
    count = len(examples.predictions[0].scores)
    check_parents_are_classes(session, last, count)
    left_out = f"Only the {MOST_CLASSES} best of {count} classes are shown."
    per_image = [_iterated(session, last, n, p.scores) for n, p in enumerate(examples.predictions)]
    return Iterations(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if count > MOST_CLASSES else ()),
        examples=examples,
        per_image=tuple(per_image),
        measure=strengths(last, 0)[1],
    )


def _iterated(
    session: Session, layer: TracedLayer, image: int, scores: NDArray[np.float64]
) -> ImageIterations:
    classes = sorted(best_classes(scores, MOST_CLASSES))
    winner = best_classes(scores, 1)[0]
    poses = layer.poses[image].reshape(layer.iterations, -1, layer.poses.shape[-1])[:, winner]
    pictures = session.decode(poses, winner) if _decodes(session) else None
    return ImageIterations(
        tuple(classes),
        tuple(class_names(session, classes)),
        strengths(layer, image)[0][:, classes].astype(np.float64),
        winner,
        pictures,
        np.linalg.norm(poses.astype(np.float64) - poses[-1], axis=1),
    )


def _decodes(session: Session) -> bool:
    try:
        session.can.check_decode()
    except UsageError:
        return False
    return True


# --- Couplings by iteration, and how their softmax sharpens (Sabour et al. 2017, A) ---

MOST_ROWS = 6
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_NAMED = 4  # parents with a colour of their own


@dataclass(frozen=True, eq=False)
class ImageCouplings:
    """The couplings of one layer for one image.

    Attributes:
        image: its name.
        layer: its name.
        parents: names of the parents shown: the best class, then the others by final mean coupling.
        means: ``[T, K]``, mean coupling of the children to each of them.
        entropies: ``[T, Q]``, the quantiles `QUANTILES` over the children of the entropy of their couplings,
            0 if a child has a single parent, 1 if it is coupled equally to all.
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

    routed: tuple[ImageCouplings, ...]

    title = "Couplings by iteration"

    @property
    def description(self) -> str:
        """How far each layer has decided."""
        text = "; ".join(
            f"{r.image}, {r.layer}: entropy {r.entropies[0, 2]:.2f} to {r.entropies[-1, 2]:.2f}"
            for r in self.routed
        )
        return (
            "Left, the mean coupling of the children to each parent; in the middle, the entropy of a child's "
            "couplings, from 1 (all parents alike) to 0 (one parent): median, half and nine tenths of the "
            f"children; right, the children by their largest coupling. Medians: {text}."
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

    def _means(self, axis: Any, routed: ImageCouplings) -> None:
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

    def _entropies(self, axis: Any, routed: ImageCouplings) -> None:
        steps = np.arange(1, len(routed.entropies) + 1)
        low, quarter, median, three, high = routed.entropies.T
        axis.fill_between(steps, low, high, color=BEST, alpha=0.15, linewidth=0)
        axis.fill_between(steps, quarter, three, color=BEST, alpha=0.3, linewidth=0)
        axis.plot(steps, median, "o-", color=BEST, markersize=4)
        axis.set_ylim(0, 1.02)
        _by_iteration(axis, steps, "how sharp the softmax is", "entropy of a child's couplings")

    def _largest(self, axis: Any, routed: ImageCouplings) -> None:
        edges = np.linspace(0.0, 1.0, routed.largest.shape[1] + 1)
        total = len(routed.largest)
        for t, shares in enumerate(routed.largest):
            axis.stairs(
                shares, edges, color=BEST, alpha=0.25 + 0.75 * (t + 1) / total, label=f"{t + 1}",
                linewidth=1 + (t + 1 == total),
            )  # fmt: skip
        axis.legend(title="iteration", title_fontsize=7, fontsize=7, frameon=False)
        label_axes(axis, "children by largest coupling", "largest coupling", "share of children")

    def numbers(self) -> dict[str, Any]:
        """Means, quantiles and histograms of each image and layer."""
        return {
            "quantiles": list(QUANTILES),
            "layers": [
                {
                    "image": r.image,
                    "layer": r.layer,
                    "parents": list(r.parents),
                    "mean_couplings": rounded_lists(r.means),
                    "entropies": rounded_lists(r.entropies),
                    "largest_couplings": rounded_lists(r.largest),
                }
                for r in self.routed
            ],
        }


def _by_iteration(axis: Any, steps: NDArray[np.int64], title: str, y: str) -> None:
    axis.set_xticks(steps)
    axis.grid(axis="y", color="#eef0f2")
    label_axes(axis, title, "iteration", y)
    axis.tick_params(colors=SOFT)


def compute_couplings(session: Session, images: Images, *, invert: bool = False) -> Couplings:
    """The data of the picture; arguments and errors as for `capsedge.viz.couplings`."""
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_ROWS)
    trace = read_trace(session, examples.inputs)
    pairs = [(n, k) for n in range(len(examples)) for k in range(len(trace.layers))]
    left_out = f"Only the first {MOST_ROWS} of {len(pairs)} pairs of image and layer are shown."
    return Couplings(
        model=session.path.name,
        notes=examples.notes + ((left_out,) if len(pairs) > MOST_ROWS else ()),
        routed=tuple(_routed(session, examples, trace, n, k) for n, k in pairs[:MOST_ROWS]),
    )


def _routed(
    session: Session, examples: Examples, trace: Trace, image: int, k: int
) -> ImageCouplings:
    layer = trace.layers[k]
    couplings = table(layer.couplings, image)
    means = couplings.astype(np.float64).mean(axis=1)
    shown = best_classes(means[-1], MOST_CLASSES)
    scores = examples.predictions[image].scores
    of_classes = k == len(trace.layers) - 1 and couplings.shape[-1] == len(scores)
    if of_classes:
        winner = best_classes(scores, 1)[0]
        shown = [winner, *(j for j in shown if j != winner)][:MOST_CLASSES]
    shares = over_parents(couplings)
    bins = [np.histogram(row, bins=20, range=(0, 1))[0] / row.size for row in shares.max(axis=-1)]
    return ImageCouplings(
        examples.names[image],
        layer.name,
        tuple(class_names(session, shown) if of_classes else [f"type {j}" for j in shown]),
        means[:, shown],
        np.quantile(entropy(shares), QUANTILES, axis=1).T,
        np.array(bins),
    )


# --- Agreement of votes with each class, as histograms (Hinton et al. 2018, figure 2) ---

PARENTS = 3
BINS = 30


@dataclass(frozen=True, eq=False)
class ImageAgreement:
    """The histograms of one image.

    Attributes:
        image: its name.
        parents: names of the parents shown, strongest first.
        edges: ``[B + 1]`` of the bins.
        counts: ``[T, K, B]``, votes for each parent, weighted by their couplings.
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
        distances: whether these are distances between votes and poses; otherwise they are products.
    """

    agreed: tuple[ImageAgreement, ...]
    layer: str
    distances: bool

    @property
    def title(self) -> str:
        """The heading, with the quantity that is counted."""
        return "Distance of votes by iteration" if self.distances else "Agreement by iteration"

    @property
    def _axis(self) -> str:
        return "distance of vote and pose" if self.distances else "vote · pose"

    @property
    def description(self) -> str:
        """The quantity that the histograms count."""
        text = "; ".join(f"{a.image}: {', '.join(a.parents)}" for a in self.agreed)
        good = "small distances are votes that agree" if self.distances else "large products agree"
        return (
            f"Histograms of {self._axis} in the layer {self.layer} after each iteration, each vote weighted "
            f"with its coupling: {good}. The strongest parents: {text}."
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

    def _histogram(self, axis: Any, agreed: ImageAgreement, t: int) -> None:
        for k, name in enumerate(agreed.parents):
            axis.stairs(
                agreed.counts[t, k], agreed.edges, color=SERIES[k], fill=k == 0,
                alpha=0.55 if k == 0 else 1.0, label=fit(name),
            )  # fmt: skip
        label_axes(axis, f"{fit(agreed.image, 18)}, iteration {t + 1}", self._axis)

    def numbers(self) -> dict[str, Any]:
        """Edges and counts of each image."""
        return {
            "layer": self.layer,
            "counted": self._axis,
            "images": [
                {
                    "image": a.image,
                    "parents": list(a.parents),
                    "edges": rounded_lists(a.edges),
                    "votes": rounded_lists(a.counts),
                }
                for a in self.agreed
            ],
        }


def compute_agreement(
    session: Session, images: Images, *, layer: str = "", invert: bool = False
) -> Agreement:
    """The data of the picture; arguments and errors as for `capsedge.viz.agreement`."""
    session.can.check_trace()
    examples = read_examples(session, images, invert, MOST_IMAGES)
    trace = read_trace(session, examples.inputs)
    chosen = layer_named(trace, layer)
    of_classes = chosen is trace.layers[-1] and not session.roles.segmentation
    if of_classes:
        check_parents_are_classes(session, chosen, len(examples.predictions[0].scores))
    agreed = []
    for n, prediction in enumerate(examples.predictions):
        if of_classes:
            shown = best_classes(prediction.scores, PARENTS)
            names = class_names(session, shown)
        else:
            shown = best_classes(table(chosen.couplings, n)[-1].sum(axis=0), PARENTS)
            names = [f"type {j}" for j in shown]
        edges, counts = _histograms(chosen, n, shown)
        agreed.append(ImageAgreement(examples.names[n], tuple(names), edges, counts))
    return Agreement(
        model=session.path.name,
        notes=examples.notes,
        agreed=tuple(agreed),
        layer=chosen.name,
        distances=chosen.distances is not None,
    )


def _histograms(
    layer: TracedLayer, image: int, shown: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges ``[B + 1]``, the same for all iterations, and counts ``[T, K, B]``."""
    counted = layer.agreement if layer.distances is None else layer.distances
    values, weights = table(counted, image)[..., shown], table(layer.couplings, image)[..., shown]
    low, high = float(values.min()), float(values.max())
    # A few distant votes would compress the scale for all others; they go into the outermost bins.
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
