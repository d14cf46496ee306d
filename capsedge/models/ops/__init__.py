"""The capsule operators in PyTorch; docs/reference/operators.md is their specification.

Needs torch (``pip install 'capsedge[export]'``).
"""

from capsedge.models.ops.attention import attention_routing
from capsedge.models.ops.dynamic import dynamic_routing, vote_routing
from capsedge.models.ops.em import em_routing
from capsedge.models.ops.fused import FusedCalls, fused
from capsedge.models.ops.registration import decompositions
from capsedge.models.ops.self_attention import self_attention_routing
from capsedge.models.ops.squash import exponential_squash, squash

__all__ = [
    "FusedCalls",
    "attention_routing",
    "decompositions",
    "dynamic_routing",
    "em_routing",
    "exponential_squash",
    "fused",
    "self_attention_routing",
    "squash",
    "vote_routing",
]
