"""The one graph: producers, users and subgraphs; and nobody else keeps maps of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.ir import (
    Graph,
    all_graphs,
    all_nodes,
    captured_by,
    has_inner_graphs,
    reads,
    rename,
    rewire,
    value_names,
)


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def _branch(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [_value(output)])


@pytest.fixture
def model() -> onnx.ModelProto:
    """``y = If(c, two(x) + x, Identity(w))``, a product that is used twice, and dead nodes."""
    inner = [
        helper.make_node("Neg", ["two"], ["inside"]),
        helper.make_node("Add", ["inside", "x"], ["sum"]),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["two"]),
        helper.make_node("Add", ["two", "two"], ["four"]),
        helper.make_node("Sub", ["four", "x"], ["dead"]),
        helper.make_node("If", ["dead"], ["also dead"],
                         then_branch=_branch("p", [helper.make_node("Abs", ["four"], ["q"])], "q"),
                         else_branch=_branch("e", [helper.make_node("Abs", ["x"], ["r"])], "r")),
        helper.make_node("If", ["c"], ["y"], then_branch=_branch("t", inner, "sum"),
                         else_branch=_branch("f", [helper.make_node("Identity", ["w"], ["g"])], "g")),
    ]  # fmt: skip
    stored = [numpy_helper.from_array(np.ones(2, np.float32), name) for name in ("w", "idle")]
    inputs = [_value("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, [_value("y")], stored))


def test_producers_and_users_see_into_subgraphs(model: onnx.ModelProto) -> None:
    graph = Graph.of(model.graph)
    assert graph.position("four") == 1
    assert [graph.position(name) for name in ("x", "w", "inside", "")] == [None] * 4
    assert graph.producer("x") is None
    assert [n.op_type for n in graph.users("two")] == ["Add", "If"]  # read twice, and in a branch
    assert list(graph.user_positions("x")) == [0, 2, 3, 4]
    assert graph.users("y") == []
    assert list(graph.produced) == ["two", "four", "dead", "also dead", "y"]
    assert graph.captured == {"two", "x", "w", "four"}
    assert graph.needed == {"x", "w", "two", "four", "dead", "c", "y"}
    assert graph.needs(4) == [0]
    assert graph.array("w").tolist() == [1, 1]


def test_it_describes_the_nodes_as_they_were(model: onnx.ModelProto) -> None:
    graph = Graph.of(model.graph)
    rewire(model.graph.node[1], {"two": "x"}, {"four": "six"})
    assert graph.position("four") == 1
    assert [n.op_type for n in graph.users("two")] == ["Add", "If"]
    assert Graph.of(model.graph).position("four") is None


def test_what_a_value_is_computed_with(model: onnx.ModelProto) -> None:
    graph = Graph.of(model.graph)
    assert graph.before(["y"]) == [0, 4]
    assert graph.before(["dead"]) == [0, 1, 2]
    assert graph.before(["x", "w"]) == []
    assert graph.before(["dead"], lambda node: node.input if node.op_type == "Sub" else ()) == [
        1,
        2,
    ]


def test_subgraphs_are_walked(model: onnx.ModelProto) -> None:
    choice = model.graph.node[-1]
    assert has_inner_graphs(choice)
    assert not has_inner_graphs(model.graph.node[0])
    assert captured_by(choice) == {"two", "x", "w"}
    assert reads(choice) == ["c", "two", "w", "x"]
    assert sorted(g.name for g in all_graphs(model.graph)) == ["e", "f", "g", "p", "t"]
    assert len(list(all_nodes(model.graph.node))) == 5 + 2 + 3


def test_names_of_an_inner_graph_hide_those_outside() -> None:
    inner = _branch(
        "t", [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["a"], ["b"])], "b"
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    outer = helper.make_node("If", ["a"], ["z"], then_branch=_branch("o", [node], "y"))
    assert captured_by(node) == {"x"}
    assert captured_by(outer) == {"c", "x"}


def test_dead_nodes_keep_nothing_alive(model: onnx.ModelProto) -> None:
    """``four`` is read by a branch of a node that is itself dead."""
    assert remove_dead_nodes(model) == 3
    assert [n.op_type for n in model.graph.node] == ["Mul", "If"]
    assert [t.name for t in model.graph.initializer] == ["w"]
    onnx.checker.check_model(model)


def test_renaming_reaches_subgraphs_and_rewiring_does_not(model: onnx.ModelProto) -> None:
    rewire(model.graph.node[1], {"two": "three"}, {"four": "six"})
    assert (list(model.graph.node[1].input), list(model.graph.node[1].output)) == (
        ["three", "three"],
        ["six"],
    )
    rewire(model.graph.node[-1], {"two": "three", "c": "d"})
    assert reads(model.graph.node[-1]) == ["d", "two", "w", "x"]
    rename(model.graph, {"two": "due", "x": "images", "w": "weight", "inside": "within"})
    assert reads(model.graph.node[-1]) == ["d", "due", "images", "weight"]
    names = value_names(model.graph)
    assert {"due", "images", "weight", "within", "sum"} <= set(names)
    assert not {"two", "x", "w", "inside"} & set(names)


# --- No map by hand ---

PACKAGE = Path(__file__).parents[2] / "capsedge"
# `runtime` has no onnx: it reads files by classes of its own.
ELSEWHERE = (PACKAGE / "graph" / "ir.py", PACKAGE / "runtime")
COLLECTING = {"set", "frozenset", "fromkeys"}


def _runs_over_values(target: ast.expr, values: ast.expr) -> str:
    """The variable that runs over the inputs or outputs of a node; empty if this is another loop."""
    for part in ast.walk(values):
        if isinstance(part, ast.Attribute) and part.attr in ("input", "output"):
            return target.id if isinstance(target, ast.Name) else ""
    return ""


def _kept(node: ast.AST) -> ast.expr | None:
    """What a statement puts into a set, or uses as a key."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return node.targets[0].slice if isinstance(node.value, ast.Name) else None
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    if called and node.func.attr in ("setdefault", "add"):  # type: ignore[attr-defined]
        return node.args[0]  # type: ignore[attr-defined]
    return None


def _comprehension(node: ast.AST) -> tuple[ast.expr, list[ast.comprehension]] | None:
    """The keys or elements of a mapping or set, and the loops that they come from."""
    if isinstance(node, ast.DictComp):
        return node.key, node.generators
    if isinstance(node, ast.SetComp):
        return node.elt, node.generators
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.GeneratorExp):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return (node.args[0].elt, node.args[0].generators) if name in COLLECTING else None
    return None


def _looks_through_nodes(node: ast.AST) -> bool:
    """Whether an expression finds a value by asking every node, as in ``name in n.output for n in nodes``."""
    if not isinstance(node, ast.GeneratorExp | ast.ListComp):
        return False
    nodes = {each.target.id for each in node.generators if isinstance(each.target, ast.Name)}
    asked = [
        values.value.id
        for test in ast.walk(node)
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In)
        for values in test.comparators
        if isinstance(values, ast.Attribute)
        and values.attr in ("input", "output")
        and isinstance(values.value, ast.Name)
    ]
    return not nodes.isdisjoint(asked)


def maps_of_values(source: str) -> Iterator[int]:
    """The lines of a program where the values of several nodes become keys, or are looked through."""
    for node in ast.walk(ast.parse(source)):
        keys: list[ast.expr | None] = []
        names: set[str] = set()
        if isinstance(node, ast.For):
            names = {_runs_over_values(node.target, node.iter)}
            keys = [_kept(each) for each in ast.walk(node)] if any(names) else []
        elif (collected := _comprehension(node)) is not None and len(collected[1]) > 1:
            keys = [collected[0]]
            names = {_runs_over_values(each.target, each.iter) for each in collected[1]}
        by_hand = any(isinstance(key, ast.Name) and key.id in names for key in keys)
        if by_hand or _looks_through_nodes(node):
            yield node.lineno  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        "{o: n for n in model.graph.node for o in n.output}",
        "{i for n in nodes for i in (*n.input, *n.output) if i}",
        "dict.fromkeys(o for node in each.node for o in node.output)",
        "for node in nodes:\n for name in set(node.input):\n  users.setdefault(name, []).append(node)",
        "for node in nodes:\n for name in filter(None, node.output):\n  maker[name] = node",
        "next((n for n in graph.node if name in n.output), None)",
        "[n for n in graph.node if name in n.input]",
    ],
)
def test_a_map_by_hand_is_noticed(line: str) -> None:
    assert len(list(maps_of_values(line))) == 1


def test_no_file_builds_a_map_of_producers_or_users() -> None:
    assert not list(maps_of_values("{o.name: o for o in graph.output}"))
    files = [p for p in PACKAGE.rglob("*.py") if not any(p.is_relative_to(e) for e in ELSEWHERE)]
    texts = {p: p.read_text(encoding="utf-8") for p in files}
    asking = {p: text for p, text in texts.items() if "import onnx" in text}
    assert len(asking) > 40
    by_hand = [
        f"{p.relative_to(PACKAGE)}:{line}"
        for p, text in asking.items()
        for line in maps_of_values(text)
    ]
    assert not by_hand, "ask capsedge.graph.ir.Graph instead"
