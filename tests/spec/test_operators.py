"""The table of operators against PyTorch's definitions and the bodies."""

from __future__ import annotations

import subprocess
import sys

import pytest

from capsedge.runtime.onnx_file.costs import VoteSizes, vote_sizes_of
from capsedge.spec.operators import (
    DENSE,
    OPERATORS,
    ROUTING_OPERATORS,
    IterationValue,
    Operator,
    iteration_value_in,
    iteration_value_name,
    parse_iteration_value,
)
from capsedge.spec.vocabularies import ROUTINGS

# Flags of nodes that are words in PyTorch, with the word of 0.
IN_WORDS = {"over_children": ("softmax", "parents"), "replace": ("update", "accumulate")}


def test_plugins_lack_inputs_of_images_and_some_that_are_shared() -> None:
    dynamic, votes = OPERATORS["DynamicRouting"], OPERATORS["VoteRouting"]
    u, weight, prior, bias = (2, 6, 8), (6, 3, 4, 8), (6, 3), (3, 4)
    assert dynamic.has_plugin([u, weight, prior, bias])
    assert dynamic.has_plugin([u, (1, 3, 4, 8), prior, bias, (1, 3, 4)])
    assert dynamic.has_plugin([u, weight, None, bias])
    assert not dynamic.has_plugin([u, weight, (1, 3), bias])
    assert not dynamic.has_plugin([(2, None, 8), (1, 3, 4, 8), (1, 3), bias])
    assert dynamic.has_plugin([(2, 1, 8), (1, 3, 4, 8), (1, 3), bias])
    assert not dynamic.has_plugin([u, weight, prior, bias, (6, 3, 4), (2, 6, 1)])
    assert votes.has_plugin([(2, 6, 3, 4), prior, bias])
    assert not votes.has_plugin([(2, 6, 1, 4), prior, bias])
    assert not OPERATORS["PoseNormalization"].has_plugin([(2, 4), (4,), (4,)])


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda o: o.name)
def test_inputs_and_outputs_are_as_the_specification_wants(operator: Operator) -> None:
    assert {v.type for v in (*operator.inputs, *operator.outputs)} <= set("TfibB")
    assert operator.inputs[0].batched
    optional = [v.optional for v in operator.inputs]
    assert optional == sorted(optional)  # the last
    assert all(v.batched for v in operator.outputs)


def test_operators_with_int8_weights_follow_from_those_without() -> None:
    twins = [o for o in OPERATORS.values() if o.quantizes]
    assert {o.quantizes for o in twins} == {o.name for o in OPERATORS.values() if o.int8}
    for twin in twins:
        own = OPERATORS[twin.quantizes]
        assert OPERATORS[own.int8] is twin
        place = twin.input_names.index("weight_scale")
        assert place == twin.weight + 1 == own.weight + 1
        assert [v.type for v in twin.inputs[twin.weight : place + 1]] == ["b", "f"]
        assert twin.in_8_bits
        assert not own.in_8_bits
        assert (twin.attributes, twin.outputs) == (own.attributes, own.outputs)
    assert OPERATORS["QuantizedConv"].in_8_bits


def test_a_first_pass_takes_what_the_operator_takes() -> None:
    pairs = [(o, OPERATORS[o.first_pass]) for o in OPERATORS.values() if o.first_pass]
    assert pairs
    for operator, first in pairs:
        assert set(first.input_names) < set(operator.input_names)
        assert set(first.attributes) < set(operator.attributes)
        assert first.outputs == operator.outputs


def test_torch_operators_take_their_arguments_in_the_order_of_the_table() -> None:
    torch = pytest.importorskip("torch", reason="pip install 'capsedge[export]'")
    import inspect

    import capsedge

    defined = {o.torch for o in OPERATORS.values() if o.torch}
    others = {"FusedCalls", "decompositions", "exponential_squash", "fused"}
    assert defined == set(capsedge.ops.__all__) - others
    for operator in OPERATORS.values():
        if not operator.torch:
            continue
        schema = getattr(torch.ops.capsedge, operator.torch).default._schema
        arguments = [argument.name for argument in schema.arguments]
        assert arguments == [*operator.input_names, *operator.attribute_names]
        assert len(schema.returns) == len(operator.outputs) + operator.couplings
        public = getattr(capsedge.ops, operator.torch)
        wrapper = inspect.signature(public).parameters
        for attribute in operator.attributes:
            if attribute.name in IN_WORDS:
                name, default = IN_WORDS[attribute.name]
                assert wrapper[name].default == default
                continue
            # The wrapper takes the number of iterations from that of the temperatures.
            given = wrapper.get(attribute.name)
            if attribute.default is not None:
                assert given is not None
                assert given.default == attribute.default
            elif given is not None:
                assert given.default in (None, inspect.Parameter.empty)


def test_what_is_traced_has_a_word_of_files() -> None:
    traced = {o.routing for o in OPERATORS.values() if o.traced}
    assert traced == set(ROUTINGS)
    assert all(bool(o.routing) >= bool(o.traced) for o in OPERATORS.values())


def test_every_operator_has_a_body() -> None:
    pytest.importorskip("onnx", reason="pip install 'capsedge[build]'")
    from capsedge.graph import bodies

    assert set(bodies._BUILDERS) == {o.procedure for o in OPERATORS.values()}


def test_the_table_is_light() -> None:
    code = (
        "import sys, capsedge.spec.operators, capsedge.spec.operators, capsedge.spec.operators;"
        "print({'torch', 'onnx', 'numpy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "set()\n", run.stderr


WINDOW = (3, 3, 2, 5, 4, 4)


@pytest.mark.parametrize(
    ("operator", "children", "weight", "attributes", "wanted"),
    [
        ("DynamicRouting", ("N", 6, 4), (6, 3, 5, 4), {}, VoteSizes(1, 6, 3, 5, 4)),
        ("DynamicRouting", ("N", 6, 4), (1, 3, 5, 4), {}, VoteSizes(1, 6, 3, 5, 4)),
        ("VoteRouting", ("N", 6, 3, 5), ("N", 6, 3, 5), {}, VoteSizes(1, 6, 3, 5, 0)),
        ("EMRouting", ("N", 7, 9, 2, 16), WINDOW, {"strides": [2, 2]}, VoteSizes(12, 18, 5, 16, 4)),
        ("QuantizedEMRouting", (1, 3, 3, 2, 16), WINDOW, {}, VoteSizes(1, 18, 5, 16, 4)),
        (
            "EMRouting",
            ("N", 7, 9, 2, 16),
            (1, 1, 2, 5, 4, 4),
            {"shared": 1},
            VoteSizes(1, 126, 5, 16, 4),
        ),
        ("AttentionRouting", ("N", 4, 4, 2, 16), WINDOW, {}, VoteSizes(4, 18, 5, 16, 4)),
        ("SelfAttentionRouting", ("N", 6, 4), (6, 3, 5, 4), {}, VoteSizes(1, 6, 3, 5, 4)),
        (
            "UniformRouting",
            ("N", 4, 4, 2, 6),
            (3, 3, 2, 5, 6, 7),
            {"matrix_pose": 0},
            VoteSizes(4, 18, 5, 7, 6),
        ),
    ],
)
def test_votes(operator, children, weight, attributes, wanted) -> None:
    found = vote_sizes_of(OPERATORS[operator], children, weight, attributes)
    assert found == wanted
    assert found.elements == found.positions * found.children * found.parents * found.pose


@pytest.mark.parametrize(
    ("operator", "children", "weight", "attributes"),
    [
        ("DynamicRouting", ("N", 6, 4), (6, 3, "?", 4), {}),
        ("DynamicRouting", ("N", 6, 4), (6, 3, 5), {}),
        ("VoteRouting", ("N", 6, 3, "?"), (), {}),
        ("VoteRouting", ("N", 6, 3), (), {}),
        ("EMRouting", ("N", "H", 9, 2, 16), WINDOW, {}),
        ("EMRouting", ("N", 2, 9, 2, 16), WINDOW, {}),
        ("EMRouting", ("N", 7, 9, 2, 16), WINDOW, {"strides": [0, 1]}),
        ("EMRouting", ("N", 7, 9, 2, 16), WINDOW, {"strides": "no"}),
        ("EMRouting", ("N", 7, 9, 2, 16), WINDOW, {"strides": [1]}),
    ],
)
def test_shapes_that_no_operator_has(operator, children, weight, attributes) -> None:
    with pytest.raises(ValueError, match=r"not known|does not fit|values to unpack"):
        vote_sizes_of(OPERATORS[operator], children, weight, attributes)


def test_optional_inputs_are_left_out_from_the_end() -> None:
    dynamic = OPERATORS["QuantizedDynamicRouting"]
    assert [n for n in range(9) if dynamic.takes(n)] == [5, 6, 7, 8]
    assert [v.name for v in dynamic.present_inputs(5)] == [*dynamic.input_names[:5]]
    assert dynamic.present_inputs(8) == dynamic.inputs
    with pytest.raises(ValueError, match="QuantizedDynamicRouting with 4 inputs"):
        dynamic.present_inputs(4)
    assert [n for n in range(9) if OPERATORS["AttentionRouting"].takes(n)] == [5]


def test_attributes_that_a_node_leaves_out_have_their_defaults() -> None:
    em = OPERATORS["EMRouting"]
    given = {"iterations": 1, "inverse_temperatures": (1.0,), "shared": 1}
    found = em.complete(given)
    assert set(found) == set(em.attribute_names)
    assert given.items() <= found.items()
    assert (found["strides"], found["ones_first"]) == ((1, 1), 0)


def test_iterations() -> None:
    dynamic, attention = OPERATORS["DynamicRouting"], OPERATORS["AttentionRouting"]
    assert dynamic.iterations({"iterations": 5}) == 5
    assert dynamic.iterations({}) == dynamic.iterations({"iterations": "many"}) == 3
    assert attention.iterations({"iterations": 5}) == 1


def test_marks() -> None:
    assert parse_iteration_value("EMRouting_iter12_logit_3") == IterationValue(
        "EMRouting", 12, "logit"
    )
    assert parse_iteration_value(
        f"DynamicRouting_{iteration_value_name(2, 'pose')}"
    ) == IterationValue("DynamicRouting", 2, "pose")
    for other in (
        *("", "iter1_pose", "Squash_iter1_pose", "DynamicRouting_iter1_logit"),
        *("UniformRouting_iter1_couplings", "DynamicRouting_iter1_poses", "EMRouting_iter_pose"),
        *("EMRouting_iter1234567_pose", "QuantizedEMRouting_iter1_pose"),
    ):
        assert parse_iteration_value(other) is None, other
    found = iteration_value_in("QuantizedEMRouting", "iter1_pose")
    assert found == IterationValue("QuantizedEMRouting", 1, "pose")
    assert all(o.iteration_values for o in ROUTING_OPERATORS.values())
    assert {name for name, o in ROUTING_OPERATORS.items() if o.weight == 0} == {"VoteRouting"}
    assert {name for name, o in ROUTING_OPERATORS.items() if o.layout is DENSE} == {
        "DynamicRouting",
        "QuantizedDynamicRouting",
        "SelfAttentionRouting",
        "QuantizedSelfAttentionRouting",
    }
