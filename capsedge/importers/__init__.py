"""``capsedge import``: trained weights of public families become checkpoints. Needs torch."""

from __future__ import annotations
