"""Tasks that combine several parts: export, quantization and measurement in one call. Needs
torch.
"""

from __future__ import annotations
