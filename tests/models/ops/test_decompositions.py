"""The operators in ATen operators: the same numbers, and nothing that small runtimes lack."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from capsedge.models import ops
from capsedge.spec.operators import OPERATORS
from tests.exporters.nets import CONFIGS, OwnModule, network
from tests.exporters.test_portable import Windows

# ExecuTorch has no portable kernel of these, or none that is functional.
MISSING = ("unfold", "einsum", "copy_", "as_strided", "where")


class Outputs(nn.Module):
    """A model as ``torch.export`` wants it: tensors only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        found = self.model(*inputs)
        return tuple(found.values()) if isinstance(found, dict) else tuple(found)


def _cases() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    torch.manual_seed(5)
    return {
        **{name: (network(name), (torch.rand(2, 1, 10, 10),)) for name in CONFIGS},
        "own": (OwnModule().eval(), (torch.randn(2, 6, 3), torch.rand(2, 6))),
        "windows": (Windows().eval(), (torch.randn(2, 7, 5, 2, 9),)),
    }


# The fast ones have the operators of dense capsules.
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name",
    [
        *("own", "self-attention"),
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("windows", "dynamic", "em", "attention", "attention-vector")
        ),
    ],
)
def test_programs_hold_no_operator_of_ours(name: str) -> None:
    module, inputs = _cases()[name]
    module = Outputs(module)
    with torch.no_grad():
        wanted = module(*inputs)
    program = torch.export.export(module, inputs)
    assert any("capsedge" in str(n.target) for n in program.graph.nodes)
    lowered = program.run_decompositions(ops.decompositions())
    targets = {str(n.target) for n in lowered.graph.nodes if n.op == "call_function"}
    assert not [t for t in targets if "capsedge" in t or any(m in t for m in MISSING)]
    for found, value in zip(lowered.module()(*inputs), wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-7)


def test_every_operator_has_one() -> None:
    names = {str(op) for op in ops.decompositions()}
    assert names == {f"capsedge.{o.torch}.default" for o in OPERATORS.values() if o.torch}


@pytest.mark.parametrize(
    ("kernel", "strides"), [((1, 1), (1, 1)), ((3, 2), (2, 1)), ((6, 7), (1, 1)), ((2, 7), (3, 2))]
)
def test_windows_are_those_of_unfold(kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    from capsedge.models.ops.operator_inputs import cut_windows

    x = torch.randn(2, 6, 7, 3, 4)
    wanted = x.unfold(1, kernel[0], strides[0]).unfold(2, kernel[1], strides[1])
    wanted = wanted.permute(0, 1, 2, 5, 6, 3, 4)
    wanted = wanted.reshape(2, *wanted.shape[1:3], kernel[0] * kernel[1] * 3, 4)
    assert torch.equal(cut_windows(x, kernel, strides), wanted)
