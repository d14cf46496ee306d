"""Verification: compares an artefact with its PyTorch source. Needs torch."""

from __future__ import annotations

from capsedge.verification.certificate import Certificate, Link
from capsedge.verification.verify import verify

__all__ = ["Certificate", "Link", "verify"]
