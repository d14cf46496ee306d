"""Which calls of an ONNX Runtime session on a GPU are captured and replayed, and which run plainly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.onnxruntime_graphs import GRAPHS, Captures, Graphs
from tests.runtime.graph_sessions import NO_MEMORY, Machine, X, Y


@pytest.fixture
def machine() -> Machine:
    return Machine()


def call(graphs: Graphs, batch: int, value: float = 1.0) -> str:
    """One call as the backend makes it; ``graph`` or ``plain``."""
    x = np.full((batch, 3), value, np.float32)
    found = graphs.run({"x": x}, ["y"])
    if found is None:
        graphs.saw({"x": x.shape}, {"y": x.shape})
        return "plain"
    np.testing.assert_array_equal(found["y"], 2 * x + 1)
    return "graph"


def test_a_batch_size_is_captured_at_its_second_call(machine: Machine) -> None:
    graphs = machine.graphs()
    assert call(graphs, 2) == "plain"
    assert machine.loads == 0
    assert [call(graphs, 2, value) for value in (1.0, 2.0, 3.0)] == ["graph"] * 3
    assert len(machine.captured) == 1
    assert machine.replays == ["1", "1"]
    assert [call(graphs, 5), call(graphs, 5), call(graphs, 2)] == ["plain", "graph", "graph"]
    assert machine.replays == ["1", "1", "1"]
    assert (machine.loads, graphs.captured) == (1, 2)


def test_outputs_are_the_callers_own(machine: Machine) -> None:
    graphs = machine.graphs()
    call(graphs, 1)
    first = graphs.run({"x": np.ones((1, 3), np.float32)}, ["y"])
    call(graphs, 1, 7.0)
    assert first is not None
    np.testing.assert_array_equal(first["y"], np.full((1, 3), 3, np.float32))


def test_eight_shapes_have_graphs_and_others_run_plainly(machine: Machine) -> None:
    graphs = machine.graphs()
    for batch in range(1, GRAPHS + 3):
        call(graphs, batch)
        call(graphs, batch)
    assert graphs.captured == GRAPHS
    assert [call(graphs, GRAPHS), call(graphs, GRAPHS + 1)] == ["graph", "plain"]
    assert graphs.no_graph_reason == ""


def test_many_shapes_of_one_call_are_not_all_remembered(machine: Machine) -> None:
    graphs = machine.graphs()
    for batch in range(1, 100):
        assert call(graphs, batch) == "plain"
    assert [call(graphs, 1), call(graphs, 99)] == ["plain", "graph"]


def test_empty_batches_run_plainly(machine: Machine) -> None:
    graphs = machine.graphs()
    assert [call(graphs, 0) for _ in range(3)] == ["plain"] * 3


def test_other_outputs_are_another_graph(machine: Machine) -> None:
    graphs = machine.graphs()
    x = np.ones((2, 3), np.float32)
    call(graphs, 2)
    assert graphs.run({"x": x}, []) is None
    assert graphs.run({"x": x}, ["y"]) is not None


def test_a_second_thread_does_not_wait(machine: Machine) -> None:
    """While one thread replays, the call of another runs plainly."""
    graphs = machine.graphs()
    call(graphs, 2)
    call(graphs, 2)
    inside, leave, said = threading.Event(), threading.Event(), list[str]()

    def during() -> None:
        inside.set()
        assert leave.wait(10)

    machine.during = during
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, graphs, 2)
        assert inside.wait(10)
        machine.during = lambda: None
        said.append(call(graphs, 2))
        leave.set()
        assert [*said, first.result()] == ["plain", "graph"]


def test_graphs_of_several_threads_are_captured_once(machine: Machine) -> None:
    """ONNX Runtime keeps them by thread: one thread of their own replays them for all."""
    graphs = machine.graphs()
    call(graphs, 2)
    call(graphs, 2)
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(call, graphs, 2).result() == "graph"
    assert call(graphs, 2) == "graph"
    first, second = machine.captured
    assert first[1] == threading.get_ident() != second[1]
    assert machine.replays == ["1"] * 3
    graphs.close()


def test_threads_get_their_own_answers(machine: Machine) -> None:
    graphs = machine.graphs()

    def work(k: int) -> None:
        for turn in range(50):
            call(graphs, 1 + turn % 3, 10.0 * k + turn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert graphs.no_graph_reason == ""
    assert 0 < len(machine.captured) <= 6
    graphs.close()


def test_a_refused_load_is_said_and_not_repeated(machine: Machine) -> None:
    graphs = machine.graphs()
    machine.refuses = "This session cannot use the graph capture feature: control flow\nmore"
    assert [call(graphs, 2) for _ in range(4)] == ["plain"] * 4
    assert machine.loads == 1
    assert (
        graphs.no_graph_reason == "This session cannot use the graph capture feature: control flow"
    )
    machine = Machine()
    machine.refuses = "no"
    graphs = machine.graphs()
    graphs.open()
    assert graphs.no_graph_reason == "no"


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_without_memory_there_are_no_graphs(machine: Machine, left: int) -> None:
    graphs = machine.graphs()
    call(graphs, 2)
    machine.free = left
    assert call(graphs, 2) == ("plain" if left < 2 else "graph")
    call(graphs, 4)
    assert call(graphs, 4) == "plain"
    assert "too little memory" in graphs.no_graph_reason
    assert (graphs.captured, call(graphs, 2)) == (0, "plain")


def test_memory_that_ends_in_the_capture(machine: Machine) -> None:
    graphs = machine.graphs()
    call(graphs, 2)

    def fail() -> None:
        raise RuntimeError(NO_MEMORY)

    machine.during = fail
    assert call(graphs, 2) == "plain"
    assert "too little memory" in graphs.no_graph_reason


def test_a_capture_that_fails_is_tried_again_in_a_new_session(machine: Machine) -> None:
    """Another library may have allocated memory in the middle of it."""
    graphs = machine.graphs()
    failures = [2]

    def fail() -> None:
        failures[0] -= 1
        if failures[0] >= 0:
            raise RuntimeError("operation not permitted when stream is capturing")

    machine.during = fail
    assert [call(graphs, 2) for _ in range(5)] == ["plain"] * 3 + ["graph"] * 2
    assert (machine.loads, graphs.no_graph_reason) == (3, "")
    failures[0] = 1
    assert call(graphs, 2) == "plain"
    assert graphs.no_graph_reason == "operation not permitted when stream is capturing"


def test_reasons_that_are_known_before() -> None:
    machine = Machine()
    graphs = machine.graphs("graphs were not requested")
    assert [call(graphs, 2), call(graphs, 2), machine.loads] == ["plain", "plain", 0]
    strange = Graphs(machine, machine.load, 0, [X], [Y, Port("names", ("N",), "tensor(string)")])
    assert strange.no_graph_reason == "'names' is a tensor(string)"


def test_a_closed_model_keeps_its_reason(machine: Machine) -> None:
    graphs = machine.graphs()
    call(graphs, 2)
    call(graphs, 2)
    graphs.close()
    graphs.close()
    assert (graphs.no_graph_reason, graphs.captured) == ("", 0)
    assert graphs.run({"x": np.ones((2, 3), np.float32)}, ["y"]) is None


def test_an_interrupted_capture_leaves_the_way_free(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = Captures()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with captures.absent():
        monkeypatch.setattr(captures._changed, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), captures.alone():
            raise AssertionError("it waits")
    with captures.alone():
        pass
    with captures.absent():
        pass


def test_captures_run_alone() -> None:
    captures, order = Captures(), list[str]()
    here, go = threading.Event(), threading.Event()

    def plain() -> None:
        with captures.absent():
            order.append("plain")
            here.set()
            assert go.wait(10)
            order.append("plain ends")

    def capture() -> None:
        with captures.alone():
            order.append("capture")

    work: list[Callable[[], None]] = [plain, capture]
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(work[0])]
        assert here.wait(10)
        started.append(pool.submit(work[1]))
        go.set()
        for each in started:
            each.result()
    assert order == ["plain", "plain ends", "capture"]
