"""The version of the package; pyproject.toml, the C header and the npm package repeat it."""

VERSION = "0.1.0"
