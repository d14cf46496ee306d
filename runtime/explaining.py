"""What a loaded model shows of itself: the decoder's pictures, and its routing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.arrays import AnyArray
from capsedge.runtime.decoder import RECONSTRUCTION, Decoder, classes_of, poses_of
from capsedge.runtime.files import limits
from capsedge.runtime.inputs import fixed_bytes
from capsedge.runtime.maker import decoder_again, export_again
from capsedge.runtime.metadata import REGRESSION
from capsedge.runtime.preparing import Preparing
from capsedge.runtime.trace import Trace, TraceOutputs, joined
from capsedge.runtime.vision.given import Images

_TRACED_CHUNK = 16  # images of a run


class Explaining(Preparing):
    """The part of a `Session` that lets one look into its model."""

    def __init__(self, *args: Any, decoder: Decoder | None = None) -> None:
        super().__init__(*args)
        self._decoder = decoder

    def reconstruct(
        self,
        images: Images,
        invert: bool = False,
        *,
        layout: str | None = None,
        prepared: bool | None = None,
    ) -> NDArray[np.float32]:
        """The decoder's pictures of images given as to `predict`: ``[N, J, C, H, W]``, one per class
        capsule.

        Raises:
            UsageError: the file has no decoder; otherwise as `predict`.
        """
        self.check_reconstruction()
        pictures = [
            self._run_batch(batch, [RECONSTRUCTION])[RECONSTRUCTION]
            for batch in self._batches(images, None, invert, layout, prepared)
        ]
        if not pictures:
            raise UsageError("There are no images to reconstruct.", "", "Give at least one.")
        return np.concatenate(pictures).astype(np.float32, copy=False)

    def decode(
        self,
        poses: AnyArray | Sequence[object],
        classes: AnyArray | Sequence[int] | int | None = None,
    ) -> NDArray[np.float32]:
        """The decoder's pictures of given poses; nothing else of the model runs.

        The picture of a class is decoded from its capsule alone, all others masked to zero (Sabour et al.
        2017, section 4.1), so it depends on no other pose. For the poses that the model finds in images,
        these are the pictures of `reconstruct`.

        Args:
            poses: of all classes ``[N, J, P]`` or ``[J, P]``, as `Prediction.poses`; with ``classes`` of one
                class each ``[N, P]`` or ``[P]``. Arrays of any library, or lists.
            classes: the class of each pose ``[N]``, or one for all.

        Returns:
            Pictures ``[N, J, C, H, W]``; with ``classes`` ``[N, C, H, W]``.

        Raises:
            UsageError: the file has no decoder that needs only poses, or an argument is wrong.
            ShapeError: the poses have another shape.
        """
        decoder = self._opened_decoder()
        known, size = decoder.capsules
        if classes is None:
            return decoder.decode(poses_of(poses, (known, size)))
        given = poses_of(poses, (size,))
        return decoder.of_classes(given, classes_of(classes, len(given), known))

    def check_decoder(self) -> None:
        """Raise a UsageError if `decode` is not possible."""
        self._opened_decoder()

    def _opened_decoder(self) -> Decoder:
        self._backend  # noqa: B018 - refuses a closed session
        self.check_reconstruction()
        if self._decoder is None:
            raise UsageError(
                f"{self.path} cannot decode poses.",
                "A TensorRT engine runs as a whole."
                if self.passport
                else "It has no output with a pose for each class.",
                "Load the ONNX file that the engine was built from."
                if self.passport
                else decoder_again(self.metadata),
            )
        self._decoder.check()
        return self._decoder

    def check_reconstruction(self) -> None:
        """Raise a UsageError if the file has no decoder."""
        if self._metadata().task == REGRESSION:
            raise UsageError(
                f"{self.path} cannot reconstruct images.",
                "It estimates values; pictures belong to classes.",
                "Leave the reconstruction out.",
            )
        if RECONSTRUCTION not in [port.name for port in self.outputs]:
            raise UsageError(
                f"{self.path} cannot reconstruct images.",
                f"It has no output '{RECONSTRUCTION}'.",
                decoder_again(self.metadata),
            )

    def trace(
        self,
        images: Images,
        invert: bool = False,
        *,
        layout: str | None = None,
        prepared: bool | None = None,
    ) -> Trace:
        """The routing of images given as to `predict`: couplings, poses and agreement of every iteration of
        every routed layer.

        Raises:
            UsageError: the file has no trace, or the values of so many images take over 1 GiB; otherwise as
                `predict`.
        """
        stated = self._stated_trace()
        per_image = self._traced_bytes(stated)
        most = max(1, limits.RUN_BYTES // per_image)
        runs, count = [], 0
        for batch in self._batches(images, min(most, _TRACED_CHUNK), invert, layout, prepared):
            count += len(batch)
            if count * per_image > limits.TRACED_BYTES:
                raise UsageError(
                    f"The trace of the images takes over {limits.TRACED_BYTES // limits.MIB} MiB.",
                    f"One image takes {per_image / limits.MIB:.1f} MiB.",
                    f"Trace at most {limits.TRACED_BYTES // per_image} images at a time.",
                )
            runs.append(self._run_batch(batch, list(stated.outputs)))
        if not runs:
            raise UsageError("There are no images to trace.", "", "Give at least one.")
        return joined(stated, runs)

    def check_trace(self) -> None:
        """Raise a UsageError if `trace` is not possible."""
        self._stated_trace()

    def _stated_trace(self) -> TraceOutputs:
        stated = self._metadata().trace
        missing = set(stated.outputs if stated else ()) - {port.name for port in self.outputs}
        if stated is None or missing:
            raise UsageError(
                f"{self.path} does not show its routing.",
                f"It has no output '{min(missing)}'." if missing else "It has no trace.",
                export_again(self.metadata, "--with trace"),
            )
        return stated

    def _traced_bytes(self, stated: TraceOutputs) -> int:
        """Bytes of the trace of one image."""
        ports = [port for port in self.outputs if port.name in stated.outputs]
        return max(1, sum(map(fixed_bytes, ports)) // (self.batch or 1))
