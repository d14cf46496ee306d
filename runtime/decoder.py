"""The decoder of a loaded file by itself: from the poses of class capsules to pictures."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.arrays import AnyArray, as_array
from capsedge.runtime.backends.onnxruntime_backend import Port
from capsedge.runtime.inputs import LARGEST, checked
from capsedge.runtime.reading.cutting import Uncuttable, cut

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Backend

RECONSTRUCTION = "reconstruction"
_CHUNK = 64  # poses per run; bounds memory

Floats = NDArray[np.float32]


class Decoder:
    """The part of a file between its poses and its reconstruction, opened when it is first used.

    Safe to use from several threads at once.

    Args:
        data: the ONNX file.
        path: its name in errors.
        poses: its output with a pose for each class.
        open_part: loads a part of the file.
    """

    def __init__(
        self, data: bytes, path: Path, poses: Port, open_part: Callable[[bytes], Backend]
    ) -> None:
        self._path, self._poses, self._open = path, poses, open_part
        self._lock = threading.Lock()
        self._backend: Backend | None = None
        self._part, self._refused = b"", ""
        try:
            self._part = cut(data, poses.name, RECONSTRUCTION)
        except Uncuttable as error:
            self._refused = str(error)

    @property
    def capsules(self) -> tuple[int, int]:
        """Class capsules, and elements of the pose of each."""
        classes, *pose = (size for size in self._poses.shape[1:] if isinstance(size, int))
        return classes, math.prod(pose)

    def check(self) -> None:
        """Raise a UsageError if the pictures cannot be computed from poses alone."""
        refused = self._refused
        if not refused and not all(isinstance(size, int) for size in self._poses.shape[1:]):
            refused = "the file leaves the number of its poses open"
        if refused:
            raise UsageError(
                f"{self._path} cannot decode poses.",
                f"Its output '{RECONSTRUCTION}' is not computed from '{self._poses.name}' alone: {refused}.",
                "Export the model again with `capsedge export --with reconstruction`; a network of your own "
                "must compute its pictures from the poses that it returns.",
            )

    def decode(self, poses: Floats) -> Floats:
        """The pictures of poses ``[N, J, P]``: of each class ``[N, J, C, H, W]``."""
        backend = self._opened()
        port = backend.inputs[0]
        fixed = port.shape[0] if isinstance(port.shape[0], int) else None
        step = fixed or _CHUNK
        found = []
        for start in range(0, len(poses), step):
            part = poses[start : start + step]
            fed = np.zeros((fixed or len(part), *poses.shape[1:]), port.dtype)
            fed[: len(part)] = part
            shaped = fed.reshape(len(fed), *self._behind_batch(port))
            made = backend.run({port.name: shaped}, [RECONSTRUCTION])[RECONSTRUCTION]
            found.append(made[: len(part)].astype(np.float32, copy=False))
        return np.concatenate(found)

    def _behind_batch(self, port: Port) -> Sequence[int]:
        sizes = [size for size in port.shape[1:] if isinstance(size, int)]
        if math.prod(sizes) != math.prod(self.capsules) or len(sizes) + 1 != len(port.shape):
            raise UsageError(
                f"{self._path} cannot decode poses.",
                f"Its decoder reads '{port.name}' {list(port.shape)}, of another size than the poses of an "
                "image.",
                "Export the model again with `capsedge export --with reconstruction`.",
            )
        return sizes

    def _opened(self) -> Backend:
        with self._lock:
            if self._backend is None:
                self._backend = self._open(self._part)
            return self._backend

    def of_classes(self, poses: Floats, classes: NDArray[np.int64]) -> Floats:
        """The pictures ``[N, C, H, W]`` of one pose ``[N, P]`` for one class ``[N]`` each.

        Poses of different classes share an image: a picture depends on the pose of its own class only.
        """
        counts = dict.fromkeys(classes.tolist(), 0)
        images = np.zeros(len(classes), np.int64)
        for k, index in enumerate(classes.tolist()):
            images[k] = counts[index]
            counts[index] += 1
        packed = np.zeros((max(counts.values()), *self.capsules), np.float32)
        packed[images, classes] = poses
        pictures = self.decode(packed)
        if pictures.ndim != 5 or pictures.shape[1] != self.capsules[0]:
            raise UsageError(
                f"{self._path} has no picture for each class.",
                f"Its output '{RECONSTRUCTION}' is {list(pictures.shape)}.",
                "Leave classes out, and pass the poses of all classes.",
            )
        return pictures[images, classes]


def poses_of(given: AnyArray | Sequence[object], shape: tuple[int, ...]) -> Floats:
    """Poses that were given as an array or as lists, checked: ``[N, *shape]``, N added where it lacks.

    Raises:
        ShapeError, UsageError: they have another shape, are no numbers, or not finite.
    """
    array = as_array(given, "The poses")
    try:
        found = np.asarray(given if array is None else array, np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(
            "The poses are not an array of numbers.",
            f"{error}".split("\n")[0],
            f"Wanted: {['N', *shape]}, as `Prediction.poses` has them.",
        ) from error
    if found.shape == shape:
        found = found[np.newaxis]
    found = checked(Port("poses", ("N", *shape), "float32"), found, LARGEST)
    if not len(found):
        raise UsageError("There are no poses to decode.", "", "Give at least one.")
    return found


def classes_of(given: AnyArray | Sequence[int] | int, count: int, known: int) -> NDArray[np.int64]:
    """Numbers of classes ``[N]``, one for each of ``count`` poses; a single one is for all.

    Raises:
        UsageError: they are no whole numbers of classes, or more or fewer than the poses.
    """
    array = as_array(given, "classes")
    found = np.asarray(given if array is None else array)
    if found.ndim == 0:
        found = np.broadcast_to(found, (count,))
    whole = found.dtype.kind in "iu"
    if not whole or found.shape != (count,) or found.min() < 0 or found.max() >= known:
        raise UsageError(
            "classes does not name a class for each pose.",
            f"It has the shape {list(found.shape)} and the type {found.dtype}; there are {count} poses.",
            f"Wanted: {count} whole numbers from 0 to {known - 1}, or one of them for all poses.",
        )
    return found.astype(np.int64)
