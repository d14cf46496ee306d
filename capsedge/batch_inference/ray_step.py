"""Offer a model as a step of a Ray Data pipeline.

https://docs.ray.io/en/latest/data/batch_inference.html

    import ray
    from capsedge.batch_inference.ray_step import Predictor

    images = ray.data.read_images("photos/", mode="L", size=(28, 28))
    answers = images.map_batches(
        Predictor, fn_constructor_kwargs={"model": "digits-em"}, num_cpus=2, concurrency=4
    )
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.batch_inference.items import Item
from capsedge.batch_inference.model_bytes import ModelBytes, read_model
from capsedge.batch_inference.rows import Row, RowMaker
from capsedge.batch_inference.storage import is_remote, plain
from capsedge.errors import UsageError
from capsedge.runtime.load import load
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.session import Session

_TEXTS = ("label", "atypical", "error")


class Predictor:
    """Predictions for batches of images, for ``map_batches``. Each worker opens one session and keeps it.

    Args:
        model: as for `capsedge.load`, or an fsspec address such as ``s3://bucket/model.onnx``; or
            ``ray.put(read_model(...))``, which sends a file from the driver to the workers, with its
            checksum.
        column: the column of images: contents of image files, or arrays: pixels ``[H, W]`` or ``[H, W, C]``
            of uint8 or uint16, or prepared floats ``[C, H, W]``.
        outputs: further columns: ``scores`` ``[N, J]``, ``poses`` ``[N, J, P]``.
        invert: for dark ink on a light background.
        threads: threads of one inference; by default the CPUs that Ray reserves for the worker.
        ops, device, provider: as for `capsedge.load`.

    Raises:
        UsageError: there is no such model, or it has no such output.
        EnvironmentProblem: something needed to run the model is missing on this machine.
        ArtefactError: the model's file is damaged, or does not state its preprocessing.
    """

    def __init__(
        self,
        model: Any,
        *,
        column: str = "image",
        outputs: Sequence[str] = (),
        invert: bool = False,
        threads: int | None = None,
        ops: str = "auto",
        device: str | None = None,
        provider: str = "auto",
    ) -> None:
        threads = _reserved_cpus() if threads is None else threads
        session = _session(model, threads, {"ops": ops, "device": device, "provider": provider})
        self._row_maker = RowMaker(session, outputs, invert, threads)
        self._column = column
        (self._blank,) = self._row_maker.rows([Item("", _black(session))])

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Answer a batch.

        Args:
            batch: columns of ``N`` values, one of them the images.

        Returns:
            The other columns as they are; ``label`` (empty if there is none) and ``score``, or the values of
            a regression by their names; ``atypical``: why there is nothing to see; ``error``: why there is no
            answer. Unknown numbers are NaN.

        Raises:
            UsageError: there is no column of images.
        """
        if self._column not in batch:
            raise UsageError(
                f"The batch has no column '{self._column}'.",
                f"It has {', '.join(map(str, batch))}.",
                "Name the column with the images: column=...",
            )
        items = [_item(str(k), image) for k, image in enumerate(batch[self._column])]
        rows = list(self._row_maker.rows(items))
        kept = {name: values for name, values in batch.items() if name != self._column}
        return kept | {name: self._values(name, rows) for name in self._names()}

    def _names(self) -> list[str]:
        numbers = [name for name in self._blank if name not in ("image", *_TEXTS)]
        label = ["label"] if "label" in self._blank else []
        return [*label, *numbers, "atypical", "error"]

    def _values(self, name: str, rows: Sequence[Row]) -> NDArray[Any]:
        """A column of the results ``[N, ...]``."""
        found = [row.get(name) for row in rows]
        if name in _TEXTS:
            return np.array(["" if value is None else value for value in found], object)
        if name == "labels":
            lists = np.empty(len(found), object)
            lists[:] = [[each["label"] for each in value or ()] for value in found]
            return lists
        if name == "escalated":
            return np.array([value is True for value in found], bool)
        missing = np.full(np.shape(self._blank[name]), np.nan)
        return np.array([missing if value is None else value for value in found], np.float64)


def _item(name: str, image: Any) -> Item:
    if image is None:
        return Item(name, error="The value is null.")
    return Item(name, image if isinstance(image, np.ndarray) else bytes(image))


def _session(model: Any, threads: int | None, options: dict[str, Any]) -> Session:
    if not isinstance(model, (str, Path, ModelBytes)):
        import ray

        model = ray.get(model)
    if isinstance(model, str):
        model = read_model(model) if is_remote(model) else plain(model)
    if isinstance(model, ModelBytes):
        if options["device"] not in (None, "cpu"):
            raise UsageError(
                f"device is '{options['device']}' for a model that was sent as bytes.",
                "Such models run on the CPU.",
                "Pass a file that the worker can open.",
            )
        return model.load(threads, options["ops"])
    found: Session = load(model, RuntimeOptions(threads=threads, **options))
    return found


def _black(session: Session) -> NDArray[Any]:
    """A black image ``[H, W, C]``, whose result determines the shapes of the columns."""
    metadata = session.metadata
    assert metadata is not None  # other files are refused earlier
    assert metadata.preprocessing is not None
    p = metadata.preprocessing
    return np.zeros((p.height, p.width, p.channels), np.uint8)


def _reserved_cpus() -> int | None:
    """The CPUs that Ray reserved for this worker; None outside of a cluster."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    return max(1, int(cpus))
