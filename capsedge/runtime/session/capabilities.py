"""Tell what a loaded model can do besides running and predicting, and why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.images.inputs import ImageInput
from capsedge.runtime.metadata.metadata import how_to_add_decoder, how_to_export_again
from capsedge.runtime.session.decoder import Decoder
from capsedge.runtime.session.routing_trace import TraceOutputs
from capsedge.spec.vocabularies import CLASSIFICATION, RECONSTRUCTION, SEGMENTATION


class Capabilities:
    """What a model can do. Each method raises the reason why not, with the fix.

    Args:
        path: the file, for errors.
        image_input: image input of the model.
        outputs: outputs of the model.
        decoder: the file's decoder; None if it has none that can run separately.
        whole: whether the model runs only as a whole, as an engine does.
    """

    def __init__(
        self,
        path: Path,
        image_input: ImageInput,
        outputs: Sequence[Port],
        decoder: Decoder | None,
        whole: bool,
    ) -> None:
        self._path, self._image_input, self._decoder = path, image_input, decoder
        self._names = {port.name for port in outputs}
        self._whole = whole

    @property
    def segments(self) -> bool:
        """Whether it makes masks (`check_masks`).

        Raises:
            ArtefactError: the file is not described.
        """
        return self._image_input.metadata.task == SEGMENTATION

    def check_classes(self) -> None:
        """The classes of images.

        Raises:
            UsageError: the file is a regression or a segmentation.
            ArtefactError: it is not described.
        """
        task = self._image_input.metadata.task
        if task in CLASSIFICATION:
            return
        masks = task == SEGMENTATION
        raise UsageError(
            f"{self._path} is a {task}.",
            "The picture shows the capsules of classes of images.",
            "Draw its masks with `capsedge.viz.masks`." if masks else "Use a classifier.",
            command="Draw its masks with --what masks." if masks else "Use a classifier.",
        )

    def check_masks(self) -> None:
        """The masks of images.

        Raises:
            UsageError: the file is not a segmentation.
            ArtefactError: it is not described.
        """
        if not self.segments:
            raise UsageError(
                f"{self._path} makes no masks.",
                f"It is a {self._image_input.metadata.task} model.",
                "Choose another picture, or use a segmentation.",
            )

    def check_reconstruct(self) -> None:
        """The pictures of images.

        Raises:
            UsageError: the file has no decoder.
            ArtefactError: it is not described.
        """
        metadata = self._image_input.metadata
        if metadata.task not in CLASSIFICATION:
            raise UsageError(
                f"{self._path} cannot reconstruct images.",
                f"It is a {metadata.task}, and reconstructions belong to classes of images.",
                "Leave out the reconstruction.",
            )
        if RECONSTRUCTION not in self._names:
            raise UsageError(
                f"{self._path} cannot reconstruct images.",
                f"It has no output '{RECONSTRUCTION}'.",
                how_to_add_decoder(metadata),
            )

    def check_decode(self) -> Decoder:
        """The decoder that computes pictures from poses alone.

        Raises:
            UsageError: there is none.
            ArtefactError: the file is not described.
        """
        self.check_reconstruct()
        if self._decoder is None:
            raise UsageError(
                f"{self._path} cannot decode poses.",
                "A TensorRT engine runs as a whole."
                if self._whole
                else "It has no output with a pose for each class.",
                "Load the ONNX file that the engine was built from."
                if self._whole
                else how_to_add_decoder(self._image_input.metadata),
            )
        self._decoder.check()
        return self._decoder

    @property
    def traces(self) -> bool:
        """Whether the file exposes its routing (`check_trace`)."""
        try:
            self.check_trace()
        except UsageError:
            return False
        return True

    def check_trace(self) -> TraceOutputs:
        """The routing of images: the outputs that hold the values of every iteration.

        Raises:
            UsageError: the file has none.
            ArtefactError: the file is not described.
        """
        metadata = self._image_input.metadata
        declared = metadata.trace
        missing = set(declared.outputs if declared else ()) - self._names
        if declared is None or missing:
            raise UsageError(
                f"{self._path} does not expose its routing.",
                f"It has no output '{min(missing)}'." if missing else "It has no trace.",
                how_to_export_again(metadata, "--with trace"),
            )
        return declared
