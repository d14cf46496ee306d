"""Run a graph once and record every value: shapes, constants, dominators, pieces to run.

ONNX Runtime runs it unoptimized, with every tensor as an output. So no shape inference is needed, and weights
that the file tiles, slices or computes are simply values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.execution import Session, one_line_message, session_of, to_fp64
from capsedge.graph.fusion.index_inputs import table_sizes
from capsedge.graph.ir import Graph, copy_of, reads

Array = NDArray[Any]
Function = Callable[..., list[Array]]

BATCHES = (7, 5, 3, 2, 1)  # 7 is rarely equal to another dimension
ALWAYS = (
    1,
    2,
    3,
)  # batch sizes at which a file with a free batch must run, whatever it was traced with
_LARGEST_BATCH, _GUESSED = 512, 8  # largest batch size guessed from a file, and how many are tried
MOST_NODES = 20_000
MOST_ELEMENTS = 1 << 28  # maximum number of elements in an input
# Limit on all values together with more than two images; further images add no information.
MOST_BYTES = 1 << 28
LARGE_BYTES = 1 << 26  # values from which fewer images than 7 are run, if no axis has their number
_WIDE = {TensorProto.FLOAT: TensorProto.DOUBLE}


def _bytes(values: Iterable[Any]) -> int:
    return sum(np.asarray(v).nbytes for v in values)


class Values(Graph):
    """The values of a graph at one batch size.

    Args:
        model: without functions and without initializers among its inputs.

    Attributes:
        batch: the batch size that was run.
        free: whether the batch is free in the file.
        tables: for each input of indices, the number of entries in the table that it indexes.
        has_named_dims: whether the file declares a free batch, rightly or not.
        value: every constant by name.
        summaries: summary of every tensor.
        shapes, sizes: shape and number of elements of every tensor.
        floats: the tensors in FP32.
        constant: the tensors that do not depend on the inputs (shapes count as constant).
        sources: the tensors that each non-constant tensor is computed from, in topological order.
        answers: what is known about pieces of the graph (`equal_pieces.fit_once`).

    Raises:
        NoMatch: the graph does not run, or is too large.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        if len(model.graph.node) > MOST_NODES:
            raise NoMatch(f"it has more than {MOST_NODES:,} nodes")
        main = model.graph
        super().__init__(main.node, (o.name for o in main.output), main.initializer)
        self.model = model
        self.weights = {name: self.array(name) for name in self.initializers}
        self.dims: dict[str, list[int]] = {
            i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input
        }
        self.types = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
        if not self.dims or not all(d for d in self.dims.values()):
            raise NoMatch("an input has no dimensions")
        if any(d < 0 for dims in self.dims.values() for d in dims):
            raise NoMatch("an input has a negative dimension")
        if any(math.prod(d or 1 for d in dims) > MOST_ELEMENTS for dims in self.dims.values()):
            raise NoMatch(f"an input has more than {MOST_ELEMENTS:,} elements")
        self.free = self.has_named_dims = all(d[0] == 0 for d in self.dims.values())
        self._flow()
        self.tables = table_sizes(self, self.weights, list(self.dims))
        found = self._first_run()
        self.summaries = {name: ValueSummary.of(value) for name, value in found.items()}
        self.value = {name: found[name] for name in self.constant if name in found}
        self.shapes = {name: one.shape for name, one in self.summaries.items()}
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.floats = {name for name, one in self.summaries.items() if one.kind == np.float32}

    def feeds(self, batch: int, seed: int = 0, scale: float = 1.0) -> dict[str, Array]:
        """Inputs for the whole graph: uniform numbers, indices within their tables, otherwise ones."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, dims in self.dims.items():
            shape = [(batch if k == 0 else 1) if d == 0 else d for k, d in enumerate(dims)]
            kind = helper.tensor_dtype_to_np_dtype(self.types[name])
            drawn: Array
            if name in self.tables:
                drawn = rng.integers(self.tables[name], size=shape)
            elif np.issubdtype(kind, np.floating):
                drawn = scale * rng.random(shape)
            else:
                drawn = np.ones(shape)
            found[name] = drawn.astype(kind)
        return found

    def _first_run(self) -> dict[str, Array]:
        model = copy_of(self.model)
        del model.graph.value_info[:]
        wanted = (name for name in self.produced if name not in self.outputs)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
        try:
            session = session_of(model)
        except Exception as error:  # ONNX Runtime's errors have no common public base
            raise NoMatch(f"ONNX Runtime cannot load it: {one_line_message(error)}") from error
        names = [o.name for o in session.get_outputs()]
        why = ""
        # One image comes last: broadcasting repeats it as often as the file was traced with.
        batches = [*BATCHES[:-1], *self._named_batches(), BATCHES[-1]] if self.free else [0]
        each, axes = self._image(session) if self.free else (0, set())
        if BATCHES[0] * each > LARGE_BYTES:
            batches = [*(b for b in (3, 5) if b not in axes), *batches]
        for batch in batches:
            if (batch > 2 and batch * each > MOST_BYTES) or (
                self.has_named_dims and not self.free and batch != batches[-1]
            ):
                continue
            feeds = self.feeds(batch)
            try:
                found = session.run(names, feeds)
            except Exception as error:
                why = one_line_message(error)
                continue
            self.batch = batch or next(iter(self.dims.values()))[0]
            if _bytes(found) > MOST_BYTES and batch > 2:
                del found
                continue
            result = dict(zip(names, found, strict=True)) | feeds | self.weights
            if self.free:
                rows = self._rows_that_count(session, result)
                if rows != batch:
                    batches.append(rows)
                    self.free = False
                    continue
                self.free = self._runs_at(session, ALWAYS)
            return result
        raise NoMatch(f"it does not run: {why or 'its values need too much memory'}")

    def _rows_that_count(self, session: Session, values: dict[str, Array]) -> int:
        """The images for which the outputs have rows: all, or the first ones if a trace separated them."""
        names = [o.name for o in self.model.graph.output]
        rows = len(values[names[0]]) if np.ndim(values[names[0]]) else 0
        if not 0 < rows < self.batch:
            return self.batch
        feeds = self.feeds(self.batch)
        for name, other in self.feeds(self.batch, seed=1).items():
            feeds[name][rows:] = other[rows:]
        moved = session.run(names, feeds)
        same = all(np.array_equal(values[n], m) for n, m in zip(names, moved, strict=True))
        return rows if same else self.batch

    def _image(self, session: Session) -> tuple[int, set[int]]:
        """The size in bytes of all values for one image, and the sizes of their axes.

        Nothing if the graph does not run with two images.
        """
        try:
            found = session.run(None, self.feeds(2))
        except Exception:
            return 0, set()
        constants = {d for value in self.weights.values() for d in value.shape}
        return _bytes(found) // 2, constants.union(*(np.shape(value) for value in found))

    def _named_batches(self) -> list[int]:
        """Batch sizes that the file may have been traced with: the first numbers of its constants."""
        counts: Counter[int] = Counter()
        for value in self.weights.values():
            if value.ndim > 1:
                counts[value.shape[0]] += 1
            elif value.ndim == 1 and value.dtype == np.int64 and value.size:
                counts[int(value[0])] += 1
        likely = [b for b, _ in counts.most_common() if 1 < b <= _LARGEST_BATCH]
        return [b for b in likely if b not in BATCHES][:_GUESSED]

    def _runs_at(self, session: Session, batches: Iterable[int]) -> bool:
        """Whether a batch that is declared free really is."""
        for batch in batches:
            if batch == self.batch:
                continue
            try:
                session.run(None, self.feeds(batch))
            except Exception:
                return False
        return True

    def _flow(self) -> None:
        self.constant = set(self.weights)
        self.sources: dict[str, list[str]] = {name: [] for name in self.dims}
        self._fixed: set[int] = set()  # positions of nodes that compute constants
        for k, node in enumerate(self.nodes):
            read = self.read_by(k)
            fixed = all(i in self.constant for i in read) or node.op_type in ("Shape", "Size")
            fixed |= (
                node.op_type == "CastLike" and read[0] in self.constant
            )  # only the type is read
            if fixed:
                self._fixed.add(k)
                self.constant.update(filter(None, node.output))
            else:
                varying = [i for i in read if i not in self.constant]
                self.sources |= dict.fromkeys(filter(None, node.output), varying)
        self.order = {name: k for k, name in enumerate(self.sources)}
        self.twins: dict[str, list[str]] = {}
        self.answers: dict[tuple[Hashable, ...], Any] = {}

    @property
    def kinds(self) -> dict[str, int]:
        """The element type of every tensor."""
        return {
            name: helper.np_dtype_to_tensor_dtype(v.kind)
            for name, v in self.summaries.items()
            if v.kind is not None
        }

    def users(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that use a tensor, except those that compute constants, as from its shape."""
        return [self.nodes[k] for k in self.user_positions(name) if k not in self._fixed]

    def is_quantized(self, name: str) -> bool:
        """Whether a constant is stored as integers that a node of the graph dequantizes."""
        return any(self.nodes[k].op_type == "DequantizeLinear" for k in self.before([name]))

    def kind(self, name: str) -> np.dtype[Any]:
        """The element type of a value."""
        return np.dtype(self.summaries[name].kind)

    def attribute(self, node: onnx.NodeProto, name: str, default: Any) -> Any:
        """An attribute of a node."""
        found = [a for a in node.attribute if a.name == name]
        return helper.get_attribute_value(found[0]) if found else default

    def distances(self, name: str) -> dict[str, int]:
        """The tensors that a tensor is computed from, and how many nodes away they are."""
        found, queue = {name: 0}, [name]
        for each in queue:
            for source in self.sources.get(each, ()):
                if source not in found:
                    found[source] = found[each] + 1
                    queue.append(source)
        return found

    def after(self, name: str) -> set[str]:
        """Everything that depends on a tensor."""
        found = {name}
        for each, sources in self.sources.items():
            if any(s in found for s in sources):
                found.add(each)
        return found - {name}

    def with_twins(self, boundary: Iterable[str]) -> list[str]:
        """A cut together with tensors elsewhere that have the same values (detached copies)."""
        return [name for each in boundary for name in (each, *self.twins.get(each, ()))]

    def determined(self, *boundary: str) -> list[str]:
        """The tensors that depend only on a cut, in topological order."""
        known = set(self.with_twins(boundary))
        found = []
        for name, sources in self.sources.items():
            if name not in known and sources and all(s in known for s in sources):
                known.add(name)
                found.append(name)
        return found

    def find_twins(self, name: str) -> None:
        """Merge tensors that equal a tensor but are neither its ancestors nor its descendants."""
        if name in self.twins:
            return
        one, kin = self.summaries[name], set(self.distances(name)) | self.after(name)
        spread = one.few is not None and one.few.size > 0 and float(np.ptp(one.few)) > 0
        self.twins[name] = [
            other
            for other in self.sources
            if spread and other not in kin and self.summaries[other].resembles(one)
        ]

    @cached_property
    def _dominators(self) -> dict[str, frozenset[str]]:
        return self._dominate(set())

    def dominators(self, target: str, without: Sequence[str] = ()) -> list[str]:
        """The tensors on every path from an input to a tensor, nearest first.

        Args:
            without: tensors treated as constant.
        """
        dead = set(self.with_twins(without))
        found = self._dominate(dead) if dead else self._dominators
        return sorted(found.get(target, frozenset()) - {target}, key=lambda t: -self.order[t])

    def _dominate(self, dead: set[str]) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for name, sources in self.sources.items():
            if name in dead:
                continue
            live = [s for s in sources if s not in dead]
            if sources and not live:
                dead.add(name)
                continue
            shared = frozenset.intersection(*(found[s] for s in live)) if live else frozenset()
            found[name] = shared | {name}
        return found

    def between(
        self, boundary: Sequence[str], ends: Sequence[str]
    ) -> tuple[list[onnx.NodeProto], set[str]]:
        """The nodes between a cut and some tensors, and the constants that they read."""
        stop = self.constant.union(boundary)
        inside = self.before(
            (name for name in ends if name not in stop),
            lambda node: [name for name in reads(node) if name not in stop],
        )
        constants = {name for k in inside for name in self.read_by(k) if name in self.constant}
        return [self.nodes[k] for k in inside], constants

    def numbers(self, boundary: Sequence[str], ends: Sequence[str]) -> dict[str, Array]:
        """The FP32 constants in between: candidates for priors, biases, temperatures and epsilons."""
        found = {}
        for name in sorted(self.between(self.with_twins(boundary), ends)[1]):
            value = self.value[name]
            if getattr(value, "dtype", None) == np.float32:
                found[name] = value
        return found

    def function(
        self, boundary: Sequence[str], ends: Sequence[str], arena: bool = True
    ) -> Function:
        """The original nodes between a cut and some tensors as a function of arrays, in FP64 if possible.

        Arrays have the shapes of the cut, in any layout; results have the shapes of the ends.

        Args:
            arena: as in ``session_of``; not for functions that are kept, since there may be many.
        """
        nodes, constants = self.between(self.with_twins(boundary), ends)
        arrays = {c: np.asarray(self.value[c], order="C") for c in constants}
        for wide in (True, False):
            try:
                session = session_of(self._piece(nodes, arrays, boundary, ends, wide), arena=arena)
                break
            except Exception as error:
                if not wide:
                    raise NoMatch(
                        f"a part of it does not run by itself: {one_line_message(error)}"
                    ) from error

        def run(*fed: Array) -> list[Array]:
            feeds = {}
            for name, array in zip(boundary, fed, strict=True):
                kind = self.kind(name)
                kind = np.dtype(np.float64) if wide and kind == np.float32 else kind
                x = np.ascontiguousarray(array, kind).reshape(self.shapes[name])
                feeds.update(dict.fromkeys((name, *self.twins.get(name, ())), x))
            used = {i.name for i in session.get_inputs()}
            try:
                found = session.run(list(ends), {k: v for k, v in feeds.items() if k in used})
            except Exception as error:  # as above
                raise NoMatch(
                    f"a part of it does not run by itself: {one_line_message(error)}"
                ) from error
            return [np.asarray(v, np.float64) for v in found]

        return run

    def _piece(
        self,
        nodes: list[onnx.NodeProto],
        constants: dict[str, Array],
        boundary: Sequence[str],
        ends: Sequence[str],
        wide: bool,
    ) -> onnx.ModelProto:
        def kind_of(name: str) -> int:
            found = helper.np_dtype_to_tensor_dtype(self.kind(name))
            return _WIDE.get(found, found) if wide else found

        inputs = [
            helper.make_tensor_value_info(n, kind_of(n), self.shapes[n])
            for n in self.with_twins(boundary)
        ]
        stored = [
            numpy_helper.from_array(
                v.astype(np.float64) if wide and v.dtype == np.float32 else v, name
            )
            for name, v in constants.items()
        ]
        graph = helper.make_graph(
            list(to_fp64(nodes)) if wide else nodes,
            "piece",
            inputs,
            [onnx.ValueInfoProto(name=o) for o in ends],
            stored,
        )
        return helper.make_model(
            graph,
            opset_imports=list(self.model.opset_import),
            ir_version=min(self.model.ir_version, 10),
        )


# --- Summaries of tensors, which are not kept themselves ---


_FEW = 1 << 14  # how many elements of a large value to keep, approximately


@dataclass(frozen=True)
class ValueSummary:
    """A summary of a value.

    Attributes:
        shape, kind, nbytes: shape, type and bytes of the value; the type is None if it is not a tensor.
        few: evenly spaced elements, or all if the value is small; None if it is not FP32.
    """

    shape: tuple[int, ...]
    kind: np.dtype[Any] | None
    nbytes: int
    few: NDArray[Any] | None

    @classmethod
    def of(cls, value: Any) -> ValueSummary:
        array = np.asarray(value)
        few = None
        if array.dtype == np.float32:
            few = array.reshape(-1)[:: max(1, array.size // _FEW)].copy()
        kind = array.dtype if isinstance(value, (np.ndarray, np.generic)) else None
        return cls(tuple(np.shape(value)), kind, array.nbytes, few)

    def resembles(self, other: ValueSummary) -> bool:
        """Whether two values appear equal except for rounding."""
        if self.few is None or other.few is None or self.shape != other.shape:
            return False
        near = 1e-6 * np.abs(other.few).max(initial=0)
        return bool(np.allclose(self.few, other.few, 1e-5, near))
