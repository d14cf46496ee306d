"""Capsule network architectures, built by name or from a configuration.

Everything is imported on first use; configurations and names do not need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsedge.models.attention_capsules import AttentionCapsules
    from capsedge.models.base import CapsuleModel, CapsuleOutput
    from capsedge.models.capsnet import CapsNet
    from capsedge.models.capsule_stack import CapsuleStack
    from capsedge.models.configs import ModelConfig
    from capsedge.models.deepcaps import DeepCaps
    from capsedge.models.efficient_capsnet import EfficientCapsNet
    from capsedge.models.fsanet import FSANet
    from capsedge.models.matrix_capsules import MatrixCapsules
    from capsedge.models.pscapsnet import PSCapsNet
    from capsedge.models.registry import MODELS, get_config
    from capsedge.models.segcaps import SegCaps

__all__ = [
    "MODELS",
    "AttentionCapsules",
    "CapsNet",
    "CapsuleModel",
    "CapsuleOutput",
    "CapsuleStack",
    "DeepCaps",
    "EfficientCapsNet",
    "FSANet",
    "MatrixCapsules",
    "ModelConfig",
    "PSCapsNet",
    "SegCaps",
    "build",
    "get_config",
    "with_iterations",
]

_HOMES = {
    "MODELS": "registry",
    "ModelConfig": "configs",
    "get_config": "registry",
    "AttentionCapsules": "attention_capsules",
    "CapsNet": "capsnet",
    "CapsuleModel": "base",
    "CapsuleOutput": "base",
    "EfficientCapsNet": "efficient_capsnet",
    "CapsuleStack": "capsule_stack",
    "DeepCaps": "deepcaps",
    "FSANet": "fsanet",
    "MatrixCapsules": "matrix_capsules",
    "PSCapsNet": "pscapsnet",
    "SegCaps": "segcaps",
}
_MODULES = {
    "capsnet": "CapsNet",
    "matrix-capsules": "MatrixCapsules",
    "attention-capsules": "AttentionCapsules",
    "efficient-capsnet": "EfficientCapsNet",
    "fsa-net": "FSANet",
    "fsa-net-pooled": "FSANet",
    "capsule-stack": "CapsuleStack",
    "pscapsnet": "PSCapsNet",
    "deep-caps": "DeepCaps",
    "segcaps": "SegCaps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def build(model: str | ModelConfig, **changes: Any) -> CapsuleModel:
    """Build a model with random weights.

    Args:
        model: a name of ``MODELS`` or a configuration.
        changes: fields of the configuration to change, such as ``iterations=2``.

    Raises:
        UsageError: no model has this name, or a field has an impossible value.
    """
    from capsedge.models.registry import get_config

    config = get_config(model) if isinstance(model, str) else model
    if changes:
        config = config.replace(**changes)
    module = __getattr__(_MODULES[config.architecture])
    built: CapsuleModel = module(config)
    return built


def with_iterations(model: CapsuleModel, iterations: int) -> CapsuleModel:
    """A network with the same weights and another number of routing iterations, in evaluation mode."""
    changed = build(model.config, iterations=iterations)
    changed.load_state_dict(model.state_dict())
    if model.origin is not None:
        changed.origin = model.origin.changed(
            f"{iterations} routing iterations instead of {model.config.iterations}"
        )
    changed.typical_input = model.typical_input
    changed.training_split = model.training_split
    return changed.eval()
