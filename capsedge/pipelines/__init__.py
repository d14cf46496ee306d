"""Tasks that combine several parts: export, quantization and measurement in one call. Needs torch."""
