"""The models, and the files that each runtime is given for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.capsbench import rules
from benchmarks.portability import write_int8, write_program

DATA: Final = {
    "digits-dynamic": "mnist",
    "digits-em": "mnist",
    "digits-attention": "mnist",
    "digits-small": "mnist",
    "capsnet-mnist": "mnist",
    "em-smallnorb": "",
    "attention-cifar10-simple": "cifar10",
}
"""The models, and the data set that each is measured on; random images where there is none."""

RANDOM = 256  # number of images if there is no data set
CALIBRATION = 512


@dataclass(frozen=True)
class Runtime:
    """What a runtime is given.

    Attributes:
        form: the FP32 file: ``fused`` (capsule operators), ``plain`` (standard operators, no rewrites),
            ``single`` (standard operators, batch 1), ``program`` (of ``torch.export``, batch 1),
            ``checkpoint`` or ``engine``.
        int8: target of the INT8 file; empty if the runtime takes none.
    """

    form: str
    int8: str = ""

    @property
    def free(self) -> bool:
        """Whether the runtime takes batches of any size."""
        return self.form not in ("single", "program")


RUNTIMES: Final = {
    "capsedge": Runtime("fused", "ort-cpu"),
    "onnxruntime": Runtime("plain", "ort-cpu"),
    "openvino": Runtime("plain", "openvino"),
    "torch": Runtime("checkpoint"),
    "torch.compile": Runtime("checkpoint"),
    "litert": Runtime("single", "litert"),
    "mnn": Runtime("single"),
    "ncnn": Runtime("single"),
    "tract": Runtime("single", "litert"),
    "executorch": Runtime("program"),
    "tensorrt": Runtime("engine", "tensorrt"),
}
PRECISIONS: Final = ("fp32", "int8")


class Files:
    """The files of one model, each made when it is first asked for.

    Args:
        name: name in the registry.
        checkpoint: the model's weights; None for the package's, or random ones.
        data: folder of the model's data set, if it has one.
        folder: folder to write the files to.
        limit: maximum number of images.
    """

    def __init__(
        self, name: str, checkpoint: Path | None, data: Path | None, folder: Path, limit: int | None
    ) -> None:
        import torch

        from capsedge.models.checkpoint import save_checkpoint
        from capsedge.models.find import find_model

        torch.manual_seed(0)
        found = find_model(checkpoint or name)
        self.model, self.trained = found.model, found.trained
        self._data, self._folder = data, folder
        self.checkpoint = folder / "model.safetensors"
        save_checkpoint(self.model, self.checkpoint)
        self.images, self.labels = self._images(limit)
        self.inputs = folder / "images.npz"
        np.savez(self.inputs, images=self.images)
        self.outputs = [self.model.score_name, "poses"]

    def _images(self, limit: int | None) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
        preprocessing = self.model.config.preprocessing
        if self._data is None:
            count = RANDOM if limit is None else min(limit, RANDOM)
            return _random(count, preprocessing.shape), None
        from capsedge.datasets import read_images

        test = read_images(self._data, preprocessing, "test", limit)
        return np.stack(list(test.inputs())), test.classes

    def reference(self) -> NDArray[np.float32]:
        """The scores ``[N, classes]`` that PyTorch computes in FP32."""
        import torch

        found = []
        with torch.inference_mode():
            for start in range(0, len(self.images), 64):
                found.append(self.model(torch.from_numpy(self.images[start : start + 64])).scores)
        return torch.cat(found).numpy()

    def of(self, runtime: str, precision: str) -> Path:
        """The file for a runtime.

        Raises:
            CapsedgeError: it cannot be made, for example because INT8 costs a trained model too much.
        """
        kind = RUNTIMES[runtime]
        if kind.form == "engine":
            return self._engine(precision, kind.int8)
        if precision == "int8":
            return self._int8(kind.int8)
        return self._fp32(kind.form)

    def _fp32(self, form: str) -> Path:
        from capsedge.exporters.export import export
        from capsedge.exporters.export_options import REWRITES, ExportOptions

        path = self._folder / f"{form}{'.pt2' if form == 'program' else '.onnx'}"
        if form == "checkpoint":
            return self.checkpoint
        if path.exists():
            return path
        if form == "fused":
            export(self.model, path)
        elif form == "plain":
            export(self.model, path, ExportOptions(ops="portable", no_rewrite=tuple(REWRITES)))
        elif form == "single":
            export(self.model, path, ExportOptions(target="litert"))
        else:
            write_program(self.model, self.images[:1], path)
        return path

    def _int8(self, target: str) -> Path:
        """The INT8 file. Trained weights must pass the gate; random ones have no correct answers to lose."""
        import capsedge
        from capsedge.datasets import from_iterable

        path = self._folder / f"{target}.int8.onnx"
        if path.exists():
            return path
        fused = self._fp32("fused")
        if self.trained and self._data is not None:
            capsedge.quantize(
                fused,
                path,
                calib_images=CALIBRATION,
                target=target,
                calib_data=self._data,
            )
            return path
        images = _random(CALIBRATION // 8, self.images.shape[1:], seed=1)
        return write_int8(fused, path, from_iterable(iter(images), None), target)

    def _engine(self, precision: str, target: str) -> Path:
        import capsedge

        source = self._int8(target) if precision == "int8" else self._fp32("fused")
        path = self._folder / f"{precision}.engine"
        if not path.exists():
            batches = (1, rules.BATCH, rules.BATCH)
            capsedge.build(source, path, precision=precision, batch=batches)
        return path


def _random(count: int, shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((count, *shape), np.float32)
