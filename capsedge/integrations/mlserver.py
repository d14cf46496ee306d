"""capsedge as a runtime of MLServer: ``capsedge.integrations.mlserver.CapsedgeModel``.

``capsedge serve`` starts an MLServer with it; whoever runs MLServer themselves names it in
``model-settings.json``.
"""

from __future__ import annotations

from capsedge.serving.model import CapsedgeModel

__all__ = ["CapsedgeModel"]
