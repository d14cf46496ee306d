"""``capsedge import``: convert trained weights of public families to checkpoints. Needs torch."""

from __future__ import annotations
