"""The files that every supported ONNX Runtime must compute alike, and what they must give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import capsedge
import capsedge.models.ops as ops
from capsedge.calibration.float_model import FloatModel, uniform_assignment
from capsedge.datasets import ImageSet
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.exporters.frozen_couplings import freeze
from capsedge.models.checkpoint import load_checkpoint
from capsedge.optimization.cascade_graph import EscalationRule, GraphPair, join
from capsedge.runtime.zoo import default_model, zoo_checkpoint
from capsedge.spec.operators import DOMAIN
from capsedge.spec.vocabularies import ZOO_ROUTINGS as ROUTINGS
from capsedge.verification.reference import Reference

Arrays = dict[str, NDArray[np.float32]]

BATCH = 3
# Largest difference from the reference, of the largest magnitude along the last axis. FP32 files are
# compared with PyTorch; the others with the installed ONNX Runtime over the function bodies, from which
# the library and other versions differ by rounding that moves single 8-bit steps.
FP32, REDUCED = 1e-4, 3e-2


class Stack(nn.Module):
    """Routing layers of equal shapes and other attributes, one after the other.

    Args:
        iterations: of each layer; every layer has another epsilon too.
    """

    def __init__(self, iterations: Iterable[int]) -> None:
        super().__init__()
        self.iterations = tuple(iterations)
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(6, 6, 4, 4, generator=generator) for _ in self.iterations]
        self.weights = nn.ParameterList(weights)

    def forward(self, u: Tensor) -> Tensor:
        for k, (weight, iterations) in enumerate(zip(self.weights, self.iterations, strict=True)):
            v, _ = ops.dynamic_routing(u, weight, iterations=iterations, epsilon=1e-8 * (k + 1))
            u = 3 * v
        return u


class Constants(nn.Module):
    """Both operators with an optional input: with it, and without it."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in {
            "weight": (6, 6, 4, 4), "vote_bias": (6, 6, 4), "matrices": (1, 1, 6, 5, 2, 2),
            "betas": (2, 5), "coordinates": (1, 1, 4),
        }.items():  # fmt: skip
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))

    def forward(self, u: Tensor) -> Tensor:
        found = []
        for vote_bias, coordinates in ((self.vote_bias, self.coordinates), (None, None)):
            v, _ = ops.dynamic_routing(u, self.weight, vote_bias=vote_bias)
            pose = 3 * v[:, None, None]
            p, _, _ = ops.em_routing(
                pose, pose.norm(dim=-1).sigmoid(), self.matrices, *self.betas,
                inverse_temperatures=(0.1, 0.2), coordinates=coordinates,
            )  # fmt: skip
            found.append(p[:, 0, 0])
        return torch.cat(found, 1)


def make(folder: Path) -> None:
    """Write the files, ``<name>.onnx``, and ``<name>.npz`` with an input ``x`` and the outputs wanted."""
    x = np.random.default_rng(0).random((BATCH, 1, 28, 28), dtype=np.float32)
    for routing in ROUTINGS:
        model = load_checkpoint(zoo_checkpoint(f"digits-{routing}"))
        path = folder / f"{routing}.onnx"
        export(model, path)
        portable = folder / f"{routing}-portable.onnx"
        export(model, portable, ExportOptions(ops="portable"))
        for file in (path, portable):
            _wanted(file, x, _torch(model, file, x))
        _reduced(path, x)
    _cascade(folder, x)
    # The file that the package ships.
    shipped = folder / "shipped.onnx"
    shipped.write_bytes(default_model().read_bytes())
    _wanted(shipped, x, _torch(load_checkpoint(zoo_checkpoint("digits-dynamic")), shipped, x))
    make_modules(folder)


def make_modules(folder: Path, names: Iterable[str] = ("two", "many", "constants")) -> None:
    """The files of modules, as in `make`."""
    # Two bodies of equal shapes; more bodies than the library has names for by default; optional inputs.
    u = np.random.default_rng(1).standard_normal((BATCH, 6, 4), dtype=np.float32)
    modules = {"two": Stack((3, 2)), "many": Stack(range(1, 20)), "constants": Constants()}
    for name in names:
        module, path = modules[name], folder / f"{name}.onnx"
        export(
            module.eval(),
            path,
            example=torch.from_numpy(u),
            options=ExportOptions(output_names=["v"]),
        )
        with torch.no_grad():
            _wanted(path, u, {"v": module(torch.from_numpy(u)).numpy()})


def with_overloads(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as it was written before bodies had names of their own: told apart by overloads."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for function in copy.functions:
        function.name, function.overload = _overload(function.name)
    for node in copy.graph.node:
        if node.domain == DOMAIN:
            node.op_type, node.overload = _overload(node.op_type)
    return copy


def _overload(name: str) -> tuple[str, str]:
    match = re.fullmatch(r"([A-Za-z]+)_(\d+)", name)
    return (match[1], match[2]) if match else (name, "1")


def _torch(model: nn.Module, path: Path, x: NDArray[np.float32]) -> Arrays:
    return Reference(model, [o.name for o in onnx.load(path).graph.output]).run(x)


def _wanted(path: Path, x: NDArray[np.float32], outputs: Arrays, tolerance: float = FP32) -> None:
    np.savez(path.with_suffix(".npz"), x=x, tolerance=tolerance, **outputs)


def _cascade(folder: Path, x: NDArray[np.float32]) -> None:
    """An INT8 network with another one behind it: function bodies, kernels and INT8 inside a branch."""
    files = [folder / name for name in ("dynamic-int8-ort-cpu.onnx", "em.onnx")]
    small, large = map(onnx.load, files)
    both = {name: name for name in ("lengths", "poses")}
    scores = np.sort(capsedge.load(files[0], threads=1).run(x)["lengths"], axis=1)
    margins = np.sort(scores[:, -1] - scores[:, -2])
    between = float(margins[:2].mean())  # one image of the batch is escalated
    model = join(small, large, GraphPair(both, "lengths"), EscalationRule(between))
    path = folder / "cascade.onnx"
    path.write_bytes(model.SerializeToString())
    found = capsedge.load(path, ops="portable", threads=1).run(x)
    _wanted(path, x, {n: v.astype(np.float32) for n, v in found.items()}, REDUCED)


def _reduced(path: Path, x: NDArray[np.float32]) -> None:
    """The INT8, FP16 and frozen files of an FP32 file."""
    source = FloatModel(path)
    pixels = np.random.default_rng(2).integers(0, 256, (32, 28, 28, 1), dtype=np.uint8)
    images = ImageSet("random", pixels, None, source.preprocessing)
    table = source.calibrate(images, "minmax", None)
    made = {"fp16": source.to_fp16(images)[0]}
    for target in ("ort-cpu", "tensorrt"):
        levels = uniform_assignment(source.quantizable(target), "int8")
        made[f"int8-{target}"] = source.emit(levels, table, target)[0]
    if source.metadata.routing != "em":
        frozen = onnx.load(path)
        freeze(frozen, images)
        made["frozen"] = frozen
    for kind, model in made.items():
        file = path.with_name(f"{path.stem}-{kind}.onnx")
        file.write_bytes(model.SerializeToString())
        session = capsedge.load(file, ops="portable", threads=1)
        _wanted(file, x, session.run(x.astype(session.inputs[0].dtype)), REDUCED)
