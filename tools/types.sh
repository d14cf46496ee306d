#!/usr/bin/env bash
# Run mypy over the package as it is installed: capsedge with its rooms exporters, runtime, calibration inside.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
tree=build/types
rm -rf "$tree"
mkdir -p "$tree/capsedge"
for entry in "$PWD"/capsedge/*; do ln -s "$entry" "$tree/capsedge/"; done
for room in exporters runtime calibration; do ln -s "$PWD/$room" "$tree/capsedge/$room"; done
cd "$tree"
exec "$python" -m mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache "$@" -p capsedge
