"""``capsedge.ops.fused``: which operator a call becomes, what it declares and what is said of it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from capsedge.datasets import ImageSet
from capsedge.errors import EnvironmentProblem
from capsedge.models import MODELS, build, get_config, ops
from capsedge.models.training.evaluate import count_correct
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_session import NoKernelsHere
from tests.tables import table

from .test_registration import NAMES, _samples, _tuple

MODULE: Any = importlib.import_module("capsedge.models.ops.fused")
DYNAMIC = ((2, 6, 8), (6, 3, 4, 8))  # u, weight


class _Called(TorchDispatchMode):
    """Names of the capsedge operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "capsedge":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


class _CpuAsGpu:
    """What torch says of a GPU, about tensors on the CPU."""

    def has(self, x: Tensor) -> bool:
        return x.device.type == "cpu"

    @contextmanager
    def on(self, device: torch.device) -> Iterator[int]:
        yield 0

    def empty(self, shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)


@pytest.fixture
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on the CPU count as those of a GPU, for which there are no kernels."""

    def parts() -> tuple[Path, Path]:
        raise NoKernelsHere("No kernels.", "They are not installed.", "")

    monkeypatch.setattr(MODULE, "_gpu", _CpuAsGpu())
    monkeypatch.setattr(MODULE, "find_cuda_operators", parts)
    MODULE._plan.cache_clear()
    MODULE._library.cache_clear()
    yield
    MODULE._plan.cache_clear()
    MODULE._library.cache_clear()


def called() -> tuple[list[str], tuple[Tensor, ...]]:
    """What dynamic routing on a GPU, of tensors without values, becomes."""
    with FakeTensorMode(), _Called() as mode:
        u, weight = (torch.empty(shape, device="cuda") for shape in DYNAMIC)
        return mode.names, ops.dynamic_routing(u, weight)


def test_only_the_context_changes_what_is_called() -> None:
    for before_or_after in range(2):
        names, outputs = called()
        assert names == ["dynamic_routing"], before_or_after
        assert {x.device.type for x in outputs} == {"cuda"}
        with ops.fused(), torch.no_grad():
            names, outputs = called()
        assert names == ["dynamic_routing_fused"]
        assert [x.device.type for x in outputs] == ["cuda", "meta"]


@pytest.mark.usefixtures("_no_kernels")
def test_where_a_gradient_is_needed_nothing_changes() -> None:
    u, weight = map(torch.randn, DYNAMIC)
    weight.requires_grad_()
    with ops.fused() as ran:
        v, couplings = ops.dynamic_routing(u, weight)
        (gradient,) = torch.autograd.grad(v.sum() + couplings.sum(), [weight])
        assert not ran.others
        with torch.no_grad():
            _, nothing = ops.dynamic_routing(u, weight)
    assert nothing.device.type == "meta"
    v, couplings = ops.dynamic_routing(u, weight)
    (wanted,) = torch.autograd.grad(v.sum() + couplings.sum(), [weight])
    assert torch.equal(gradient, wanted)


def test_tensors_of_the_cpu_are_computed_as_outside() -> None:
    u, weight = map(torch.randn, DYNAMIC)
    wanted = ops.dynamic_routing(u, weight)
    with ops.fused() as ran, torch.no_grad():
        found = ops.dynamic_routing(u, weight)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)
    assert not ran.kernels
    assert not ran.others


def test_other_threads_are_outside() -> None:
    names: list[str] = []
    with ops.fused(), torch.no_grad():
        thread = threading.Thread(target=lambda: names.extend(called()[0]))
        thread.start()
        thread.join()
    assert names == ["dynamic_routing"]


@pytest.mark.usefixtures("_no_kernels")
def test_contexts_nest() -> None:
    x = torch.ones(2, 3)
    with ops.fused() as outer:
        with ops.fused() as inner:
            ops.squash(x)
        assert not outer.others
        ops.squash(x)
    assert outer.others == inner.others == {"squash": "No kernels. They are not installed."}


@table("name", NAMES)
def test_opcheck(name: str) -> None:
    operator, arguments = _samples(torch.float32, grad=False)[name]
    fused = getattr(torch.ops.capsedge, f"{operator._qualified_op_name.split('::')[1]}_fused")
    torch.library.opcheck(fused.default, arguments, test_utils=("test_schema", "test_faketensor"))


@table("name", NAMES)
def test_without_a_kernel_the_definition_runs(name: str) -> None:
    """The same values, contiguous; and couplings that cannot be read, of the right shape and type."""
    operator, arguments = _samples(torch.float16, grad=False)[name]
    own = operator._qualified_op_name.split("::")[1]
    with MODULE.fused() as ran:
        found = _tuple(getattr(torch.ops.capsedge, f"{own}_fused")(*arguments))
    wanted = _tuple(operator(*arguments))
    stored = len(next(o for o in MODULE.OPERATORS.values() if o.torch == own).outputs)
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        assert f.is_contiguous()
        if k < stored:
            assert torch.equal(f, w)
        else:
            with pytest.raises(NotImplementedError, match="no data"):
                f.cpu()
    assert ran.others == {own: "its inputs are not on one GPU"}


@pytest.mark.usefixtures("_no_kernels")
def test_reasons() -> None:
    def said(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, **given: Any) -> str:
        u, weight = (torch.ones(shape, dtype=dtype) for shape in shapes)
        with ops.fused() as ran:
            ops.dynamic_routing(u, weight, **given)
        return ran.others["dynamic_routing"]

    assert said(*DYNAMIC) == "No kernels. They are not installed."
    assert said(*DYNAMIC, dtype=torch.bfloat16) == "its inputs are bfloat16"
    assert said(*DYNAMIC, dtype=torch.float64) == "its inputs are float64"
    assert said((0, 6, 8), DYNAMIC[1]) == "its inputs are empty"


@pytest.fixture
def _kernels(_no_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernels were loaded."""
    library = find_library()
    if library is None:
        pytest.skip("the native library is not built: pip install -e . with a C++ compiler")
    monkeypatch.setattr(MODULE, "find_cuda_operators", lambda: (library, Path("kernels.fatbin")))
    monkeypatch.setattr(MODULE, "load_problem", lambda library, kernels: "")


@pytest.mark.usefixtures("_kernels")
def test_the_library_says_what_it_does_not_take() -> None:
    u, weight = map(torch.ones, DYNAMIC)
    with ops.fused() as ran:
        ops.dynamic_routing(u, weight, mask=torch.ones(2, 6))
    assert "lack such inputs" in ran.others["dynamic_routing"]
    with ops.fused() as ran:
        ops.dynamic_routing(u, weight, iterations=65)
    assert "'iterations' is 65" in ran.others["dynamic_routing"]
    assert not ran.kernels


@pytest.mark.usefixtures("_kernels")
def test_what_the_gpu_refuses_is_an_error() -> None:
    with ops.fused(), pytest.raises(EnvironmentProblem, match="CUDA kernels of squash"):
        ops.squash(torch.ones(2, 3))


@pytest.mark.usefixtures("_kernels")
def test_damaged_kernels_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "load_problem", lambda library, kernels: "it is damaged")
    with ops.fused(), pytest.raises(EnvironmentProblem, match="cannot be loaded"):
        ops.squash(torch.ones(2, 3))


@pytest.mark.usefixtures("_no_kernels")
def test_an_exported_program_has_the_operators_themselves() -> None:
    class Squash(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.squash(x)

    with ops.fused(), torch.no_grad():
        program = torch.export.export(Squash(), (torch.ones(2, 3),))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["capsedge.squash.default"]


@pytest.mark.thorough
@pytest.mark.usefixtures("_no_kernels")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend: str) -> None:
    """One compiled function, in the context and out of it, in one graph each."""
    weight = torch.randn(DYNAMIC[1])

    def network(u: Tensor) -> tuple[Tensor, Tensor]:
        v, couplings = ops.dynamic_routing(ops.squash(u), weight)
        return v + 1, couplings.flatten(1)

    torch._dynamo.reset()
    fast = torch.compile(network, backend=backend, fullgraph=True, dynamic=True)
    for n in (2, 5):
        u = torch.randn(n, *DYNAMIC[0][1:])
        with torch.no_grad():
            wanted, couplings = network(u)
            torch.testing.assert_close(fast(u), (wanted, couplings))
            with ops.fused() as ran:
                found, nothing = fast(u)
        torch.testing.assert_close(found, wanted)
        assert nothing.device.type == "meta"
        assert nothing.shape == couplings.shape
        assert set(ran.others) == {"squash", "dynamic_routing"}


@pytest.mark.thorough
@table("name", MODELS)
def test_no_model_reads_couplings(name: str) -> None:
    """Every network passes them on, on a GPU whose tensors have no values."""
    picture = get_config(name).preprocessing.shape
    with torch.device("meta"):
        model = build(name).eval()
    with FakeTensorMode(), _Called() as mode, torch.no_grad(), ops.fused():
        state = {
            key: torch.empty(x.shape, dtype=x.dtype, device="cuda")
            for key, x in (*model.named_parameters(), *model.named_buffers())
        }
        images = torch.empty(2, *picture, device="cuda")
        out = torch.func.functional_call(model, state, images)
    assert [x.device.type for x in out] == ["cuda", "cuda", "meta"]
    assert mode.names
    assert all(called.endswith("_fused") for called in mode.names)


@pytest.mark.usefixtures("_no_kernels")
@pytest.mark.parametrize("pairs", ["none", "overlap"])
def test_accuracy_is_measured_in_the_context(pairs: str) -> None:
    torch.manual_seed(0)
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), dtype=np.uint8)
    data = ImageSet("made", images, np.arange(3))
    with _Called() as mode:
        count_correct(build("digits-em"), data, pairs)
    assert set(mode.names) == {"em_routing_fused"}
