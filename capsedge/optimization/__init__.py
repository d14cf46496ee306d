"""Tasks that combine export, quantization and measurement. Needs torch."""

from __future__ import annotations
