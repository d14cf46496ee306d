"""Work on ONNX graphs: bodies, rewrites, portable forms, quantized files. Needs onnx, no torch.

The exact rewrites (`Rewrites`):

1. *First pass uniform.* Before any agreement all parents are equal, so the first pass involves no routing.
   It is a GEMM (dense capsules) or `UniformRouting` (attention): an ordinary convolution and the layer
   normalization.
2. *Light cone.* In a concurrent schedule of ``T`` passes over layers ``1 .. N``, the output of layer
   ``k`` at pass ``t`` reaches the model's output only if ``t <= T - (N - k)``; the other nodes are omitted.
3. *Dead update.* The agreement after the last weighted sum and the E-step after the last M-step do not
   affect any output.
4. *Logit-free.* ``b_ij = log_prior_ij + vote_ij · (v_j of all passes so far)``: a running sum of
   parents replaces the running sum of logits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Rewrites:
    """The exact rewrites that an export uses; all by default."""

    first_pass_uniform: bool = True
    light_cone: bool = True
    dead_update: bool = True
    logit_free: bool = True

    @classmethod
    def none(cls) -> Rewrites:
        """No rewrites: the plain unrolled procedures."""
        return cls(**{f.name: False for f in fields(cls)})
