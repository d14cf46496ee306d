"""What `Graphs` needs of ONNX Runtime, in numpy: sessions that count, and refuse or fail when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.onnxruntime_graphs import Graphs

X, Y = Port("x", ("N", 3), "float32"), Port("y", ("N", 3), "float32")
NO_MEMORY = "bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 68719476736"


class Value:
    """Memory on the device."""

    def __init__(self, shape: list[int], dtype: Any) -> None:
        self.array = np.zeros(shape, dtype)

    def update_inplace(self, array: NDArray[Any]) -> None:
        assert array.shape == self.array.shape
        self.array[...] = array

    def numpy(self) -> NDArray[Any]:
        return self.array.copy()


class Binding:
    def __init__(self) -> None:
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}

    def bind_ortvalue_input(self, name: str, value: Value) -> None:
        self.inputs[name] = value

    def bind_ortvalue_output(self, name: str, value: Value) -> None:
        self.outputs[name] = value


class RunOptions:
    log_severity_level = 2
    only_execute_path_to_fetches = False

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


class Machine:
    """A GPU and the sessions on it, each with graphs by thread and number, as ONNX Runtime keeps them.

    Attributes:
        loads: sessions opened.
        captured: the number and the thread of each capture, in order.
        replays: the number of each replay.
        during: called in every run, before it computes.
        free: values that still fit the memory.
    """

    def __init__(self) -> None:
        self.loads = 0
        self.captured: list[tuple[str, int]] = []
        self.replays: list[str] = []
        self.refuses = ""
        self.during: Callable[[], None] = lambda: None
        self.free = 1000
        self.OrtValue = SimpleNamespace(ortvalue_from_shape_and_type=self._allocate)
        self.RunOptions = RunOptions

    def _allocate(self, shape: list[int], dtype: Any, device: str, gpu: int) -> Value:
        assert (device, gpu) == ("cuda", 0)
        self.free -= 1
        if self.free < 0:
            raise RuntimeError(NO_MEMORY)
        return Value(shape, dtype)

    def load(self) -> Session:
        self.loads += 1
        if self.refuses:
            raise RuntimeError(self.refuses)
        return Session(self)

    def graphs(self, off: str = "") -> Graphs:
        return Graphs(self, self.load, 0, [X], [Y], off)


class Session:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._graphs: set[tuple[str, int]] = set()
        self._busy = threading.Lock()

    def io_binding(self) -> Binding:
        return Binding()

    def run_with_iobinding(self, binding: Binding, options: RunOptions) -> None:
        machine, number = self._machine, options.entries["gpu_graph_id"]
        assert self._busy.acquire(blocking=False), "a session with graphs takes one call at a time"
        try:
            machine.during()
            graph = (number, threading.get_ident())
            if graph in self._graphs:
                machine.replays.append(number)
            else:
                machine.captured.append(graph)
            self._graphs.add(graph)
            for name, value in binding.outputs.items():
                assert name == "y"
                value.array[...] = 2 * binding.inputs["x"].array + 1
        finally:
            self._busy.release()
