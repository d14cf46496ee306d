"""Files of weights, of whatever tool, as ``{name: array}`` and the configuration that the file holds."""
