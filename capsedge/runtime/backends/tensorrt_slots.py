"""The slots that calls of an engine run in, each with its own stream, buffers and CUDA graphs.

A graph belongs to the state of the context from which it was captured: TensorRT forbids changing the context
afterwards. So a slot has one context for each of the sizes (batch and length) that it ran last, all in the
same scratch memory, since only one runs at a time. The buffers have room for the largest sizes and stay.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.backends.backend import NOT_REQUESTED
from capsedge.runtime.backends.tensorrt_engine import EngineSizes, LoadedEngine, Shapes

CONTEXTS = 4  # calls at the same time; more keep no GPU busier and cost memory
GRAPHS = 8  # sizes per slot whose graphs are kept
_ATTEMPTS = 3  # to capture; another library may free memory in the middle of one


@dataclass
class BoundSlots:
    """A context set to the sizes of a call.

    Attributes:
        shapes: of all inputs and outputs.
    """

    context: Any
    shapes: Shapes
    ran: bool = False
    graph: int = 0


class Capturing:
    """Whether the calls of an engine are captured as graphs.

    Attributes:
        no_graph_reason: why they are not; empty while they are.
    """

    def __init__(self, graphs: bool) -> None:
        self.no_graph_reason = "" if graphs else NOT_REQUESTED
        self._left = _ATTEMPTS

    def failed(self, why: str) -> None:
        """Count a failed attempt; after the last one, calls run without graphs for good."""
        self._left -= 1
        if not self._left:
            self.no_graph_reason = why


class Slot:
    """The resources that one call at a time uses.

    Attributes:
        stream: the stream of all its work.
        device, host: addresses of its buffers, by name of the input or output.
        room: bytes of each buffer.
        scratch: address of the memory that its contexts compute in.
    """

    def __init__(self, engine: LoadedEngine) -> None:
        cuda = engine.cuda
        self._engine = engine
        self._bound: OrderedDict[EngineSizes, BoundSlots] = OrderedDict()  # latest used last
        self.scratch = 0
        self.device: dict[str, int] = {}
        self.host: dict[str, int] = {}
        self.room: dict[str, int] = {}
        self.stream = cuda.create_stream()
        try:
            self.scratch = cuda.allocate(engine.scratch)
            self._spare = engine.new_context(self.scratch)
            shapes = engine.infer(self._spare, engine.largest)
            for port in (*engine.inputs, *engine.outputs):
                size = self.room[port.name] = engine.bytes(port, shapes[port.name])
                self.device[port.name] = cuda.allocate(size)
                self.host[port.name] = cuda.allocate_host(size)
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Free everything, even if some of it fails."""
        cuda = self._engine.cuda
        with suppress(EnvironmentProblem):
            cuda.synchronize(self.stream)
        for bound in self._bound.values():
            if bound.graph:
                with suppress(EnvironmentProblem):
                    cuda.destroy_graph(bound.graph)
        self._bound.clear()
        self._spare = None
        for free, addresses in (
            (cuda.free, [self.scratch, *self.device.values()]),
            (cuda.free_host, list(self.host.values())),
        ):
            for address in filter(None, addresses):
                with suppress(EnvironmentProblem):
                    free(address)
        with suppress(EnvironmentProblem):
            cuda.destroy_stream(self.stream)

    def execute(self, bound: BoundSlots, capturing: Capturing) -> None:
        """Enqueue the inference on the stream.

        The first run of some sizes uses no graph, as TensorRT requires; the second is captured, and later
        runs launch the graph.
        """
        engine, cuda = self._engine, self._engine.cuda
        if not bound.ran:
            engine.enqueue(bound.context, self.stream)
            bound.ran = True
            return
        if not bound.graph and not capturing.no_graph_reason:
            cuda.synchronize(self.stream)
            bound.graph, why = cuda.capture(
                self.stream, lambda: engine.accepts(bound.context, self.stream)
            )
            if not bound.graph:
                capturing.failed(why)
        if bound.graph:
            cuda.launch(bound.graph, self.stream)
        else:
            engine.enqueue(bound.context, self.stream)

    def bind(self, sizes: EngineSizes) -> BoundSlots:
        """The context for the sizes of a call: one set to them, a new one, or the least recently used."""
        known = self._bound.get(sizes)
        if known is not None:
            self._bound.move_to_end(sizes)
            return known
        cuda = self._engine.cuda
        context, self._spare = self._spare, None
        if context is None and len(self._bound) < GRAPHS:
            context = self._engine.new_context(self.scratch)
        elif context is None:
            _, oldest = self._bound.popitem(last=False)
            cuda.synchronize(self.stream)  # its graph may still be running
            if oldest.graph:
                cuda.destroy_graph(oldest.graph)
            context = oldest.context
        shapes = self._engine.bind(context, sizes, self.device, self.room)
        bound = self._bound[sizes] = BoundSlots(context, shapes)
        return bound


class Slots:
    """The slots of an engine, created when they are needed.

    Args:
        most: largest number of slots; a call that finds all of them in use waits.

    Attributes:
        engine: the engine.
    """

    def __init__(self, engine: LoadedEngine, most: int) -> None:
        self.engine = engine
        self._room = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._ended = False
        self._free = [Slot(engine)]  # too little memory is found now, not at the first image

    @contextmanager
    def one(self) -> Iterator[Slot]:
        """A slot for exclusive use; a slot in which a call failed is discarded."""
        with self._room:
            with self._lock:
                slot = self._free.pop() if self._free else None
            if slot is None:
                slot = Slot(self.engine)
            try:
                yield slot
            except BaseException as error:
                if not isinstance(
                    error, UsageError
                ):  # the caller's mistakes are found before anything runs
                    slot.destroy()
                    raise
                self._give_back(slot)
                raise
            self._give_back(slot)

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            ended = self._ended
            if not ended:
                self._free.append(slot)
        if ended:
            slot.destroy()

    def destroy(self) -> None:
        """Free the slots that no call uses; calls in progress keep theirs until they end."""
        with self._lock:
            self._ended = True
            free, self._free = self._free, []
        for slot in free:
            slot.destroy()
