"""CUDA graphs of ONNX Runtime sessions: which shapes are captured, when, and in which thread.

ONNX Runtime captures a graph per number (``gpu_graph_id``), with the addresses that are bound in its first
call, which it runs three times. Three of its properties shape this module:

- A session with graphs serves one call at a time, so the plain session stays, for calls that find it busy.
- It keeps graphs by thread: a call from another thread would capture again. So the session belongs to the
  thread of its first call or, once several threads call, to a thread of its own.
- While it captures, no thread of the process may allocate memory of the GPU
  (``cudaStreamCaptureModeGlobal``). So captures wait until no other call runs, and other calls wait for them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.onnxruntime_session import FATAL, first_line, is_short_of_memory

GRAPHS = 8  # shapes that are captured; ONNX Runtime cannot drop a single graph
_REMEMBERED = 64  # shapes of first calls
_ATTEMPTS = 3  # to capture; another library may allocate memory in the middle of one

Shapes = Mapping[str, tuple[int, ...]]  # by name of the input or output
Key = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]  # shapes of the inputs, names of outputs


class Captures:
    """Keeps the captures of a process apart from its other calls on GPUs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._capturing = False

    @contextmanager
    def absent(self) -> Iterator[None]:
        """Work during which nothing is captured; several threads may be inside."""
        with self._changed:
            while self._capturing:
                self._changed.wait()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A capture, during which nothing else runs; must not be entered inside `absent`."""
        with self._changed:
            while self._capturing:
                self._changed.wait()
            self._capturing = True  # now: or calls that follow one another would keep it waiting
        try:
            with self._changed:
                while self._running:
                    self._changed.wait()
            yield
        finally:
            with self._changed:
                self._capturing = False
                self._changed.notify_all()


CAPTURES = Captures()


class Bound:
    """A shape with a graph: its number, and the memory of the GPU that the graph reads and writes.

    Attributes:
        key: what its graph depends on.
        inputs, outputs: ONNX Runtime's values on the GPU, by name.
        binding, options: what ``run_with_iobinding`` takes.
        captured: whether its graph exists.
    """

    def __init__(
        self, ort: Any, session: Any, key: Key, number: int, gpu: int, inputs: Shapes, outputs: Shapes,
        types: Mapping[str, Any],
    ) -> None:  # fmt: skip
        def memory(shapes: Shapes) -> dict[str, Any]:
            make = ort.OrtValue.ortvalue_from_shape_and_type
            return {name: make(list(s), types[name], "cuda", gpu) for name, s in shapes.items()}

        self.key, self.captured = key, False
        self.inputs, self.outputs = memory(inputs), memory(outputs)
        self.binding = session.io_binding()
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        for name, value in self.outputs.items():
            self.binding.bind_ortvalue_output(name, value)
        self.options = ort.RunOptions()
        self.options.log_severity_level = FATAL
        self.options.only_execute_path_to_fetches = True
        self.options.add_run_config_entry("gpu_graph_id", str(number))


class Graphs:
    """The CUDA graphs of a model, in a session beside its plain one.

    A shape is captured at its second call, so that a single call does not pay for three.

    Args:
        ort: the module ``onnxruntime``.
        load: opens the session with graphs.
        gpu: number of the GPU.
        inputs, outputs: of the model.
        off: why there are no graphs; empty if there may be.

    Attributes:
        no_graph_reason: why calls use no graphs; empty while they may.
    """

    def __init__(
        self, ort: Any, load: Callable[[], Any], gpu: int, inputs: Sequence[Port],
        outputs: Sequence[Port], off: str = "",
    ) -> None:  # fmt: skip
        self._ort, self._gpu = ort, gpu
        self._inputs = [port.name for port in inputs]
        self._types = {port.name: port.numpy_dtype for port in (*inputs, *outputs)}
        strange = [port for port in (*inputs, *outputs) if port.numpy_dtype is None]
        of_type = f"'{strange[0].name}' is a {strange[0].dtype}" if strange else ""
        self.no_graph_reason = off or of_type
        self._load = None if self.no_graph_reason else load  # it keeps the file's bytes
        self._lock = threading.Lock()  # held while the session with graphs is in use
        self._closed = False
        self._session: Any = None
        self._owner: threading.Thread | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._bound: dict[Key, Bound] = {}
        self._seen: OrderedDict[Key, dict[str, tuple[int, ...]]] = OrderedDict()  # latest last
        self._left = _ATTEMPTS

    def open(self) -> None:
        """Open the session now; if it is refused, `no_graph_reason` says why."""
        with self._lock:
            self._opened()

    def close(self) -> None:
        """Free the session, after the call that uses it."""
        self._closed = True
        with self._lock:
            self._end()

    @property
    def captured(self) -> int:
        """The number of shapes that have a graph."""
        return len(self._bound)

    def saw(self, inputs: Shapes, outputs: Shapes) -> None:
        """Remember a plain call, by the shapes that it took and gave: the next one is captured."""
        key = self._key(inputs, tuple(outputs))
        with self._unless_busy() as free:
            if free and key is not None:
                self._seen[key] = dict(outputs)
                self._seen.move_to_end(key)
                while len(self._seen) > _REMEMBERED:
                    self._seen.popitem(last=False)

    @contextmanager
    def ready(self, inputs: Shapes, outputs: tuple[str, ...]) -> Iterator[Bound | None]:
        """The memory of a shape that has a graph, or gets one by `launch`, for the caller alone.

        None if the call is to run in the plain session: it is the first of its shape, there is no room for
        another graph, there are none at all, or another thread is here.
        """
        with self._unless_busy() as free:
            yield self._find(self._key(inputs, outputs), inputs) if free else None

    def launch(self, bound: Bound) -> bool:
        """Replay or capture the graph of what is bound, inside `ready`; False means run the plain session."""
        try:
            with CAPTURES.absent() if bound.captured else CAPTURES.alone():
                self._in_owner(
                    lambda: self._session.run_with_iobinding(bound.binding, bound.options)
                )
        except Exception as error:
            self._failed(error)
            return False
        bound.captured = True
        self._bound[bound.key] = bound
        return True

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]] | None:
        """The named outputs for arrays in host memory; None if the call is to run in the plain session."""
        shapes = {name: array.shape for name, array in feeds.items()}
        with self.ready(shapes, tuple(outputs)) as bound:
            if bound is None:
                return None
            try:
                with CAPTURES.absent():
                    for name in self._inputs:
                        bound.inputs[name].update_inplace(np.ascontiguousarray(feeds[name]))
            except Exception as error:
                self._failed(error)
                return None
            if not self.launch(bound):
                return None
            with CAPTURES.absent():
                return {name: bound.outputs[name].numpy() for name in outputs}

    def _key(self, inputs: Shapes, outputs: tuple[str, ...]) -> Key | None:
        """What a graph depends on; None for empty tensors, which are not worth one."""
        shapes = tuple(tuple(inputs[name]) for name in self._inputs)
        return None if any(0 in shape for shape in shapes) else (shapes, outputs)

    @contextmanager
    def _unless_busy(self) -> Iterator[bool]:
        """Whether there may be graphs and no other thread uses them; then this one does."""
        if self.no_graph_reason or self._closed or not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield not self._closed
        finally:
            self._lock.release()

    def _find(self, key: Key | None, inputs: Shapes) -> Bound | None:
        """The memory of a shape, new if its graph is still to be captured; None if it gets no graph."""
        if key is None or not (key in self._bound or self._may_capture(key)):
            return None
        self._settle()
        if key in self._bound or not self._may_capture(key):
            return self._bound.get(key)
        session = self._opened()
        if session is None:
            return None
        number, shapes = len(self._bound) + 1, self._seen[key]
        try:
            with CAPTURES.absent():
                return Bound(
                    self._ort, session, key, number, self._gpu, inputs, shapes, self._types
                )
        except Exception as error:
            self._failed(error)
            return None

    def _may_capture(self, key: Key) -> bool:
        """Whether a shape was called before, and there is room for its graph."""
        shapes = self._seen.get(key)
        empty = shapes is None or any(0 in shape for shape in shapes.values())
        return not empty and len(self._bound) < GRAPHS

    def _opened(self) -> Any:
        """The session with graphs; None if it is refused."""
        if self._session is None and self._load is not None:
            try:
                with CAPTURES.absent():
                    self._session = self._load()
            except Exception as error:
                self._stop(first_line(error))
        return self._session

    # --- The thread that owns the session ---

    def _settle(self) -> None:
        """When a second thread calls, give graphs a thread of their own, for which they are captured anew."""
        if self._worker is not None:
            return
        here = threading.current_thread()
        if self._owner is None:
            self._owner = here
        elif self._owner is not here:
            self._worker, self._owner = ThreadPoolExecutor(1, "capsedge-graphs"), None
            self._drop()

    def _in_owner(self, act: Callable[[], object]) -> None:
        """Call a function in the thread that owns the session, and wait for it."""
        if self._worker is None:
            act()
            return
        running = self._worker.submit(act)
        try:
            running.result()
        except BaseException:
            wait([running])  # an interrupted call must not leave its memory in use
            raise

    # --- The end ---

    def _drop(self) -> None:
        """Forget session and graphs; shapes that were called are still known."""
        with CAPTURES.absent():
            self._bound.clear()
            self._session = None

    def _failed(self, error: Exception) -> None:
        """Begin anew, or stop: at once without memory, else after some attempts."""
        self._left -= 1
        if is_short_of_memory(error):
            self._stop(f"the GPU has too little memory for them: {first_line(error)}")
        elif not self._left:
            self._stop(first_line(error))
        else:
            self._drop()  # a session whose capture failed is in an unknown state

    def _stop(self, why: str) -> None:
        """Use no graphs from now on."""
        self.no_graph_reason = why
        self._end()

    def _end(self) -> None:
        self._load = None
        self._seen.clear()
        self._drop()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=False)
