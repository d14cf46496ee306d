"""Find the batches that a user's own module takes, and whether its results are repeatable."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.flat_module import Flat, named_outputs, repeated_to_batch, run_fp64, to_fp64
from capsedge.exporters.subject import watched
from capsedge.models.user.code import (
    Draws,
    first_message_line,
    is_user_code,
    line_of,
    lines_with,
    on_cpu,
    reductions_over_batch,
)

_LARGEST_FIXED, _TRIED = 512, 6  # batch sizes to try where code fixes the batch
_NUMBERS = re.compile(r"(?<![\w.])\d+(?![\w.])")
_ANY_BATCH = (
    "Check the shape of the example. If the code assumes a number of images, use x.size(0) instead, or "
    "fix the batch at that number with batch= (--batch)."
)
_FP64, _FP32 = 1e-9, 1e-4  # relative to the largest magnitude: what rounding in batches may change


class NoFreeBatch(UnsupportedModelError):
    """A module whose batch cannot be free.

    Args:
        batch: a fixed size that works, with every image independent of the others.
    """

    def __init__(
        self, what: str, why: str, fix: str, *, batch: int, details: Sequence[str] = ()
    ) -> None:
        self.batch = batch
        super().__init__(what, why, fix, details=details)

    @property
    def note(self) -> str:
        """One line with the fixed batch and its reason."""
        what = self.what[0].lower() + self.what[1:].rstrip(".")
        where = "; ".join((self.why.rstrip("."), *self.details[:1]))
        return f"the batch is fixed at {self.batch}: {what} ({where})"


def in_batches(
    module: nn.Module, tensors: tuple[Tensor, ...], batch: int | None
) -> tuple[Flat, tuple[str, ...]]:
    """The flattened module, and the names of its outputs; checked at the batch sizes that it must accept."""
    if batch is not None and batch > 1:
        result = _run(module, repeated_to_batch(tensors, batch), batch)
        _check_repeatable(module, tensors, batch)
        return Flat(module), tuple(result)
    failure: CapsedgeError | None = None
    several: dict[str, Tensor] | None = None
    try:
        several = _run(module, repeated_to_batch(tensors, 2), 2)
    except CapsedgeError as error:
        failure = error
    if several is None or batch == 1:
        try:
            alone = _run(module, repeated_to_batch(tensors, 1), 1)
        except CapsedgeError as error:
            if failure is None or batch is not None:
                raise
            raise _at_module_batch(module, tensors, failure) from error
        _check_repeatable(module, tensors, 1)
        ranks = [v.ndim for v in (alone if several is None else several).values()]
        return Flat(module, ranks, each=several is None and batch is None), tuple(alone)
    _check_repeatable(module, tensors, 2)
    _check_batch_axis(module, several)
    _check_alone(module, tensors, several)
    flat = Flat(module, [v.ndim for v in several.values()])
    _check_independent(flat, tensors, tuple(several))
    return flat, tuple(several)


def _at_module_batch(
    module: nn.Module, tensors: tuple[Tensor, ...], failure: CapsedgeError
) -> CapsedgeError:
    """The error for a module that fails at batches 1 and 2, with the batch at which it works, if any.

    The sizes tried are the rows of the example, values that the code calls a batch, and the numbers in the
    failing line.
    """
    named = _batch_sizes(module)
    written = (int(number) for line in failure.details for number in _NUMBERS.findall(line))
    sizes = dict.fromkeys((len(tensors[0]), *named.values(), *written))
    for batch in [k for k in sizes if 2 < k <= _LARGEST_FIXED][:_TRIED]:
        try:
            result = _run(module, repeated_to_batch(tensors, batch), batch)
        except CapsedgeError:
            continue
        if all(v.ndim and v.shape[0] == batch for v in result.values()):
            _check_repeatable(module, tensors, batch)
            _check_images_independent(module, tensors, tuple(result), batch)
            return NoFreeBatch(
                f"The module works only at batch {batch}.",
                failure.why,
                failure.fix,
                batch=batch,
                details=failure.details,
            )
    if not named:
        return failure
    return UnsupportedModelError(failure.what, failure.why, _ANY_BATCH, details=failure.details)


def _run(module: nn.Module, inputs: tuple[Tensor, ...], batch: int) -> dict[str, Tensor]:
    """The module's outputs.

    Raises:
        UnsupportedModelError: it fails; the error names the user's line.
    """
    try:
        with torch.no_grad(), on_cpu(), watched():
            result = module(*inputs)
        return named_outputs(result)
    except CapsedgeError:
        raise
    except (Exception, SystemExit) as error:  # any kind, from the user's code
        lines, fix = _fixed_batch(module, batch)
        lines = [line_of(error), *lines]
        raise UnsupportedModelError(
            f"The module fails on an example of {', '.join(str(list(t.shape)) for t in inputs)}.",
            f"{type(error).__name__}: {first_message_line(error)}",
            _without_one(module, inputs) or fix or _ANY_BATCH,
            details=[line for line in lines if line],
        ) from error


def _without_one(module: nn.Module, inputs: Sequence[Tensor]) -> str:
    """How to mend an example that states the batch, too; empty if it fails without the leading 1 as well."""
    if not all(t.shape[1:2] == (1,) for t in inputs):
        return ""
    shorter = [t[:, 0] for t in inputs]
    try:
        with torch.no_grad(), on_cpu():
            module(*shorter)
    except (Exception, SystemExit):  # any kind, from the user's code
        return ""
    runs = ", ".join(str(list(t.shape)) for t in shorter)
    return f"It runs on {runs}: leave the 1 out of the example. Shapes of --example have no batch axis."


def _check_repeatable(module: nn.Module, tensors: tuple[Tensor, ...], batch: int) -> None:
    """Refuse a module whose results are random, before any other check."""
    cases = repeated_to_batch(tensors, batch), _drawn(tensors, batch)
    check_repeatable(module, lambda inputs: _run(module, tuple(inputs), batch), cases)


def _drawn(tensors: Sequence[Tensor], batch: int, seed: int = 7) -> tuple[Tensor, ...]:
    """Uniform numbers of the shapes of the example; integer inputs repeat it."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.rand((batch, *t.shape[1:]), generator=generator).to(t.dtype)
        if t.dtype.is_floating_point
        else repeated_to_batch([t], batch)[0]
        for t in tensors
    )


def _fixed_batch(module: nn.Module, batch: int) -> tuple[list[str], str]:
    """The line that fixes another batch, and how to change it; empty if there is none."""
    fixed = next(((n, k) for n, k in _batch_sizes(module).items() if k != batch), None)
    if fixed is None:
        return [], ""
    name, size = fixed
    return lines_with(module, name), (
        f"Where the code says {name}, use x.size(0), the batch of the input, or fix the batch at "
        f"{size} with batch={size} (--batch {size})."
    )


def _batch_sizes(module: nn.Module) -> dict[str, int]:
    """Whole numbers that the module, or the file of its class, keeps under a name with "batch" in it."""
    found = {}
    for each in module.modules():
        code = sys.modules.get(type(each).__module__)
        places = [("self.", vars(each))]
        if code is not None and is_user_code(getattr(code, "__file__", None) or "<none>"):
            places.append(("", vars(code)))
        for prefix, values in places:
            for key, value in values.items():
                if "batch" in key.lower() and type(value) is int:
                    found[prefix + key] = value
    return found


def _check_batch_axis(module: nn.Module, outputs: Mapping[str, Tensor]) -> None:
    wrong = next((n for n, v in outputs.items() if v.ndim == 0 or v.shape[0] != 2), None)
    if wrong is not None:
        lines, fix = _fixed_batch(module, 2)
        raise UnsupportedModelError(
            f"The output '{wrong}' does not begin with the batch.",
            f"For two images, its shape is {list(outputs[wrong].shape)}.",
            fix
            or (
                "Return one row for each image (the batch first), drop the output, or fix the "
                "batch with batch=1 (--batch 1)."
            ),
            details=lines,
        )


# torch's message for a batch norm in training mode and a batch of one.
_BATCH_STATISTICS = "Expected more than 1 value per channel when training"


def _check_alone(
    module: nn.Module, tensors: tuple[Tensor, ...], several: Mapping[str, Tensor]
) -> None:
    """Refuse a free batch if the module treats a single image differently from several.

    Raises:
        NoFreeBatch: it fails, or its outputs have other shapes, except for a batch axis dropped at the end.
        UnsupportedModelError: the same, and images depend on each other.
    """
    fix = "Change that line, or fix a batch that the module supports, with batch=2 (--batch 2)."
    squeezes = lines_with(module, ".squeeze()") or lines_with(module, "torch.squeeze(")
    if squeezes:
        fix = "Give squeeze() the axis, squeeze(-1), so that the batch axis stays when there is one image."
    try:
        alone = _run(module, repeated_to_batch(tensors, 1), 1)
    except UnsupportedModelError as error:
        if _BATCH_STATISTICS in error.why:
            raise UnsupportedModelError(
                "A batch norm of the module is in training mode.",
                f"It takes mean and deviation from the batch, which one image does not have: {error.why}",
                "Create it in __init__, so that model.eval() switches it to evaluation mode; "
                "F.batch_norm takes training=self.training.",
                details=error.details,
            ) from error
        why, details = error.why, [*error.details, *squeezes]
    else:
        shapes = {name: alone[name].shape if name in alone else None for name in several}
        wrong = [n for n, v in several.items() if shapes[n] not in ((1, *v.shape[1:]), v.shape[1:])]
        if not wrong:
            return
        name, details = wrong[0], squeezes
        found = "none" if shapes[name] is None else str(list(alone[name].shape))
        why = f"Output '{name}' has the shape {list(several[name].shape)} for two images and {found} for one."
    _check_images_independent(module, tensors, tuple(several), 2)
    raise NoFreeBatch(
        "The module works at batch 2 but not at batch 1.",
        why,
        fix,
        batch=2,
        details=list(dict.fromkeys(details)),
    )


def _check_independent(flat: Flat, tensors: tuple[Tensor, ...], names: tuple[str, ...]) -> None:
    """Refuse a module in which the result for an image depends on the others in its batch.

    Raises:
        UnsupportedModelError: it does; the error names a line that reduces over the batch.
    """
    batch = _drawn(tensors, 3)
    together, alone, exact = _both(flat, batch, tuple(t[:1] for t in batch))
    for name, many, one in zip(names, together, alone, strict=True):
        off = _differing(many[:1], one, exact)
        if off is not None:
            raise _dependent(
                flat,
                tensors,
                7,
                f"Output '{name}' of one image differs by {off:.3g} when two other images are in its batch",
                "Use batch=1 (--batch 1), so that each image is computed by itself",
            )


def _check_images_independent(
    module: nn.Module, tensors: tuple[Tensor, ...], names: tuple[str, ...], batch: int
) -> None:
    """The same for a module that cannot take a single image: half of the batch is replaced by other images.

    Raises:
        UnsupportedModelError: the results for the other half change.
    """
    flat, kept = Flat(module), (batch + 1) // 2
    one, other = _drawn(tensors, batch), _drawn(tensors, batch, seed=8)
    mixed = tuple(torch.cat([a[:kept], b[kept:]]) for a, b in zip(one, other, strict=True))
    before, after, exact = _both(flat, one, mixed)
    for name, a, b in zip(names, before, after, strict=True):
        off = _differing(a[:kept], b[:kept], exact)
        if off is not None:
            raise _dependent(
                flat,
                tensors,
                batch,
                f"Output '{name}' of an image differs by {off:.3g} when other images of its batch "
                "are exchanged",
                f"Fix the batch with batch={batch} (--batch {batch})",
            )


def _differing(actual: Tensor, expected: Tensor, exact: bool) -> float | None:
    """The difference between results that should be equal, beyond rounding; None if they are equal."""
    a, b = actual.double(), expected.double()
    if a.shape != b.shape or not b.numel() or not torch.isfinite(b).all():
        return None
    off = (a - b).abs().max()
    return float(off) if off > (_FP64 if exact else _FP32) * b.abs().max() + 1e-12 else None


def _dependent(
    flat: Flat, tensors: tuple[Tensor, ...], batch: int, why: str, way_out: str
) -> UnsupportedModelError:
    """The error for images that depend on each other."""
    with reductions_over_batch(batch) as lines, torch.no_grad():
        flat(*repeated_to_batch(tensors, batch))
    return UnsupportedModelError(
        "The result for an image depends on the other images of its batch, so the batch cannot be free.",
        f"{why}: the cause is routing that averages agreements over the batch, BatchNorm in "
        "training mode, or something similar.",
        f"{way_out}, or remove what mixes the images (an average over axis 0, .train() in forward) "
        "and train again.",
        details=lines[:1],
    )


def _both(
    flat: Flat, one: tuple[Tensor, ...], other: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], bool]:
    """Outputs of two batches, in FP64 where the code allows it."""
    with torch.no_grad():
        try:
            exact = to_fp64(flat)
            return run_fp64(exact, one), run_fp64(exact, other), True
        except Exception:  # code that fixes a type
            return flat(*one), flat(*other), False


Outputs = Mapping[str, Tensor]
Run = Callable[[Sequence[Tensor]], Outputs]

_ROUNDING = 1e-4  # relative to the largest magnitude: differences that thread order alone can cause
_REDRAWN = 3  # runs with other random numbers
_LINES = 3
_ELSEWHERE = ("np.random", "numpy.random", "random.", "default_rng", "self.rng", "urandom", "time.")
_KEEP = (
    "Draw the numbers once, in __init__, and keep them: self.register_buffer('b', "
    "torch.randn(...)); or make them an input of forward; or start from a constant such as "
    "torch.zeros(...)."
)
_DROPOUT = (
    "Draw only during training: F.dropout(x, p, training=self.training), or nn.Dropout, which "
    "model.eval() switches off unless forward calls .train()."
)
_GUMBEL = "Draw only during training: if self.training: F.gumbel_softmax(...), else softmax(logits / tau)."


def check_repeatable(module: nn.Module, run: Run, cases: Iterable[Sequence[Tensor]]) -> None:
    """Refuse a module whose result is not a function of its input.

    PyTorch's random operations are recognized by their tag, whoever calls them, so numbers from a generator
    that the code seeds are found as well. They are replaced by others, and the result must not change.

    Args:
        module: in the mode in which it is used; its classes and state explain the error.
        run: gives its outputs by name.
        cases: inputs of it.

    Raises:
        UnsupportedModelError: it draws random numbers, or keeps state between runs; the error names the
            user's line.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for inputs in cases:
            before = {name: t.clone() for name, t in module.state_dict().items()}
            with Draws() as draws:
                first = _kept(run(_copies(inputs)))
            second = _kept(run(_copies(inputs)))
            off = _difference(first, second)
            if off is not None and (draws.lines or draws.names or off[1] > _ROUNDING):
                raise _unrepeatable(module, draws, off, before)
            for stream in range(_REDRAWN if draws.names else 0):
                with Draws(stream):
                    other = _kept(run(_copies(inputs)))
                off = _difference(first, other)
                if off is not None:
                    raise _seeded(module, draws, off)


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the inputs, since a module may write into them."""
    return [x.clone() for x in inputs]


def _kept(outputs: Outputs) -> dict[str, Tensor]:
    """Copies of outputs, since a module may return tensors that it changes in the next run."""
    return {name: t.detach().clone() for name, t in outputs.items()}


def _difference(first: Outputs, second: Outputs) -> tuple[str, float, float, float] | None:
    """The output that differs most: its name, relative difference, difference and largest magnitude."""
    found = []
    for name, a in first.items():
        b = second.get(name)
        if b is None or a.shape != b.shape:
            return name, float("inf"), float("inf"), 0.0
        x, y = (t.nan_to_num().double() for t in (a, b))
        if x.numel() and not torch.equal(x, y):
            off, size = float((x - y).abs().max()), float(x.abs().max())
            found.append((name, off / max(size, 1e-30), off, size))
    return max(found, key=lambda each: each[1], default=None)


def _unrepeatable(
    module: nn.Module,
    draws: Draws,
    off: tuple[str, float, float, float],
    before: Mapping[str, Tensor],
) -> UnsupportedModelError:
    """The error for two runs that differ."""
    name, _, difference, size = off
    why = f"Output '{name}' differs by {difference:.3g} between two runs (its largest value is {size:.3g})."
    if draws.names:
        what = (
            "The module draws random numbers: two runs on the same input differ, so a file cannot "
            "be compared with it."
        )
        return UnsupportedModelError(what, why, _advice(module, draws), details=_called(draws))
    after = module.state_dict()
    changed = [n for n, t in before.items() if n in after and not torch.equal(t, after[n])]
    if changed:
        why += f" Each run changes the buffer '{changed[0]}'."
    elsewhere = () if changed else _ELSEWHERE
    lines = next((found for words in elsewhere if (found := lines_with(module, words))), [])
    return UnsupportedModelError(
        "Two runs of the module on the same input differ, so a file cannot be compared with it.",
        why,
        _KEEP
        if not changed
        else "Let forward change its state only during training (if self.training: ...).",
        details=lines,
    )


def _seeded(
    module: nn.Module, draws: Draws, off: tuple[str, float, float, float]
) -> UnsupportedModelError:
    """The error for numbers that are the same in each run because the code seeds their generator."""
    name, _, difference, size = off
    return UnsupportedModelError(
        "The module draws random numbers, which a file cannot reproduce: it has no PyTorch generator.",
        "Two runs agree only because the code seeds the generator; with other numbers, output "
        f"'{name}' differs by {difference:.3g} (its largest value is {size:.3g}).",
        _advice(module, draws),
        details=_called(draws),
    )


def _called(draws: Draws) -> list[str]:
    """The user's lines that draw; the operations if no line is known."""
    return draws.lines[:_LINES] or [f"It calls {', '.join(dict.fromkeys(draws.names))}."]


def _advice(module: nn.Module, draws: Draws) -> str:
    code = " ".join(draws.lines).lower()
    if "gumbel" in code:
        return _GUMBEL
    left_on = any(isinstance(m, _DropoutNd) and m.training and m.p for m in module.modules())
    return _DROPOUT if left_on or "drop" in code else _KEEP
