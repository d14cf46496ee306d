"""GPUs and what they do in a second, as NVIDIA documents it.

Sources: CUDA C++ Programming Guide, "Compute Capabilities" and "Arithmetic Instructions" (limits of a
multiprocessor, results per clock); for the devices, Jetson Orin Nano and Orin NX series data sheets (8 GB
and 16 GB modules at MAXN SUPER), H100 Tensor Core GPU data sheet and architecture white paper (SXM5), L4
data sheet, GeForce RTX 5090 (Blackwell architecture white paper). Clocks are the highest documented;
sustained ones are lower.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    """Limits and rates of a multiprocessor, by compute capability.

    Attributes:
        warps, blocks: that can be resident.
        registers: 32-bit, for all resident warps, given out 256 at a time for a warp.
        shared: bytes for all resident blocks, of which the system keeps 1024 for each.
        fma: warp instructions of FP32 arithmetic per clock; the same number can be issued.
    """

    warps: int
    blocks: int
    registers: int
    shared: int
    fma: int = 4


MULTIPROCESSORS = {
    87: Multiprocessor(48, 16, 65536, 164 * 1024),
    89: Multiprocessor(48, 24, 65536, 100 * 1024),
    90: Multiprocessor(64, 32, 65536, 228 * 1024),
    120: Multiprocessor(48, 24, 65536, 100 * 1024),
}
ISSUE = 4  # warp instructions per clock and multiprocessor: one for each of its four schedulers
SHARED_BYTES = 128  # per clock and multiprocessor


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        clock: Hz.
        bandwidth: bytes per second of DRAM.
        cache: bytes of the second-level cache.
    """

    name: str
    architecture: int
    multiprocessors: int
    clock: float
    bandwidth: float
    cache: int

    @property
    def clusters(self) -> bool:
        """Whether it has thread block clusters."""
        return self.architecture >= 90


DEVICES = (
    Device("Orin Nano 8 GB", 87, 8, 1.020e9, 102.4e9, 2 << 20),
    Device("Orin NX 16 GB", 87, 8, 1.173e9, 102.4e9, 2 << 20),
    Device("L4", 89, 58, 2.040e9, 300e9, 48 << 20),
    Device("H100 SXM", 90, 132, 1.980e9, 3350e9, 50 << 20),
    Device("RTX 5090", 120, 170, 2.407e9, 1792e9, 96 << 20),
)
