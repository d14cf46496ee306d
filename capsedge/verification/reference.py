"""Run the reference: the unpatched module in eager PyTorch, in FP32 and FP64.

FP64 distinguishes rounding from errors. The trained model is also a peer of ``capsedge profile``, loaded by a
worker of ``capsedge.runtime.profiling.startup`` that knows only its name: the runtime never imports torch.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from capsedge.errors import ArtefactError, CapsedgeError, UnsupportedModelError, UsageError
from capsedge.exporters.flat_module import AddedScores, default_fp64, named_outputs
from capsedge.exporters.traced_routing import trace_routing
from capsedge.exporters.user_batch import check_repeatable
from capsedge.models import CapsuleModel, with_iterations
from capsedge.models.user.code import on_cpu
from capsedge.models.user.module import UserModule, UserModuleSpec, load_user_module
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata.metadata import (
    ModelMetadata,
    Provenance,
    provenance_of,
    reference_options,
)
from capsedge.runtime.profiling.worker import Run, Specification, main
from capsedge.runtime.session.routing_trace import PREFIX
from capsedge.runtime.session.session import Session

Arrays = dict[str, NDArray[Any]]
Tensors = Sequence[torch.Tensor]

_ROUNDING = 2.0**-24  # rounding error of FP32
_DRAWS = 3  # number of random roundings
_CHECKED = 4  # inputs of a profile that its module is checked on


class Reference:
    """A module that computes the expected outputs of the artefact.

    Args:
        module: one of the package's models, or any module that takes the images.
        outputs: names of the artefact's outputs.
        ranks: how many dimensions each has.
        metadata: metadata of the artefact: which scores export made of another output.
        batch: the fixed one of the artefact, at which the module is run; None for a free one.

    Attributes:
        module: a copy in FP32 and evaluation mode; the given module is not changed.
        own: the module of the user's with its weights file, if it was loaded from one.
        unchecked: notes on what `check_repeatable` could not check.
    """

    def __init__(
        self,
        module: nn.Module,
        outputs: Sequence[str],
        ranks: Mapping[str, int] | None = None,
        metadata: ModelMetadata | None = None,
        batch: int | None = None,
    ) -> None:
        self.ranks, self.batch = ranks, batch
        self._chosen = metadata.chosen_scores if metadata is not None and metadata.outputs else None
        self._scores = metadata.outputs.scores if metadata and metadata.outputs else ""
        self.module = copy.deepcopy(module).eval().float()
        self.outputs = tuple(outputs)
        self._fp64: nn.Module | None = None
        self.own: UserModule | None = None
        self.unchecked: tuple[str, ...] = ()

    def run(self, *inputs: NDArray[Any], dtype: torch.dtype = torch.float32) -> Arrays:
        """All outputs of the artefact, by name, as this module computes them.

        In FP64, code that fixes a type and cannot run so gives what FP32 does.

        Args:
            inputs: the images ``[n, C, H, W]``, or all inputs ``[n, ...]`` in the artefact's order.

        Raises:
            UsageError: the module fails on the inputs, or has no such outputs.
        """
        given = [
            torch.from_numpy(np.array(each, order="C")) for each in inputs
        ]  # code may write into it
        tensors = self._rounded(given) if dtype == torch.float32 else self._exact(given)
        missing = [name for name in self.outputs if name not in tensors]
        if missing:
            raise UsageError(
                f"The reference has no output {', '.join(missing)}.",
                f"Its outputs: {', '.join(tensors)}.",
                "Pass the module that the file was exported from.",
            )
        return {name: tensors[name].numpy() for name in self.outputs}

    @property
    def fp64(self) -> nn.Module:
        """The same module in FP64."""
        if self._fp64 is None:
            self._fp64 = copy.deepcopy(self.module).double()
        return self._fp64

    def check_repeatable(self, *inputs: NDArray[Any]) -> None:
        """Refuse a module of the user's whose answers differ, or whose weights are not all saved.

        Raises:
            UnsupportedModelError: the error names the line, or the tensors.
        """
        if not isinstance(self.module, CapsuleModel):
            given = [torch.from_numpy(np.ascontiguousarray(each)) for each in inputs]
            check_repeatable(self.module, self._rounded, [given])
            if self.own is not None:
                self.unchecked = self.own.check_saved(given, self.batch or 0)

    def noise(self, expected: Arrays, *inputs: NDArray[Any]) -> Arrays:
        """The largest error of FP32 itself per image; broadcasts over the output's elements.

        Args:
            expected: what `run` returned for the inputs.
        """
        exact = self.run(*inputs, dtype=torch.float64)
        return {name: _largest_error(expected[name], exact[name]) for name in expected}

    def conditioning(self, *inputs: NDArray[Any]) -> Arrays | None:
        """How far one rounding of all inputs and weights to FP32 moves each pose, the largest of a few draws.

        An evaluation in FP32 gives what FP64 gives for inputs and weights that are changed by a few such
        roundings. None if the module cannot run in FP64.
        """
        given = [torch.from_numpy(np.ascontiguousarray(each)) for each in inputs]
        exact = self._true(given)
        if exact is None:
            return None
        moved = {name: np.zeros(()) for name in self.outputs}
        for module, changed in self.moved(given):
            found = self._to_fp64(module, changed)
            for name in self.outputs:
                off = np.abs(found[name].numpy() - exact[name].numpy())
                off = np.nan_to_num(off, posinf=0.0)
                if off.ndim > 1:  # otherwise one value for each input
                    off = off.max(axis=-1, keepdims=True, initial=0.0)
                moved[name] = np.maximum(moved[name], off)
        return moved

    def moved(self, inputs: Tensors) -> Iterator[tuple[nn.Module, list[torch.Tensor]]]:
        """The FP64 module and its inputs, every value changed by one rounding of FP32, up or down."""
        for seed in range(_DRAWS):
            generator = torch.Generator().manual_seed(seed)

            def changed(x: torch.Tensor, generator: torch.Generator = generator) -> torch.Tensor:
                if not x.is_floating_point():
                    return x
                signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
                return x.double() * (1 + _ROUNDING * signs)

            module = copy.deepcopy(self.fp64)
            with torch.no_grad():
                for tensor in (*module.parameters(), *module.buffers()):
                    tensor.copy_(changed(tensor))
            yield module, [changed(x) for x in inputs]

    def _rounded(self, inputs: Tensors) -> Mapping[str, torch.Tensor]:
        try:
            return self._tensors(
                self.module, [x.float() if x.is_floating_point() else x for x in inputs]
            )
        except CapsedgeError:
            raise
        except Exception as error:  # any kind, from the user's code
            sizes = " and ".join(str(list(x.shape[1:])) for x in inputs)
            raise UsageError(
                f"The reference fails on inputs of {sizes}, which the file accepts.",
                f"{type(error).__name__}: {error}",
                "Pass the module that the file was exported from.",
            ) from error

    def _exact(self, inputs: Tensors) -> Mapping[str, torch.Tensor]:
        found = self._true(inputs)
        return self._rounded(inputs) if found is None else found

    def _true(self, inputs: Tensors) -> Mapping[str, torch.Tensor] | None:
        """What the module gives in FP64; None if the user's code fixes a type."""
        doubled = [x.double() if x.is_floating_point() else x for x in inputs]
        if isinstance(self.module, CapsuleModel):
            return self._tensors(self.fp64, doubled)
        try:
            return self._to_fp64(self.fp64, doubled)
        except Exception:  # of the user's code: any kind
            return None

    def _to_fp64(self, module: nn.Module, inputs: Tensors) -> Mapping[str, torch.Tensor]:
        with default_fp64():
            return self._tensors(module, inputs)

    def _tensors(self, module: nn.Module, inputs: Tensors) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode():
            if not isinstance(module, CapsuleModel):
                with on_cpu():
                    return self._named(
                        named_outputs(_each(module, inputs, self.batch)), len(inputs[0])
                    )
            result = module(*inputs)
            tensors = {
                module.score_name: result.scores,
                "poses": result.poses,
                "couplings": result.couplings,
            }
            if "reconstruction" in self.outputs and module.decoder is not None:
                tensors["reconstruction"] = module.reconstruct(result.poses)
            if any(name.startswith(PREFIX) for name in self.outputs):
                tensors |= _trace(module, inputs[0])
            return tensors

    def _named(self, found: dict[str, torch.Tensor], images: int) -> Mapping[str, torch.Tensor]:
        """By the artefact's names, which may be the caller's; ``squeeze()`` at batch 1 undone."""
        made = self._chosen is not None and self._chosen.made_of and self._scores not in found
        own = [name for name in self.outputs if not made or name != self._scores]
        if not set(own) <= found.keys() and len(found) >= len(own):
            found = dict(zip(own, found.values(), strict=False))
        ranks = self.ranks or {}
        values = {
            name: v[None] if images == 1 and v.ndim == ranks.get(name, v.ndim) - 1 else v
            for name, v in found.items()
        }
        if made and self._chosen is not None and self._chosen.made_of in values:
            scored = AddedScores(0, self._chosen.classes, self._chosen.capsules)
            values[self._scores] = scored([values[self._chosen.made_of]])
        return values


def _largest_error(rounded: NDArray[Any], exact: NDArray[Any]) -> NDArray[np.float64]:
    error = np.abs(rounded.astype(np.float64) - exact).reshape(len(rounded), -1).max(axis=1)
    return np.asarray(error, np.float64).reshape(-1, *[1] * (rounded.ndim - 1))


def expected_of(module: nn.Module, outputs: Iterable[str]) -> list[str]:
    """The outputs of an artefact that a module has: a user's own has no trace, which the export compares."""
    if isinstance(module, CapsuleModel):
        return list(outputs)
    return [name for name in outputs if not name.startswith(PREFIX)]


def _each(module: nn.Module, inputs: Tensors, fixed: int | None) -> Any:
    """The module's output: in batches of the fixed number, the last filled up with images that come again.

    Without one, of one image after another where the code takes no more (a batch of 1 in it).
    """
    images, batch = len(inputs[0]), fixed or 1
    if fixed in (None, images):
        try:
            return module(*inputs)
        except Exception:  # of the user's code: any kind
            if images == batch:
                raise
    parts = [
        named_outputs(module(*(x[torch.arange(k, k + batch) % images] for x in inputs)))
        for k in range(0, images, batch)
    ]
    return {
        name: torch.cat([_with_axis(part[name], batch) for part in parts])[:images]
        for name in parts[0]
    }


def _with_axis(value: torch.Tensor, batch: int) -> torch.Tensor:
    """An output with the axis of a batch of 1 that ``squeeze()`` dropped."""
    return value[None] if batch == 1 and not (value.ndim and len(value) == 1) else value


def find_checkpoint(metadata: ModelMetadata | None) -> Path:
    """The checkpoint in the package that a file was exported from, according to its metadata.

    Raises:
        UsageError: the file names no checkpoint, or one that is not in the package.
    """
    declared = metadata.checkpoint_sha256 if metadata is not None else ""
    if declared:
        from capsedge.runtime.zoo import checkpoint_by_sha256

        if (path := checkpoint_by_sha256(declared)) is not None:
            return path
    if provenance_of(metadata) is Provenance.MODULE:
        raise UsageError(
            "There is no reference to compare with.",
            "The file was exported from your own network, whose code it does not contain.",
            "Pass the module that it was exported from.",
            command=f"Pass its code and weights: {reference_options(metadata)} (docs/how-to/your-model.md).",
        )
    why = f"It was exported from a checkpoint with the SHA-256 {declared}, which is not in the zoo."
    raise UsageError(
        "There is no reference to compare with.",
        why if declared else "The file does not record the checkpoint that it was exported from.",
        "Pass the checkpoint, or the module that the file was exported from.",
        command="Add --checkpoint CHECKPOINT."
        if provenance_of(metadata) is Provenance.CHECKPOINT
        else (
            f"For your own network, pass its code, {reference_options(None)} "
            "(docs/how-to/your-model.md); for a checkpoint, add --checkpoint CHECKPOINT."
        ),
    )


def check_origin(metadata: ModelMetadata | None, checkpoint: Path, checksum: str) -> None:
    """Refuse a checkpoint that the artefact was not exported from.

    Raises:
        ArtefactError: the file's metadata states another checksum.
    """
    declared = metadata.checkpoint_sha256 if metadata is not None else ""
    if declared and declared != checksum:
        own = provenance_of(metadata) is Provenance.MODULE
        options = reference_options(metadata).rpartition(" ")[0]
        again = f"capsedge export {options} {shlex.quote(str(checkpoint))}"
        raise ArtefactError(
            f"The file was not exported from {checkpoint}.",
            f"Its metadata names {'weights' if own else 'a checkpoint'} with the SHA-256 {declared}; "
            f"this file has {checksum}.",
            "Pass the right one, or export again with this one.",
            command=f"Pass the right one with {'--weights' if own else '--checkpoint'}, or export "
            f"again: {again}",
        )


def load_reference(checkpoint: Path, metadata: ModelMetadata | None) -> CapsuleModel:
    """The checkpoint's model, with as many routing iterations as the file was exported with.

    Raises:
        UsageError, ArtefactError: the checkpoint cannot be read.
    """
    from capsedge.models.checkpoint import load_checkpoint

    model = load_checkpoint(checkpoint)
    if metadata is None or metadata.iterations == model.config.iterations:
        return model
    return with_iterations(model, metadata.iterations)


def _trace(model: CapsuleModel, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The values of every routing iteration by the names that an export with a trace gives them."""
    traced = trace_routing(model, model, images)
    _, _, _, *values = traced(images)  # behind scores, poses and couplings
    return dict(zip(traced.outputs, values, strict=True))


# --- The peer of ``capsedge profile --compare torch`` ---


def checkpoint_of(session: Session, named: Path | None) -> Path:
    """The checkpoint of the model that a session runs.

    Args:
        named: the checkpoint given by the caller; None for the zoo's.

    Raises:
        UsageError: there is no such file, or none is named and the zoo has none.
        ArtefactError: the session's file was not exported from it.
    """
    if named is None:
        return find_checkpoint(session.metadata)
    if not named.is_file():
        raise UsageError(
            f"There is no checkpoint {named}.", "", "Check the name after --checkpoint."
        )
    check_origin(session.metadata, named, sha256(named))
    return named


def load_torch(s: Specification) -> tuple[Run, str]:
    """The checkpoint's model, unpatched, with as many routing iterations as the file has."""
    import torch

    from capsedge.runtime.onnx_file.structure import read_structure

    if s.threads:
        torch.set_num_threads(s.threads)
    structure = read_structure(s.model)
    metadata = ModelMetadata.from_properties(structure.metadata)
    names = [output.name for output in structure.graph.outputs]
    if s.module:
        spec = UserModuleSpec(**json.loads(s.module))
        own = load_user_module(spec, twice=False)
        own = own.ordered([given.name for given in structure.graph.inputs])
        reference = Reference(own.module, expected_of(own.module, names), metadata=metadata)
    else:
        reference = Reference(load_reference(Path(s.checkpoint), metadata), names)
    order = [given.name for given in structure.graph.inputs]
    return lambda feeds: reference.run(
        *(feeds[name] for name in order if name in feeds)
    ), f"torch {torch.__version__}, eager"


def check_torch(s: Specification) -> None:
    """Refuse weights that do not hold all tensors of the module.

    A process of its own builds the module twice, so that the times and the memory measured here are of one.

    Raises:
        CapsedgeError: the module's code fails, or the error names tensors.
    """
    if s.module:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            if problem := pool.submit(_unsaved, s).result():
                raise UnsupportedModelError(*problem)


def _unsaved(s: Specification) -> list[str]:
    """What is wrong with the module, why, and the fix; empty if nothing is."""
    import torch

    torch.set_num_threads(1)
    with np.load(s.inputs) as archive:
        inputs = {name: torch.from_numpy(archive[name][:_CHECKED]) for name in archive.files}
    try:
        own = load_user_module(UserModuleSpec(**json.loads(s.module))).ordered(list(inputs))
        own.check_saved(tuple(inputs.values()))
    except CapsedgeError as error:
        return [error.what, " ".join([error.why, *error.details]), error.fix]
    return []


if __name__ == "__main__":
    main({"torch": load_torch}, check_torch)
