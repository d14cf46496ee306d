"""What ``capsedge.ops`` does within ``fused()`` on executed PTX.

``python -m tests.native.ptx.torch_checks NAME``, each in a process of its own: a kernel's fault ends all work
of its process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from capsedge.errors import EnvironmentProblem
from capsedge.models import ops
from tests.conformance.torch_fused import StandIn, TorchFusedPtx

OUT_OF_RESOURCES = 701  # the code of the error
CHILDREN, PARENTS, POSE = 20, 5, 16


def tensors(gpu: StandIn, images: int = 3) -> tuple[Tensor, Tensor]:
    """Poses and weight of a layer that takes several kernels."""
    random = np.random.default_rng(images)
    u = random.standard_normal((images, CHILDREN, 8)).astype(np.float32)
    weight = random.standard_normal((CHILDREN, PARENTS, POSE, 8)).astype(np.float32)
    return gpu.put(u), gpu.put(0.3 * weight)


def routed(gpu: StandIn, u: Tensor, weight: Tensor) -> Tensor:
    """The poses of the parents, all on the kernels; priors and bias are in device memory, too."""
    prior = gpu.put(np.zeros((CHILDREN, PARENTS), np.float32))
    bias = gpu.put(np.zeros((PARENTS, POSE), np.float32))
    return queued(lambda: ops.dynamic_routing(u, weight, prior, bias)[0])


def queued(call: Callable[[], Tensor]) -> Tensor:
    """What a call returns, before its work is done."""
    with torch.no_grad(), ops.fused() as ran:
        found = call()
    assert not ran.others, ran.others
    assert ran.kernels
    return found


def graph(gpu: StandIn) -> None:
    """A capture allocates nothing that is not at hand; a replay computes what is in the inputs by then."""
    gpu.lends = True
    u, weight = tensors(gpu)
    prior = gpu.put(np.zeros((CHILDREN, PARENTS), np.float32))
    bias = gpu.put(np.zeros((PARENTS, POSE), np.float32))

    def call() -> Tensor:
        return queued(lambda: ops.dynamic_routing(ops.squash(u), weight, prior, bias)[0])

    call()
    kept: list[Tensor] = []

    def enqueue() -> bool:
        kept.append(call())
        return True

    gpu.wait()
    cuda, stream = gpu.memory.cuda, gpu.memory.stream()
    replayed, why = cuda.capture(stream, enqueue)
    assert replayed, why
    for scale in (1.0, 0.5):
        changed = (scale * tensors(gpu)[0]).numpy()
        cuda.to_device(u.data_ptr(), changed.ctypes.data, changed.nbytes, stream)
        cuda.launch(replayed, stream)
        gpu.wait()
        wanted = call()
        gpu.wait()
        assert torch.equal(kept[0], wanted)
    cuda.destroy_graph(replayed)


def threads(gpu: StandIn) -> None:
    """Each thread enters the context; all share the plans of shapes."""
    given = [tensors(gpu, 1 + k % 2) for k in range(4)]
    wanted = [routed(gpu, *each) for each in given]
    with ThreadPoolExecutor(4) as pool:
        found = [x for _ in range(5) for x in pool.map(lambda each: routed(gpu, *each), given)]
    gpu.wait()
    for k, x in enumerate(found):
        assert torch.equal(x, wanted[k % 4])


def layouts(gpu: StandIn) -> None:
    """Tensors that are strided, or begin at an address that is not aligned, are copied before."""
    u, weight = tensors(gpu)
    wanted = routed(gpu, u, weight)
    gpu.wait()
    misfits = u.transpose(0, 1).contiguous().transpose(0, 1), torch.empty(u.numel() + 1)[1:]
    strided, shifted = misfits[0], misfits[1].view(u.shape).copy_(u)
    assert not strided.is_contiguous()
    assert shifted.data_ptr() % 16
    module: Any = sys.modules["capsedge.models.ops.fused"]
    copied = module._aligned

    def into_device_memory(x: Tensor) -> Tensor:
        """The copy, where the stand-in finds it."""
        made = copied(x)
        assert (made is x) == (x.is_contiguous() and x.data_ptr() % 16 == 0)
        return x if made is x else gpu.put(made.numpy())

    module._aligned = into_device_memory
    for x in (strided, shifted):
        found = routed(gpu, x, weight)
        gpu.wait()
        assert torch.equal(found, wanted)


def refused_launch(gpu: StandIn) -> None:
    """It is an error that names the operator, and the next call runs."""
    u, weight = tensors(gpu)
    wanted = routed(gpu, u, weight)
    gpu.executor.refuse("cudaLaunchKernelExC", OUT_OF_RESOURCES)
    with pytest.raises(EnvironmentProblem, match="dynamic_routing"):
        routed(gpu, u, weight)
    found = routed(gpu, u, weight)
    gpu.wait()
    assert torch.equal(found, wanted)


CHECKS = {check.__name__: check for check in (graph, threads, layouts, refused_launch)}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](TorchFusedPtx().stand_in())
