"""``capsedge.ops.fused`` on a GPU: CUDA graphs, streams, the compiler, whole networks.

Results of every case of the registry: ``python -m tests.conformance test --backend torch-fused``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from capsedge.models import build, get_config, ops
from tests.conformance.torch_fused import TorchFused

pytestmark = pytest.mark.gpu
RTOL, ATOL = 1e-3, 1e-4  # sums in another order


@pytest.fixture(autouse=True, scope="module")
def _gpu() -> Iterator[None]:
    if reason := TorchFused().unavailable(""):
        pytest.skip(reason)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def layer(images: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Digit capsules of CapsNet."""
    generator = torch.Generator().manual_seed(images)
    u = torch.randn(images, 1152, 8, generator=generator).cuda()
    weight = (0.1 * torch.randn(1152, 10, 16, 8, generator=generator)).cuda()
    return u, lambda x: ops.dynamic_routing(ops.squash(x), weight)[0]


def fused(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The call, all of it on the kernels."""
    with torch.no_grad(), ops.fused() as ran:
        found = call(x)
    assert not ran.others, ran.others
    return found


@pytest.mark.parametrize("images", [1, 33])
def test_a_replayed_graph_has_the_bits_of_a_call(images: int) -> None:
    u, call = layer(images)
    fused(call, u)  # loads the kernels
    graph, held = torch.cuda.CUDAGraph(), u.clone()
    with torch.cuda.graph(graph):
        found = fused(call, held)
    for scale in (1.0, 0.5, 2.0):
        held.copy_(scale * u)
        graph.replay()
        assert torch.equal(found, fused(call, scale * u))


def test_streams() -> None:
    """Work of the current stream, in which scratch memory is lent again at once."""
    u, call = layer(8)
    wanted = [fused(call, u * k) for k in range(20)]
    streams = [torch.cuda.Stream() for _ in range(4)]
    found: list[Tensor] = []
    torch.cuda.synchronize()
    for k in range(20):
        with torch.cuda.stream(streams[k % 4]):
            found.append(fused(call, u * k))
    torch.cuda.synchronize()
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


def test_tensors_that_are_not_aligned_or_contiguous() -> None:
    u, call = layer(4)
    wanted = fused(call, u)
    strided = u.transpose(0, 1).contiguous().transpose(0, 1)
    shifted = torch.empty(u.numel() + 1, device="cuda")[1:].view(u.shape).copy_(u)
    assert not strided.is_contiguous()
    assert shifted.data_ptr() % 16
    for x in (strided, shifted):
        assert torch.equal(fused(call, x), wanted)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str) -> None:
    u, call = layer(3)
    fast = torch.compile(call, mode=mode, fullgraph=True)
    for scale in (1.0, 0.5, 2.0):
        with torch.no_grad(), ops.fused():
            found = fast(scale * u).clone()
        torch.testing.assert_close(found, call(scale * u), rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("name", ["digits-dynamic", "digits-em", "digits-attention"])
def test_networks(name: str) -> None:
    torch.manual_seed(0)
    model = build(name).eval().cuda()
    images = torch.rand(5, *get_config(name).preprocessing.shape, device="cuda")
    with torch.no_grad():
        wanted = model(images)
        with ops.fused() as ran:
            found = model(images)
    assert not ran.others, ran.others
    torch.testing.assert_close(found.scores, wanted.scores, rtol=RTOL, atol=ATOL)
    torch.testing.assert_close(found.poses, wanted.poses, rtol=RTOL, atol=10 * ATOL)


def test_the_current_gpu_stays_current() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    u, _ = layer(2)
    assert torch.equal(
        fused(lambda x: ops.squash(x.to("cuda:1")), u).cpu(), fused(ops.squash, u).cpu()
    )
    assert torch.cuda.current_device() == 0
