#!/usr/bin/env bash
# Print the path of nvcc: the one that NVCC names, or else that of the pinned packages of tools/nvcc.txt, which are
# installed in build/nvcc. It needs a C++ compiler, g++, and no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${NVCC:-}" ]; then
  echo "$NVCC"
  exit
fi
environment=$PWD/build/nvcc
if ! [ -f "$environment/.ready" ] || ! cmp -s tools/nvcc.txt "$environment/.ready"; then
  echo "Installing NVIDIA's CUDA compiler (150 MB) in build/nvcc: proprietary software; the packages contain its licence." >&2
  "${PYTHON:-python3}" -m venv "$environment" >&2
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r tools/nvcc.txt >&2
fi
nvcc=$(find "$environment" -path '*/nvidia/cu13/bin/nvcc' -print -quit)
chmod +x "$(dirname "$nvcc")"/* "$(dirname "$nvcc")/../nvvm/bin/"*
cp tools/nvcc.txt "$environment/.ready"
echo "$nvcc"
