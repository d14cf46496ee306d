"""The capsule operators in PyTorch; docs/reference/operators.md is their specification.

Needs torch (``pip install 'capsedge[export]'``).
"""

from capsedge.ops._decompositions import decompositions
from capsedge.ops.attention_routing import attention_routing
from capsedge.ops.dynamic_routing import dynamic_routing
from capsedge.ops.em_routing import em_routing
from capsedge.ops.self_attention_routing import self_attention_routing
from capsedge.ops.squash import exponential_squash, squash
from capsedge.ops.vote_routing import vote_routing

__all__ = [
    "attention_routing",
    "decompositions",
    "dynamic_routing",
    "em_routing",
    "exponential_squash",
    "self_attention_routing",
    "squash",
    "vote_routing",
]
