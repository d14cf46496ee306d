"""Work that takes several rooms: export, quantization and measurement in one call. Needs torch."""
