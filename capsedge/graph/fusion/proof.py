"""Compare a whole new file with the original and drop the operator that causes a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from capsedge.errors import UnsupportedModelError
from capsedge.graph.cleanup import fold
from capsedge.graph.functions import attach_functions
from capsedge.graph.fusion.edit import store_halves
from capsedge.graph.fusion.execution import one_line_message, session_of, session_options
from capsedge.graph.fusion.matrix_products import write_matrix_products
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.ir import copy_of
from capsedge.graph.portable import merge_views
from capsedge.graph.rewrites import replace_layer_norms, write_exact_sigmoids
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.tolerance import MAX_GROWTH, NOISE_FACTOR, Tolerance, excess

if TYPE_CHECKING:
    import onnxruntime


# --- The comparison with the original bytes, before anything is written ---

TOLERANCE = Tolerance(1e-5, 1e-4)
NOWHERE = "any"  # the case of an output that is never finite
ROUNDED = 2.0  # allowance, because only two roundings are drawn and others may have a larger effect
_BATCHES = (1, 3)
FREED = (1, 2, 3, 7)  # batch sizes to compare at if the batch was freed
_ROUNDING = 2.0**-24
_HALF_DIGIT = 2.0**-10  # one unit in FP16's last place, relative
# What may be added in FP16: 2^7 of its roundings, 2^-11. Sums are in FP32, and its exponentials end at 11.
_MOST_HALF = 2.0**-4


@dataclass(frozen=True)
class Comparison:
    """One output of a new file compared with the original's, on one input.

    Attributes:
        case, output: names of the input and of the output.
        difference: largest absolute difference.
        excess: the largest share of what is allowed (``tolerance.excess``), the noise being what
            rounding the input does to the original, times ``ROUNDED``; infinite if the two cannot be
            compared.
    """

    case: str
    output: str
    difference: float
    excess: float


class Original:
    """The original file, for any number of images.

    Args:
        data: its bytes.

    Attributes:
        batch: its fixed number of images; 0 if free.
        truth: for an FP16 file, the same file in FP32, with which both are compared.
        refused: the inputs on which it does not run, with ONNX Runtime's messages.

    A file with a fixed batch is run as often as needed, each image once, among images from other inputs. This
    exposes functions in which images depend on each other.
    """

    def __init__(self, data: bytes, batch: int = 0) -> None:
        self.session = _session(data)
        self.truth: Original | None = None
        self.refused: dict[str, str] = {}
        self.names = [o.name for o in self.session.get_outputs()]
        self.batch = batch

    def run(self, feeds: dict[str, Array]) -> list[Array]:
        """All outputs."""
        images = len(next(iter(feeds.values())))
        if self.batch in (0, images):
            return [np.asarray(v) for v in self.session.run(self.names, feeds)]
        parts = []
        for start in range(0, images, self.batch):
            chunk = {name: x[start : start + self.batch] for name, x in feeds.items()}
            parts.append(self.session.run(self.names, {k: self._full(v) for k, v in chunk.items()}))
        return [
            self._joined([np.asarray(p[k]) for p in parts], images) for k in range(len(self.names))
        ]

    def _full(self, rows: Array) -> Array:
        """The rows, padded to the batch size with others."""
        shape = (self.batch - len(rows), *rows.shape[1:])
        if np.issubdtype(rows.dtype, np.floating):
            drawn = np.random.default_rng(8).random(shape).astype(rows.dtype)
        else:  # these are known to be accepted, whatever they mean
            drawn = np.resize(rows[::-1], shape)
        return np.concatenate([rows, drawn])

    def _joined(self, parts: list[Array], images: int) -> Array:
        if parts[0].ndim == 0 or len(parts[0]) != self.batch:
            return parts[0]
        return np.concatenate(parts)[:images]


def prove(original: Original, model: onnx.ModelProto, graph: Values) -> list[Comparison]:
    """Compare a new file with the original on random and hard inputs, where the original is finite.

    An input on which the original does not run (an index beyond its table) is skipped.

    A file in FP16 is compared with its results in FP32: the new file may deviate from those as far as the
    original does. An output of the original that is never finite cannot be compared: its excess is infinite.

    Args:
        original: the file as received.
        graph: provides the inputs and the batch of the new file.
    """
    after = session_of(model, optimized=True)
    found: list[Comparison] = []
    seen: set[str] = set()
    for case, feeds in _cases(graph, original.batch):
        try:
            wanted = original.run(feeds)
        except Exception as error:  # ONNX Runtime's errors have no common public base
            original.refused[case] = one_line_message(error)
            continue
        given = after.run(original.names, feeds)
        if original.truth is None:
            # Inputs that rounding does not change (zeros, integers) need not run again.
            moved = [original.run(m) for m in _rounded(feeds)] or [wanted]
            own = [_noise(wanted[k], [m[k] for m in moved]) for k in range(len(wanted))]
            truth = wanted
        else:
            truth = original.truth.run(_wide(feeds))
            own = [_error(wanted[k], truth[k]) for k in range(len(wanted))]
        for k, name in enumerate(original.names):
            one = np.asarray(given[k])
            if one.shape != wanted[k].shape or one.dtype != wanted[k].dtype:
                found.append(Comparison(case, name, float("inf"), float("inf")))
            else:
                most = MAX_GROWTH if original.truth is None else _MOST_HALF
                found.append(_compare(case, name, one, truth[k], wanted[k], own[k], most))
            if np.isfinite(wanted[k].astype(np.float64)).any():
                seen.add(name)
    if not found and original.refused:
        raise UnsupportedModelError(
            "The file fails on all inputs tried.",
            f"ONNX Runtime says: {next(iter(original.refused.values()))}",
            "Export it again; only files that run can be compared with the result.",
        )
    infinite = float("inf")
    unseen = [name for name in original.names if name not in seen]
    return found + [Comparison(NOWHERE, name, infinite, infinite) for name in unseen]


def all_within_tolerance(comparisons: Sequence[Comparison]) -> bool:
    """Whether anything was compared and all of it is within tolerance."""
    return bool(comparisons) and all(c.excess <= 1 for c in comparisons)


def _session(original: bytes) -> onnxruntime.InferenceSession:
    """The original, loaded in ONNX Runtime.

    Raises:
        UnsupportedModelError: it cannot be loaded.
    """
    onnxruntime = import_onnxruntime()
    options = session_options()
    try:
        return onnxruntime.InferenceSession(original, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common public base
        raise UnsupportedModelError(
            "ONNX Runtime cannot load the file.",
            f"It says: {one_line_message(error)}",
            "Export it again; only files that run can be compared with the result.",
        ) from error


def _cases(graph: Values, fixed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    rng = np.random.default_rng(11)
    free = FREED if fixed else _BATCHES
    for batch in free if graph.free else (graph.batch,):
        for kind in ("uniform", "normal", "zero", "tiny", "large", "equal", "spike", "mixed"):
            feeds = {}
            for name, plain in graph.feeds(batch, seed=12).items():
                x = plain
                if name in graph.tables:
                    entries = 1 if kind == "zero" else graph.tables[name]
                    x = rng.integers(entries, size=x.shape).astype(plain.dtype)
                elif np.issubdtype(x.dtype, np.floating):
                    x = _drawn(kind, x.shape, rng).astype(plain.dtype)
                feeds[name] = x
            yield f"{kind}, batch {batch}", feeds


def _drawn(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if kind == "equal":
        return np.full(shape, 0.5)
    x = np.zeros(shape)
    if kind == "spike":
        x.reshape(len(x), -1)[:, x[0].size // 2] = 1.0
        return x
    if kind == "normal":
        return rng.standard_normal(shape)
    if kind == "mixed":  # zeros and ones, as a mask has them
        exact = rng.integers(3, size=shape)
        return np.where(exact < 2, exact, rng.standard_normal(shape))
    return {"zero": 0.0, "tiny": 1e-6, "large": 1e3}.get(kind, 1.0) * rng.random(shape)


def _rounded(feeds: dict[str, Array]) -> Iterator[dict[str, Array]]:
    """Random roundings of the inputs; empty if rounding changes none of them."""
    for seed in range(2):
        moved = _moved(feeds, seed)
        if any(not np.array_equal(moved[name], x) for name, x in feeds.items()):
            yield moved


def _moved(feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: (x * (1 + _ROUNDING * rng.choice((-1.0, 1.0), x.shape))).astype(x.dtype)
        if np.issubdtype(x.dtype, np.floating)
        else x
        for name, x in feeds.items()
    }


def _wide(feeds: dict[str, Array]) -> dict[str, Array]:
    """The inputs with FP16 widened to FP32."""
    return {k: x if _is_exact(x) else x.astype(np.float32) for k, x in feeds.items()}


def _is_exact(x: Array) -> bool:
    """Whether its values have at least FP32's precision, or are integers."""
    return x.dtype.itemsize != 2 or np.issubdtype(x.dtype, np.integer)


def _noise(expected: Array, moved: list[Array]) -> Array:
    """How much rounding the input changes each pose of the original."""
    reference = np.atleast_1d(expected.astype(np.float64))
    own = np.max([np.abs(np.nan_to_num(np.atleast_1d(m) - reference)) for m in moved], axis=0)
    return np.asarray(ROUNDED * own.max(-1, keepdims=True, initial=0))


def _error(expected: Array, truth: Array) -> Array:
    """The noise of an original in FP16: its largest deviation from the truth, plus its last digit."""
    off = np.abs(expected.astype(np.float64) - truth.astype(np.float64))
    largest = off[np.isfinite(off)].max(initial=0)
    return np.asarray(
        (largest + _HALF_DIGIT * np.abs(np.nan_to_num(truth)).max(initial=0)) / NOISE_FACTOR
    )


def _compare(
    case: str, name: str, actual: Array, truth: Array, expected: Array, noise: Array, most: float
) -> Comparison:
    """Compare a result with the truth where the original is finite."""
    reference = np.atleast_1d(truth.astype(np.float64))
    finite = np.isfinite(reference) & np.isfinite(np.atleast_1d(expected.astype(np.float64)))
    clean = np.where(finite, reference, 0)
    off = np.where(finite, np.abs(np.atleast_1d(actual.astype(np.float64)) - clean), 0)
    if not np.isfinite(off).all():
        return Comparison(case, name, float("inf"), float("inf"))
    ratio = excess(off, clean, TOLERANCE, noise, most)
    return Comparison(case, name, float(off.max(initial=0)), float(ratio.max(initial=0)))


# --- The last steps of a new file ---

IR_VERSION = 10
_FOLDED = 1 << 20  # bytes of a constant that repeated values became


@dataclass(frozen=True)
class Finished:
    """A new file and its comparisons with the original.

    Attributes:
        model: the file.
        comparisons: with the original; the excess is infinite if the file does not run.
        notes: remarks on what was not rewritten.
    """

    model: onnx.ModelProto
    comparisons: list[Comparison]
    notes: tuple[str, ...] = ()


def finish_and_compare(
    original: Original,
    model: onnx.ModelProto,
    fused: bool,
    graph: Values,
    products: bool = True,
) -> Finished:
    """A copy with views merged and function bodies added, and its comparisons with the original.

    Sums become matrix products, which add up in another order. Where that changes a result, as behind an
    ArgMax of equal lengths, they stay.

    Args:
        model: the cleaned-up graph with the operators inserted.
        fused: whether any operators were inserted.
        graph: provides inputs and batch.
        products: whether to look for such sums.
    """
    better, changed = _finished(model, fused, products=products)
    comparisons = _compared(original, better, fused, graph)
    if not changed or all_within_tolerance(comparisons):
        return Finished(better, comparisons)
    plain, _ = _finished(model, fused, products=False)
    others = _compared(original, plain, fused, graph)
    if not all_within_tolerance(others):
        return Finished(better, comparisons)
    worst = max(comparisons, key=lambda c: c.excess)
    note = (
        "sums of products stay as they are: as matrix products, they would change "
        f"'{worst.output}' by {worst.difference:.3g} ({worst.case})"
    )
    return Finished(plain, others, (note,))


def _finished(
    model: onnx.ModelProto, fused: bool, *, products: bool
) -> tuple[onnx.ModelProto, bool]:
    """A copy with views merged, and whether any of it became a matrix product or is computed once."""
    finished = copy_of(model)
    described = list(finished.graph.value_info)
    changed = False
    try:
        inferred = onnx.shape_inference.infer_shapes(finished, data_prop=True)
        known = {v.name for v in described}
        finished.graph.value_info.extend(
            v for v in inferred.graph.value_info if v.name not in known
        )
        if fused:
            replace_layer_norms(finished)
        write_exact_sigmoids(finished)
        if products and write_matrix_products(finished):
            changed = True
            finished = fold(finished, _FOLDED)
        merged = copy_of(finished)
        merge_views(merged)
        finished = merged
    except onnx.shape_inference.InferenceError:
        pass  # views are not merged
    return finished, changed


def _compared(
    original: Original, finished: onnx.ModelProto, fused: bool, graph: Values
) -> list[Comparison]:
    """The comparisons of a file to which function bodies are added in place."""
    try:
        if fused:
            finished.ir_version = max(finished.ir_version, IR_VERSION)
            attach_functions(finished)
        if original.truth is not None:
            store_halves(finished)
        return prove(original, finished, graph)
    except Exception as error:  # ONNX Runtime's errors have no common public base
        infinite = float("inf")
        return [Comparison(one_line_message(error), "", infinite, infinite)]
