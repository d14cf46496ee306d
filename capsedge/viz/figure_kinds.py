"""List the pictures by name: what each requires of a file, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.runtime.session.capabilities import Capabilities
from capsedge.runtime.session.session import Session
from capsedge.viz import decoder_figures, evidence_figures, mask_figures, routing_figures
from capsedge.viz.figure import Picture


@dataclass(frozen=True)
class FigureOptions:
    """What pictures are made from.

    Attributes:
        images: files.
        invert: for dark ink on a light background.
        labels: the true pair of classes of each image.
        forced: a pair of classes to draw.
        of: the class to draw; empty for the best of each image.
        layer: the routed layer to draw; empty for that of the classes.
        data: a labelled data set; None for none.
        limit: number of images of the data set to evaluate; None for all.
        count: number of its images to show.
    """

    images: Sequence[Path] = ()
    invert: bool = False
    labels: Sequence[Sequence[str]] = ()
    forced: Sequence[str] = ()
    of: str = ""
    layer: str = ""
    data: Path | None = None
    limit: int | None = None
    count: int = evidence_figures.SHOWN


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    Attributes:
        check: raises a UsageError, with the command that fixes it, if the file does not support the picture.
        compute: makes it.
        of_data: whether it shows a data set instead of images.
    """

    check: Callable[[Capabilities], object]
    compute: Callable[[Session, FigureOptions], Picture]
    of_data: bool = False


def _traced_classes(can: Capabilities) -> None:
    can.check_classes()
    can.check_trace()


def _classes_or_masks(can: Capabilities) -> None:
    if not can.segments:
        can.check_classes()


def _traced(can: Capabilities) -> None:
    _classes_or_masks(can)
    can.check_trace()


def _reconstructions(session: Session, options: FigureOptions) -> Picture:
    return decoder_figures.compute_reconstructions(session, options.images, invert=options.invert)


def _segmentation(session: Session, options: FigureOptions) -> Picture:
    return decoder_figures.compute_segmentation(
        session,
        options.images,
        labels=options.labels,
        forced=options.forced,
        invert=options.invert,
    )


def _dimensions(session: Session, options: FigureOptions) -> Picture:
    return decoder_figures.compute_dimensions(
        session, options.images, of=options.of, invert=options.invert
    )


def _masks(session: Session, options: FigureOptions) -> Picture:
    return mask_figures.compute_masks(
        session, options.images, layer=options.layer, invert=options.invert
    )


def _iterations(session: Session, options: FigureOptions) -> Picture:
    return routing_figures.compute_iterations(session, options.images, invert=options.invert)


def _couplings(session: Session, options: FigureOptions) -> Picture:
    return routing_figures.compute_couplings(session, options.images, invert=options.invert)


def _agreement(session: Session, options: FigureOptions) -> Picture:
    return routing_figures.compute_agreement(
        session, options.images, layer=options.layer, invert=options.invert
    )


def _responsibilities(session: Session, options: FigureOptions) -> Picture:
    return evidence_figures.compute_responsibilities(
        session, options.images, of=options.of, invert=options.invert
    )


def _capsules(session: Session, options: FigureOptions) -> Picture:
    return evidence_figures.compute_capsules(session, options.images, invert=options.invert)


def _hardest(session: Session, options: FigureOptions) -> Picture:
    assert options.data is not None  # `chosen` rejects it
    return hardest(session, options.data, count=options.count, limit=options.limit)


def hardest(
    session: Session, data: ImageSet | Path | str, *, count: int, limit: int | None
) -> Picture:
    """The hardest images of a data set, by their classes or by their masks."""
    of_masks = session.can.segments
    compute = mask_figures.compute_hardest_masks if of_masks else evidence_figures.compute_hardest
    return compute(session, data, count=count, limit=limit)


# The first that fits is the default.
KINDS: Mapping[str, Kind] = {
    "reconstructions": Kind(Capabilities.check_reconstruct, _reconstructions),
    "segmentation": Kind(Capabilities.check_reconstruct, _segmentation),
    "dimensions": Kind(Capabilities.check_decode, _dimensions),
    "masks": Kind(Capabilities.check_masks, _masks),
    "iterations": Kind(_traced_classes, _iterations),
    "couplings": Kind(_traced, _couplings),
    "agreement": Kind(_traced, _agreement),
    "responsibilities": Kind(_traced_classes, _responsibilities),
    "capsules": Kind(Capabilities.check_classes, _capsules),
    "hardest": Kind(_classes_or_masks, _hardest, of_data=True),
}


def possible(session: Session, options: FigureOptions) -> list[str]:
    """The names of the pictures that the file and the request support, best first."""
    names = []
    for name, kind in KINDS.items():
        if not (options.data if kind.of_data else options.images):
            continue
        try:
            kind.check(session.can)
        except UsageError:
            continue
        names.append(name)
    return names


def chosen(
    session: Session, options: FigureOptions, names: Sequence[str], several: bool = False
) -> list[str]:
    """The pictures to draw: those requested, or the best that the file supports.

    Args:
        options: what they are made from.
        names: names of the pictures; empty for the default.
        several: whether the default is all that the file supports.
    """
    if not names:
        found = _default(session, options, several)
        _check_applies(found, options)
        return found
    for name in names:
        kind = KINDS.get(name)
        if kind is None:
            raise UsageError(
                f"Unknown picture '{name}'.", "", f"Choose one of: {', '.join(KINDS)}."
            )
        _check_options(name, kind, options)
        try:
            kind.check(session.can)
        except UsageError as error:
            others = ", ".join(possible(session, options))
            raise UsageError(
                f"The picture '{name}' cannot be drawn: {error.what}",
                f"{error.why} Pictures that this file supports: {others}.",
                error.fix,
                command=error.command,
            ) from error
    _check_applies(names, options)
    return list(dict.fromkeys(names))


# Options of some pictures: their flag, and the pictures.
_OF_PICTURES = {
    "labels": ("--label", ("segmentation",)),
    "forced": ("--force", ("segmentation",)),
    "of": ("--class", ("dimensions", "responsibilities")),
    "layer": ("--layer", ("masks", "agreement")),
    "limit": ("--limit", ("hardest",)),
}


def _check_applies(names: Sequence[str], options: FigureOptions) -> None:
    """Refuse an option that none of the pictures takes."""
    for field, (flag, pictures) in _OF_PICTURES.items():
        if getattr(options, field) and not set(names) & set(pictures):
            raise UsageError(
                f"{flag} does not apply to {', '.join(names)}.",
                f"It is for {' and '.join(pictures)}.",
                f"Leave it out, or choose {pictures[0]} with --what.",
            )


def _default(session: Session, options: FigureOptions, several: bool) -> list[str]:
    if not options.images and options.data is None:
        raise UsageError(
            "There are no images to draw.",
            "",
            "Pass images, or labelled images with --data.",
        )
    _classes_or_masks(session.can)
    names = possible(session, options)
    if several:
        return names
    if options.data is not None:
        return ["hardest"]
    pairs = options.labels or options.forced
    return ["segmentation"] if pairs and "segmentation" in names else names[:1]


def _check_options(name: str, kind: Kind, options: FigureOptions) -> None:
    if kind.of_data and options.data is None:
        raise UsageError(
            f"The picture '{name}' needs a data set.", "", "Pass labelled images with --data."
        )
    if not kind.of_data and not options.images:
        raise UsageError(f"The picture '{name}' needs images.", "", "Pass image files.")
