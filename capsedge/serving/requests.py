"""Interpret a request of the Open Inference Protocol for a session: its tensors, and the masks it names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images.inputs import Size
from capsedge.runtime.session.masks import mask_png
from capsedge.serving.request_tensors import BYTES, array_of, encoded_images
from capsedge.spec import limits

if TYPE_CHECKING:
    from capsedge.runtime.session.predictions import Prediction
    from capsedge.runtime.session.session import Session
    from capsedge.serving.request_bodies import InferRequest, RequestInput


# --- Masks as outputs ---

MASK, MASK_PNG = "predicted_mask", "predicted_mask_png"


def mask_outputs(session: Session) -> tuple[str, ...]:
    """The names of a model's masks; none if it does not segment, or if it has outputs of these names."""
    own = {port.name for port in session.outputs}
    return (MASK, MASK_PNG) if session.roles.segmentation and not own & {MASK, MASK_PNG} else ()


def mask_metadata(session: Session) -> list[dict[str, Any]]:
    """The model's masks as outputs in its metadata."""
    kinds = {MASK: ("UINT8", [-1, -1, -1]), MASK_PNG: (BYTES, [-1])}
    return [
        {"name": name, "datatype": kinds[name][0], "shape": kinds[name][1]}
        for name in mask_outputs(session)
    ]


def encoded_masks(
    names: Sequence[str], predictions: Sequence[Prediction]
) -> dict[str, NDArray[Any]]:
    """Masks by output name: `MASK` is ``[N, H, W]`` in uint8, `MASK_PNG` is ``[N]`` with a file's bytes each.

    Raises:
        UsageError: the masks are too large together, or a tensor is to hold masks of different sizes.
    """
    masks = [each.mask for each in predictions if each.mask is not None]
    if sum(mask.size for mask in masks) * len(names) > limits.REQUEST_VALUES:
        raise UsageError(
            "The response would be too large.",
            f"Its masks have over {limits.REQUEST_VALUES:,} values.",
            "Send fewer images at a time.",
        )
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        if name == MASK_PNG:
            files = np.empty(len(masks), object)
            files[:] = [
                mask_png(mask, each.mask_classes)
                for mask, each in zip(masks, predictions, strict=True)
            ]
            found[name] = files
            continue
        sizes = sorted({mask.shape for mask in masks})
        if len(sizes) > 1:
            first, second = (f"{height}x{width}" for height, width in sizes[:2])
            raise UsageError(
                f"The images have different sizes, such as {first} and {second}.",
                f"A tensor holds masks of one size, and '{MASK}' is a tensor.",
                f"Ask for '{MASK_PNG}', or send the images one at a time.",
            )
        found[name] = np.stack(masks)
    return found


# --- Requests ---

# Parameters of a request.
PREDICTIONS, TOP_K, THRESHOLD, INVERT = "predictions", "top_k", "threshold", "invert"
_NAMED = 8  # inputs in an error
CLASSIFICATION = "classification"  # output parameter of Triton's extension, which is not supported


@dataclass(frozen=True)
class PredictionOptions:
    """The labels requested of a prediction; None leaves the choice to the task."""

    top_k: int | None
    threshold: float | None
    invert: bool


@dataclass(frozen=True)
class PreparedRequest:
    """A request that has been checked.

    Attributes:
        arrays: the model's inputs by name; images are prepared.
        outputs: the names of the model's outputs to send.
        choice: how predictions are made; None if neither they nor masks are requested.
        sends_predictions: whether the predictions are to be sent.
        masks: the names of the masks to send.
        sizes: height and width of each encoded image, for masks; none for tensors.
    """

    arrays: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...]
    choice: PredictionOptions | None
    sends_predictions: bool
    masks: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()

    def computed(self, session: Session) -> list[str]:
        """The outputs to compute: those to send and those needed for a prediction."""
        more = session.roles.all if self.choice is not None else ()
        return list(dict.fromkeys((*self.outputs, *more)))


def read_request(request: InferRequest, session: Session) -> PreparedRequest:
    """Check a request, and prepare its images."""
    parameters = request.parameters
    invert = _truth(parameters, INVERT)
    _check_names([tensor.name for tensor in request.inputs], session)
    sizes: list[Size] = []
    arrays = {tensor.name: _array(tensor, session, invert, sizes) for tensor in request.inputs}
    if sum(array.size for array in arrays.values()) > limits.REQUEST_VALUES:
        raise UsageError(
            "The request is too large.",
            f"Its inputs have over {limits.REQUEST_VALUES:,} values.",
            "Send fewer images at a time.",
        )
    named, masks = _named_outputs(request, session)
    asked = TOP_K in parameters or THRESHOLD in parameters
    sends_predictions = _truth(parameters, PREDICTIONS, asked and not masks)
    choice = _choice(parameters, invert, session) if sends_predictions or masks else None
    if not request.outputs and not sends_predictions:
        named = tuple(port.name for port in session.outputs)
    return PreparedRequest(arrays, named, choice, sends_predictions, masks, tuple(sizes))


def _check_names(names: Sequence[str], session: Session) -> None:
    """Check names before tensors are read, since their expected contents depend on the name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError(f"Input '{name[:80]}' is given twice.")
    wanted = [port.name for port in session.inputs]
    if set(names) != set(wanted):
        listed = ", ".join(name[:80] for name in sorted(names)[:_NAMED]) or "none"
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        raise UsageError(
            f"The request has the inputs {listed}{more}.", f"The model takes {', '.join(wanted)}."
        )


def _array(tensor: RequestInput, session: Session, invert: bool, sizes: list[Size]) -> NDArray[Any]:
    """The values of a tensor, or its encoded images prepared, whose own sizes are added to ``sizes``."""
    if tensor.datatype != BYTES:
        return array_of(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    files = encoded_images(tensor.name, tensor.shape, tensor.data)
    preprocessing = session.metadata.preprocessing if session.metadata else None
    if preprocessing is None:
        raise UsageError(
            "The model does not take images.",
            "Its file does not state the preprocessing.",
            "Send prepared tensors.",
        )
    # Refused before they are decoded.
    most = max(1, limits.REQUEST_VALUES // math.prod(preprocessing.shape))
    if len(files) > most:
        raise UsageError(
            f"Input '{tensor.name}' has {len(files)} images.",
            f"A request for this model takes {most}.",
            "Send fewer images at a time.",
        )
    prepared = [_prepared(k, file, session, invert) for k, file in enumerate(files)]
    sizes += [size for _, size in prepared]
    return np.stack([image for image, _ in prepared])


def _prepared(
    number: int, file: bytes, session: Session, invert: bool
) -> tuple[NDArray[Any], Size]:
    try:
        return session.image_input.reader(invert, prepared=False).sized(file)
    except UsageError as error:
        what = f"Element {number} of the images: {error.what}"
        raise UsageError(what, error.why, error.fix) from error


def _named_outputs(
    request: InferRequest, session: Session
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The outputs that a request names: the model's own, and masks."""
    own, masks = [port.name for port in session.outputs], mask_outputs(session)
    for output in request.outputs:
        if output.name not in own and output.name not in masks:
            raise UsageError(
                f"The model has no output '{output.name[:80]}'.",
                f"Its outputs: {', '.join([*own, *masks])}.",
            )
        if CLASSIFICATION in output.parameters:
            raise UsageError(
                "The parameter 'classification' is not supported.",
                "",
                f"Set the parameter '{PREDICTIONS}' of the request; the response then has labels "
                "and scores.",
            )
    names = dict.fromkeys(output.name for output in request.outputs)
    return tuple(n for n in names if n in own), tuple(n for n in names if n in masks)


def _choice(parameters: Mapping[str, Any], invert: bool, session: Session) -> PredictionOptions:
    if session.metadata is None:
        raise UsageError("The model has no predictions.", "Its file does not describe its outputs.")
    top_k, threshold = parameters.get(TOP_K), _fraction(parameters.get(THRESHOLD))
    session.roles.choice(top_k, threshold)
    return PredictionOptions(top_k, threshold, invert)


def _fraction(value: Any) -> Any:
    """A number, possibly given as text: gRPC parameters have no floating-point type."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise UsageError(f"threshold is '{value[:20]}'.", "Scores go from 0 to 1.") from None


def _truth(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise UsageError(
            f"The parameter '{name}' is {str(value)[:20]!r}.", "It must be true or false."
        )
    return value
