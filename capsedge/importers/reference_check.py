"""Compare an imported network with its author's own code, on the same inputs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.exporters.user_batch import check_repeatable
from capsedge.models import CapsuleModel
from capsedge.models.stems import SAMPLE
from capsedge.models.user.code import first_message_line, on_cpu
from capsedge.models.user.module import UserModuleSpec, load_user_module
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.progress import Progress, silent
from capsedge.spec.vocabularies import REGRESSION
from capsedge.verification.sample_inputs import Floats, generated, hard_cases, prepared

# --- Inputs ---

RANDOM = 512  # images of noise
STROKES = 512
BATCH = 32


@dataclass(frozen=True)
class InputBlock:
    """Inputs of a reference check that are in memory at the same time.

    Attributes:
        names: names of the inputs, for display.
        inputs: ``[n, C, H, W]``, prepared; n is at most `BATCH`.
    """

    names: tuple[str, ...]
    inputs: Floats


@dataclass(frozen=True)
class ReferenceInputs:
    """Inputs of a reference check, in blocks: noise, strokes, hard cases, and the user's images.

    Attributes:
        preprocessing: preprocessing of the network.
        images: the user's, if any.
    """

    preprocessing: Preprocessing
    images: ImageSet | None = None

    def __len__(self) -> int:
        hard = len(hard_cases(self._shape, self.preprocessing))
        return RANDOM + STROKES + hard + (0 if self.images is None else len(self.images))

    def __iter__(self) -> Iterator[InputBlock]:
        """The blocks, the same on every call."""
        prep = self.preprocessing
        yield from _numbered("noise", (self._noise(n, k) for k, n in _sizes(RANDOM)))
        strokes = (generated(self._shape, prep, n, seed=2017 + k) for k, n in _sizes(STROKES))
        yield from _numbered("strokes", strokes)
        hard = hard_cases(self._shape, prep)
        yield InputBlock(hard.names, np.stack(list(hard.inputs())))
        if self.images is not None:
            yield from _numbered("image", self.images.batches(BATCH))

    @property
    def _shape(self) -> tuple[int, int, int]:
        prep = self.preprocessing
        return prep.channels, prep.height, prep.width

    def _noise(self, number: int, block: int) -> Floats:
        prep = self.preprocessing
        noise = np.random.default_rng(2020 + block).random((number, *self._shape))
        return prepared(noise, prep)


def _sizes(total: int) -> Iterator[tuple[int, int]]:
    """Number and size of the blocks for this many inputs."""
    for k in range(-(-total // BATCH)):
        yield k, min(BATCH, total - k * BATCH)


def _numbered(name: str, blocks: Iterator[Floats]) -> Iterator[InputBlock]:
    numbers = count()
    for block in blocks:
        yield InputBlock(tuple(f"{name} {next(numbers)}" for _ in block), block)


def batches(inputs: NDArray[np.float32], size: int) -> Sequence[Tensor]:
    """Batches of a size, never of one image unless the size is 1: public code squeezes that axis away."""
    tensor = torch.from_numpy(inputs)
    if size == 1:
        return torch.split(tensor, 1)
    several = tensor if len(tensor) > 1 else tensor.repeat(2, 1, 1, 1)
    return torch.tensor_split(several, -(-len(several) // size))


# --- The comparison ---

TOLERANCE = 1e-5  # relative to the largest value
FP64_TOLERANCE = 1e-9  # the same in FP64, used if FP32 differs by more
NAMED = 5  # inputs with NaN
_FEW = 8


@dataclass(frozen=True)
class ReferenceCheck:
    """The result of a comparison.

    Attributes:
        code, code_sha256: code and SHA-256 of the author's module.
        output: what was compared, ``poses`` or ``scores``.
        inputs: their number.
        largest_difference: relative to the largest value, in FP32.
        rounding: inputs that differ by more than the tolerance in FP32, but not in FP64.
        flips: changed decisions for which the author's margin exceeds the tolerance.
        least_margin: of the author's decisions, between the best class and the next, relative to the largest
            score; None for a regression, which decides nothing.
        narrow: the author's decisions with a margin below the tolerance, which rounding may change.
        narrow_flips: how many of these changed.
        nan: inputs on which the author's code gives NaN; they are not compared.
        nan_on: some of them.
        nan_in_code_only: on how many of them the imported network gives numbers.
        batch: number of images run at once.
        passed: whether both compute the same function.
        fixed: what was made deterministic in the author's code.
        unchecked: why it is not known whether the weights file holds all of the code's tensors, if it is not.
    """

    code: str
    code_sha256: str
    output: str
    inputs: int
    largest_difference: float
    rounding: int
    flips: int
    least_margin: float | None
    narrow: int
    narrow_flips: int
    nan: int
    nan_on: str
    nan_in_code_only: int
    batch: int
    passed: bool
    fixed: str = ""
    unchecked: str = ""

    def facts(self) -> list[tuple[str, str]]:
        """Rows of an `ImportReport`."""
        facts = f"{self.inputs} inputs with {self.code}: largest difference {self.largest_difference:.2g}"
        rows = [("compared", f"{facts}, {self.flips} flips, NaN of the author's code {self.nan}")]
        if self.least_margin is not None:
            narrow = (
                f"{self.narrow} below the tolerance, of which {self.narrow_flips} decide otherwise"
            )
            rows.append(
                ("margins", f"the smallest {self.least_margin:.2g} of the largest score; {narrow}")
            )
        if self.fixed:
            rows.append(("fixed", f"in the author's code: {self.fixed}"))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)


@dataclass(frozen=True)
class _BothOutputs:
    """The results of both for all inputs ``[N, ...]``, and the names of the inputs."""

    output: str
    ours: NDArray[Any]
    theirs: NDArray[Any]
    names: tuple[str, ...]

    @property
    def known(self) -> NDArray[np.bool_]:
        """On which inputs the author's code gives numbers ``[N]``."""
        return _finite(self.theirs)

    @property
    def scale(self) -> float:
        """The largest value of the author's results."""
        return float(np.abs(self.theirs[self.known]).max(initial=0.0)) or 1.0


def compare_with_author_code(
    model: CapsuleModel,
    code: str,
    weights: Path | None,
    images: ImageSet | None = None,
    progress: Progress = silent,
) -> ReferenceCheck:
    """Run both on noise, strokes, hard cases and the given images.

    Args:
        code: ``author.py:build``, a class or a function that returns the author's module.
        weights: the file to load into it; None if the code reads its own.
    """
    theirs = load_user_module(UserModuleSpec(code, str(weights or "")))
    fixed = _fixed(theirs.module)
    inputs = ReferenceInputs(model.config.preprocessing, images)
    _check_repeatable(theirs.module, inputs, model.config.fixed_batch or BATCH)
    first = batches(next(iter(inputs)).inputs, model.config.fixed_batch or BATCH)[0]
    unchecked = theirs.check_saved([first])
    batch = model.config.fixed_batch or BATCH
    differences = _differences(model.eval(), theirs.module, inputs, batch, progress)
    facts = theirs.facts()
    return ReferenceCheck(
        str(facts["code"]),
        str(facts["code_sha256"]),
        batch=batch,
        fixed=fixed,
        unchecked="; ".join(unchecked),
        **differences,
    )


def _check_repeatable(module: nn.Module, inputs: ReferenceInputs, batch: int) -> None:
    """Refuse code whose results are random."""

    def run(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        with on_cpu():
            return {str(k): t for k, t in enumerate(_tensors(module(*tensors)))}

    first = batches(next(iter(inputs)).inputs, batch)[0]
    with contextlib.suppress(
        RuntimeError, TypeError, ValueError
    ):  # `_both` reports it with its line
        check_repeatable(module, run, [[first]])


def _fixed(module: nn.Module) -> str:
    """Fix the windows of fractional max pooling, which PyTorch draws anew at every call."""
    pools = [m for m in module.modules() if isinstance(m, nn.FractionalMaxPool2d)]
    for pool in pools:
        pool.register_forward_pre_hook(_sampled)
    return f"windows of fractional max pooling: {SAMPLE[0]}/{SAMPLE[1]}" if pools else ""


def _sampled(pool: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    pool._random_samples = inputs[0].new_full((*inputs[0].shape[:2], 2), SAMPLE[0] / SAMPLE[1])


def _differences(
    ours: CapsuleModel, theirs: nn.Module, inputs: ReferenceInputs, batch: int, progress: Progress
) -> dict[str, Any]:
    answers = _run_both(ours, theirs, inputs, batch, progress)
    known, scale = answers.known, answers.scale
    apart = np.abs(answers.ours.astype(np.float64) - answers.theirs)
    apart = apart.reshape(len(apart), -1).max(1) / scale
    apart = np.where(np.isnan(apart), np.inf, apart)  # NaN of ours where theirs has a number
    wide = np.flatnonzero(known & (apart > TOLERANCE))
    same = all(
        _same_in_fp64(ours, theirs, _chosen(inputs, some), batch, scale)
        for some in (
            wide[:_FEW],
            wide[_FEW:],
        )  # the first few suffice to recognize a different function
        if len(some)
    )
    judged = known.copy()
    judged[wide] = not same  # differences that FP32 rounding explains do not count
    decided = _decisions(answers, judged, ours.config.task == REGRESSION)
    silent = np.flatnonzero(~known)
    return {
        "output": answers.output,
        "inputs": len(answers.names),
        "largest_difference": float(apart[judged].max(initial=0.0)),
        "rounding": len(wide) if same else 0,
        **decided,
        "nan": len(silent),
        "nan_on": ", ".join(answers.names[k] for k in silent[:NAMED]),
        "nan_in_code_only": int(_finite(answers.ours)[silent].sum()),
        "passed": bool(same and decided["flips"] == 0 and judged.any()),
    }


def _decisions(choices: _BothOutputs, compared: NDArray[np.bool_], values: bool) -> dict[str, Any]:
    """Count flips and margins, which a regression does not have."""
    first, second = (_scores(a[compared], choices.output) for a in (choices.ours, choices.theirs))
    if values or second.shape[1] < 2 or not len(second):
        return {"flips": 0, "least_margin": None, "narrow": 0, "narrow_flips": 0}
    ordered = np.sort(second, 1)
    margins = (ordered[:, -1] - ordered[:, -2]) / (float(np.abs(second).max()) or 1.0)
    turned, narrow = first.argmax(1) != second.argmax(1), margins < TOLERANCE
    return {
        "flips": int((turned & ~narrow).sum()),
        "least_margin": float(margins.min()),
        "narrow": int(narrow.sum()),
        "narrow_flips": int((turned & narrow).sum()),
    }


def _chosen(inputs: ReferenceInputs, indices: NDArray[np.intp]) -> Iterator[InputBlock]:
    """Some of the inputs, block by block."""
    first = 0
    for block in inputs:
        here = indices[(indices >= first) & (indices < first + len(block.names))] - first
        first += len(block.names)
        if len(here):
            yield InputBlock(tuple(block.names[k] for k in here), block.inputs[here])


def _same_in_fp64(
    ours: CapsuleModel, theirs: nn.Module, blocks: Iterator[InputBlock], batch: int, scale: float
) -> bool:
    """Whether the two agree in FP64, so that they differ only by FP32 rounding."""
    default = torch.get_default_dtype()
    mine, doubled = copy.deepcopy(ours).double(), copy.deepcopy(theirs).double()
    try:
        torch.set_default_dtype(torch.float64)  # of the constants that the author's code creates
        for block in blocks:
            _, a, b = _both(mine, doubled, block, batch, torch.float64)
            finite = np.isfinite(b)
            if not np.abs(a[finite] - b[finite]).max(initial=0.0) <= FP64_TOLERANCE * scale:
                return False
    except (RuntimeError, UsageError):  # code that mixes types cannot run in FP64
        return False
    finally:
        torch.set_default_dtype(default)
    return True


def _run_both(
    ours: CapsuleModel, theirs: nn.Module, inputs: ReferenceInputs, batch: int, progress: Progress
) -> _BothOutputs:
    total = len(inputs)
    kinds, a, b = [], [], []
    names: list[str] = []
    for block in inputs:
        kind, mine, other = _both(ours, theirs, block, batch, torch.float32)
        kinds.append(kind)
        a.append(mine)
        b.append(other)
        names += block.names
        progress("comparing", len(names), total)
    return _BothOutputs(kinds[0], np.concatenate(a), np.concatenate(b), tuple(names))


def _both(
    ours: CapsuleModel, theirs: nn.Module, block: InputBlock, batch: int, dtype: torch.dtype
) -> tuple[str, NDArray[Any], NDArray[Any]]:
    """The output that both networks have, and its values from each."""
    a, b, kind = [], [], ""
    with torch.no_grad():
        for part in batches(block.inputs, batch):
            result = ours(part.to(dtype))
            try:
                with on_cpu():
                    answer = theirs(part.to(dtype))
            except Exception as error:  # the user's code, of any kind
                raise UsageError(
                    "The author's code fails on images.",
                    f"{type(error).__name__}: {first_message_line(error)}",
                    "Pass --reference-code a function whose module takes only images.",
                ) from error
            shapes = {"poses": tuple(result.poses.shape), "scores": tuple(result.scores.shape)}
            kind, value = matching_output(answer, shapes)
            a.append((result.poses if kind == "poses" else result.scores).numpy())
            b.append(value.numpy())
    number = len(block.names)
    return kind, np.concatenate(a)[:number], np.concatenate(b)[:number]


def matching_output(outputs: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, Tensor]:
    """The poses ``[N, J, P]`` among the outputs, or else the scores or values ``[N, J]``."""
    tensors = list(_tensors(outputs))
    for name, wanted in shapes.items():
        for tensor in tensors:
            ones = (1,) * (tensor.ndim - len(wanted))
            if tuple(tensor.shape) == (*wanted, *ones):
                return name, tensor.reshape(wanted)
    listed = " or ".join(str(list(wanted)) for wanted in shapes.values())
    raise UsageError(
        "The author's code returns neither poses nor scores.",
        f"Expected {listed}, found {[list(t.shape) for t in tensors]}.",
        "Pass --reference-code a function whose module returns one of them.",
    )


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs.detach()
    elif isinstance(outputs, dict):
        for value in outputs.values():
            yield from _tensors(value)
    elif isinstance(outputs, (tuple, list)):
        for value in outputs:
            yield from _tensors(value)


def _scores(values: NDArray[Any], output: str) -> NDArray[Any]:
    return np.linalg.norm(values, axis=-1) if output == "poses" else values


def _finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows ``[N]`` have no NaN and no infinity."""
    return np.asarray(np.isfinite(values).reshape(len(values), -1).all(1))
