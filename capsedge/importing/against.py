"""An imported network beside its author's own code, on the same inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.exporters.user_code import first_line
from capsedge.models import CapsuleModel
from capsedge.models.stems import SAMPLE
from capsedge.pipelines.own_module import ModuleSource, load_module
from capsedge.runtime.metadata import REGRESSION
from capsedge.verification.inputs import generated, hard_cases

TOLERANCE = 1e-5  # of the largest value
DOUBLE = 1e-9  # the same in FP64, where FP32 differs by more
RANDOM = 256  # images of noise
STROKES = 256
_BATCH = 32
_FEW = 8


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        code, code_sha256: of the author's module.
        output: what was compared, ``poses`` or ``scores``.
        inputs: how many.
        largest_difference: relative to the largest value, in FP32.
        rounding: inputs that differ by more than the tolerance in FP32, and not in FP64.
        flips: other decisions.
        least_margin: of the author's decisions, between the best class and the next.
        nan: inputs on which the author's code gives NaN.
        batch: how many at once.
        passed: whether both are the same function.
        fixed: what was fixed in the author's code, which without that is no function of its input.
    """

    code: str
    code_sha256: str
    output: str
    inputs: int
    largest_difference: float
    rounding: int
    flips: int
    least_margin: float
    nan: int
    batch: int
    passed: bool
    fixed: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)


def compare(
    model: CapsuleModel, code: str, weights: Path | None, images: NDArray[np.float32] | None = None
) -> Comparison:
    """Run both on noise, strokes, hard cases and the images given.

    Args:
        code: ``author.py:build``, a class or a function that returns the author's module.
        weights: the file, whose weights it is given; None where the code reads its own.

    Raises:
        UsageError: the code fails, takes other weights, or returns neither poses nor scores.
    """
    theirs = load_module(ModuleSource(code, str(weights or "")))
    fixed = _fixed(theirs.module)
    inputs = torch.from_numpy(_inputs(model, images))
    batch = model.config.fixed_batch or _BATCH
    found = _differences(model.eval(), theirs.module, inputs, batch)
    facts = theirs.facts()
    return Comparison(
        str(facts["code"]), str(facts["code_sha256"]), batch=batch, fixed=fixed, **found
    )


def _fixed(module: nn.Module) -> str:
    """Fix the windows of fractional max pooling, which PyTorch draws anew at every call; what was fixed."""
    pools = [m for m in module.modules() if isinstance(m, nn.FractionalMaxPool2d)]
    for pool in pools:
        pool.register_forward_pre_hook(_sampled)
    return f"windows of fractional max pooling: {SAMPLE[0]}/{SAMPLE[1]}" if pools else ""


def _sampled(pool: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    pool._random_samples = inputs[0].new_full((*inputs[0].shape[:2], 2), SAMPLE[0] / SAMPLE[1])


def _inputs(model: CapsuleModel, images: NDArray[np.float32] | None) -> NDArray[np.float32]:
    prep = model.config.preprocessing
    shape = (prep.channels, prep.height, prep.width)
    noise = np.random.default_rng(2020).random((RANDOM, *shape))
    mean, std = (np.reshape(v, (-1, 1, 1)) for v in (prep.mean, prep.std))
    parts = [
        np.asarray((noise * 255 * prep.scale - mean) / std, np.float32),
        generated(shape, prep, STROKES),
        hard_cases(shape, prep).images,
    ]
    return np.concatenate(parts + ([] if images is None else [images]))


def _differences(
    ours: CapsuleModel, theirs: nn.Module, inputs: Tensor, batch: int
) -> dict[str, Any]:
    output, a, b = _both(ours, theirs, inputs, batch)
    nan = ~np.isfinite(b).reshape(len(b), -1).all(1)
    finite = ~nan
    scale = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
    apart = np.abs(a.astype(np.float64) - b).reshape(len(b), -1).max(1) / scale
    apart = np.where(np.isnan(apart), np.inf, apart)  # NaN of ours where theirs has a number
    wide = np.flatnonzero(finite & (apart > TOLERANCE))
    same = all(
        _same_in_double(ours, theirs, inputs[some], batch, scale)
        for some in (wide[:_FEW], wide[_FEW:])  # the first few tell another function apart
        if len(some)
    )
    judged = finite.copy()
    judged[wide] = not same  # what FP32 rounding explains is not judged
    first, second = _scores(a, output)[judged], _scores(b, output)[judged]
    ordered = np.sort(second, 1)
    margins = ordered[:, -1] - ordered[:, -2] if ordered.shape[1] > 1 else np.ones(len(ordered))
    flips = int((first.argmax(1) != second.argmax(1)).sum())
    if ours.config.task == REGRESSION:  # values are no decision
        flips, margins = 0, margins[:0]
    return {
        "output": output,
        "inputs": len(inputs),
        "largest_difference": float(apart[judged].max(initial=0.0)),
        "rounding": len(wide) if same else 0,
        "flips": flips,
        "least_margin": float(margins.min()) if len(margins) else 0.0,
        "nan": int(nan.sum()),
        "passed": bool(same and flips == 0 and judged.any()),
    }


def _same_in_double(
    ours: CapsuleModel, theirs: nn.Module, inputs: Tensor, batch: int, scale: float
) -> bool:
    """Whether the two agree in FP64: then FP32 rounding alone sets them apart."""
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # of the constants that the author's code makes
        doubled = copy.deepcopy(theirs).double()
        _, a, b = _both(copy.deepcopy(ours).double(), doubled, inputs.double(), batch)
    except (RuntimeError, UsageError):  # code that mixes types cannot run in FP64
        return False
    finally:
        torch.set_default_dtype(default)
    finite = np.isfinite(b)
    return bool(np.abs(a[finite] - b[finite]).max(initial=0.0) <= DOUBLE * scale)


def _both(
    ours: CapsuleModel, theirs: nn.Module, inputs: Tensor, batch: int
) -> tuple[str, NDArray[Any], NDArray[Any]]:
    """The output that both have, and its values of both."""
    a, b, kind = [], [], ""
    with torch.no_grad():
        for part in _parts(inputs, batch):
            result = ours(part)
            try:
                answer = theirs(part)
            except Exception as error:  # the user's code, of any kind
                raise UsageError(
                    "The author's code fails on images.",
                    f"{type(error).__name__}: {first_line(error)}",
                    "Give --against a function whose module takes images alone.",
                ) from error
            shapes = {"poses": tuple(result.poses.shape), "scores": tuple(result.scores.shape)}
            kind, value = _matching(answer, shapes)
            a.append((result.poses if kind == "poses" else result.scores).numpy())
            b.append(value.numpy())
    return kind, np.concatenate(a), np.concatenate(b)


def _parts(inputs: Tensor, batch: int) -> Sequence[Tensor]:
    """Batches; never of one image where the batch is free, since public code squeezes that axis away."""
    if batch == 1:
        return torch.split(inputs, 1)
    several = inputs if len(inputs) > 1 else inputs.repeat(2, 1, 1, 1)
    return torch.tensor_split(several, -(-len(several) // batch))


def _matching(answer: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, Tensor]:
    """The poses ``[N, J, P]`` among the outputs, else the scores or values ``[N, J]``.

    Raises:
        UsageError: neither is there.
    """
    tensors = list(_tensors(answer))
    for name, wanted in shapes.items():
        for tensor in tensors:
            ones = (1,) * (tensor.ndim - len(wanted))
            if tuple(tensor.shape) == (*wanted, *ones):
                return name, tensor.reshape(wanted)
    listed = " or ".join(str(list(wanted)) for wanted in shapes.values())
    raise UsageError(
        "The author's code returns neither poses nor scores.",
        f"Wanted {listed}, found {[list(t.shape) for t in tensors]}.",
        "Give --against a function whose module returns one of them.",
    )


def _tensors(answer: Any) -> Iterator[Tensor]:
    if isinstance(answer, Tensor):
        yield answer.detach()
    elif isinstance(answer, dict):
        for value in answer.values():
            yield from _tensors(value)
    elif isinstance(answer, (tuple, list)):
        for value in answer:
            yield from _tensors(value)


def _scores(values: NDArray[Any], output: str) -> NDArray[Any]:
    return np.linalg.norm(values, axis=-1) if output == "poses" else values
