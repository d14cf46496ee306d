"""Pictures of what a capsule network sees, as matplotlib figures.

Each function takes a loaded model and images and returns a new ``matplotlib.figure.Figure``, which a notebook
shows and ``savefig`` writes. ``capsedge see`` makes the same pictures. Needs ``pip install 'capsedge[viz]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsedge.datasets import ImageSet
    from capsedge.runtime.images.inputs import Images
    from capsedge.runtime.session.session import Session

__all__ = [
    "agreement",
    "capsules",
    "couplings",
    "dimensions",
    "hardest",
    "iterations",
    "masks",
    "reconstructions",
    "responsibilities",
    "segmentation",
]


def reconstructions(session: Session, images: Images, *, invert: bool = False) -> Figure:
    """Images and the decoder's reconstructions from each class capsule (Sabour et al. 2017, figure 3).

    Args:
        session: a model with a decoder.
        images, invert: as for `Session.predict`; at most twelve images are shown and, of more than ten
            classes, those with the highest scores.

    Returns:
        A row for each image: the input, and the decoder's picture for each class with its score.

    Raises:
        UsageError: the model has no decoder, or an image cannot be read.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.reconstructions(capsedge.load(), "digit.png")
    """
    from capsedge.viz import decoder_figures as picture

    return picture.compute_reconstructions(session, images, invert=invert).draw()


def segmentation(
    session: Session,
    images: Images,
    *,
    labels: Sequence[Sequence[str]] = (),
    forced: Sequence[str] = (),
    invert: bool = False,
) -> Figure:
    """Separate overlapping objects: two capsules' pictures over the input (Sabour et al. 2017, figure 5).

    Args:
        session: a model with a decoder.
        images, invert: as for `Session.predict`; twelve images at most are shown.
        labels: the true pair of classes of each image, by name or number; empty if unknown.
        forced: a pair that is drawn whether it is present or not; by default the best class, and the best of
            those that are neither found nor a label.

    Returns:
        A row for each image: the input; the two best classes together and alone; the labels; the forced pair.

    Raises:
        UsageError: the model has no decoder, an image cannot be read, or a pair is not two of its classes.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.segmentation(capsedge.load(), "both.png", labels=[("2", "4")])
    """
    from capsedge.viz import decoder_figures as picture

    data = picture.compute_segmentation(
        session, images, labels=labels, forced=forced, invert=invert
    )
    return data.draw()


def dimensions(session: Session, images: Images, *, of: str = "", invert: bool = False) -> Figure:
    """What each dimension of a pose means: pictures as one varies (Sabour et al. 2017, figure 4).

    Args:
        session: a model whose decoder draws from poses alone (`session.can.check_decode()`).
        images, invert: as for `Session.predict`; three images at most are shown.
        of: the class whose pose varies, by name or number; by default the best of each image.

    Returns:
        A sheet for each image: a row for each dimension, which goes from -0.25 to 0.25 in steps of 0.05.

    Raises:
        UsageError: the model has no such decoder, an image cannot be read, or there is no such class.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.dimensions(capsedge.load(), "digit.png")
    """
    from capsedge.viz import decoder_figures as picture

    return picture.compute_dimensions(session, images, of=of, invert=invert).draw()


def masks(session: Session, images: Images, *, layer: str = "", invert: bool = False) -> Figure:
    """Images with the masks of a segmentation over them and, with a trace, the couplings of a routed layer.

    Args:
        session: a model that segments images.
        images, invert: as for `Session.predict`; at most twelve images are shown.
        layer: name of the routed layer; by default the last. It needs a trace (``capsedge export --with
            trace``).

    Returns:
        A row for each image: the input, its mask, and a map of mean couplings for each of up to four types.

    Raises:
        UsageError: the model makes no masks, a layer is named and the file has no such one, or an image
            cannot be read.
        ArtefactError: the trace does not have the shapes that the file states.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.masks(capsedge.load("segcaps.onnx"), "photo.png")
    """
    from capsedge.viz import mask_figures as picture

    return picture.compute_masks(session, images, layer=layer, invert=invert).draw()


def iterations(session: Session, images: Images, *, invert: bool = False) -> Figure:
    """Routing iterations side by side: each class's strength and what its pose decodes to.

    Args:
        session: a model with a trace (``capsedge export --with trace``).
        images, invert: as for `Session.predict`; four images at most are shown.

    Returns:
        For each image and iteration, the strengths of the classes and, with a decoder, the winner's picture.

    Raises:
        UsageError: the file has no trace, an image cannot be read, or an argument is wrong.
        ArtefactError: the trace does not have the shapes that the file states.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.iterations(capsedge.load("traced.onnx"), "digit.png")
    """
    from capsedge.viz import routing_figures as picture

    return picture.compute_iterations(session, images, invert=invert).draw()


def couplings(session: Session, images: Images, *, invert: bool = False) -> Figure:
    """Couplings by iteration, and how their softmax sharpens (Sabour et al. 2017, appendix A).

    Args:
        session: a model with a trace (``capsedge export --with trace``).
        images, invert: as for `Session.predict`; six pairs of image and layer at most are shown.

    Returns:
        For each image and layer: mean couplings, and the entropy and maximum of each child's couplings.

    Raises:
        UsageError: the file has no trace, an image cannot be read, or an argument is wrong.
        ArtefactError: the trace does not have the shapes that the file states.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.couplings(capsedge.load("traced.onnx"), "digit.png")
    """
    from capsedge.viz import routing_figures as picture

    return picture.compute_couplings(session, images, invert=invert).draw()


def agreement(session: Session, images: Images, *, layer: str = "", invert: bool = False) -> Figure:
    """How well votes agree with the best classes after each iteration (Hinton et al. 2018, figure 2).

    Args:
        session: a model with a trace (``capsedge export --with trace``).
        images, invert: as for `Session.predict`; four images at most are shown.
        layer: name of the routed layer; by default the classes', or the last of a segmentation.

    Returns:
        Histograms for each image: of distances between votes and poses for EM routing, otherwise of products.

    Raises:
        UsageError: the file has no trace, an image cannot be read, or an argument is wrong.
        ArtefactError: the trace does not have the shapes that the file states.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.agreement(capsedge.load("traced.onnx"), "digit.png")
    """
    from capsedge.viz import routing_figures as picture

    return picture.compute_agreement(session, images, layer=layer, invert=invert).draw()


def responsibilities(
    session: Session, images: Images, *, of: str = "", invert: bool = False
) -> Figure:
    """Where in an image the parts of a class are: couplings traced back to the primary capsules.

    Args:
        session: a model with a trace (``capsedge export --with trace``).
        images, invert: as for `Session.predict`; six images at most are shown.
        of: the class, by name or number; by default the three best of each image.

    Returns:
        A row for each image: the input, and a map over it for each class.

    Raises:
        UsageError: the file has no trace, an image cannot be read, or an argument is wrong.
        ArtefactError: the trace does not have the shapes that the file states.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.responsibilities(capsedge.load("traced.onnx"), "digit.png")
    """
    from capsedge.viz import evidence_figures as picture

    return picture.compute_responsibilities(session, images, of=of, invert=invert).draw()


def capsules(session: Session, images: Images, *, invert: bool = False) -> Figure:
    """The score of each class and the pose of its capsule, for any model that classifies.

    Args:
        session: the model.
        images, invert: as for `Session.predict`; at most six images are shown and, of more than ten classes,
            those with the highest scores.

    Returns:
        A row for each image: the input, the scores as bars, the poses as a table of colours.

    Raises:
        UsageError: the model is a regression, or an image cannot be read.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.capsules(capsedge.load("digits-em"), "digit.png")
    """
    from capsedge.viz import evidence_figures as picture

    return picture.compute_capsules(session, images, invert=invert).draw()


def hardest(
    session: Session, data: ImageSet | Path | str, *, count: int = 30, limit: int | None = None
) -> Figure:
    """The images of a data set with the smallest margins, and the classes that were confused.

    Of a segmentation, those whose masks overlap least with the data's (mean Dice).

    Args:
        session: the model.
        data: labelled images as `datasets.read_images` reads them; for a data set folder, the test split. For
            a segmentation, a folder with ``images`` and ``masks``.
        count: number of images to show.
        limit: evaluate only the first ``limit`` images; None for all.

    Returns:
        A sheet of images, mistakes first, each with its true class and the highest-scoring other class; of a
        segmentation a row for each image: the input, its true mask, the predicted one, and their difference.

    Raises:
        UsageError: the data cannot be read, has no labels, or labels that the model does not have.
        EnvironmentProblem: matplotlib is not installed.

    Example:
        >>> figure = capsedge.viz.hardest(capsedge.load(), "mnist", count=20)
    """
    from capsedge.viz import figure_kinds

    return figure_kinds.hardest(session, data, count=count, limit=limit).draw()
