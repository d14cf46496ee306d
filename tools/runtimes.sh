#!/usr/bin/env bash
# runtimes.sh DIR: virtual environments of other runtimes for `python -m benchmarks.portability --environments DIR`.
# Each runtime has its own environment, so that no converter touches the packages of this project. PYTHON312 names a
# Python 3.12, which onnx2tf needs; without it, LiteRT is left out.
set -euo pipefail
folder=${1:?usage: tools/runtimes.sh DIR}
python=${PYTHON:-python3}
mkdir -p "$folder"

make() { # NAME INTERPRETER PACKAGE...
  local name=$1 interpreter=$2
  shift 2
  "$interpreter" -m venv "$folder/$name"
  "$folder/$name/bin/python" -m pip install --quiet "$@"
}

make mnn "$python" --no-deps MNN numpy
make tract "$python" tract numpy
make ncnn "$python" --no-deps ncnn pnnx numpy
# ExecuTorch uses the torch version named here; its converters for other platforms are not needed.
make executorch "$python" torch==2.13.0 numpy pandas pyyaml ruamel.yaml tabulate flatbuffers expecttest \
  hypothesis parameterized requests packaging
"$folder/executorch/bin/python" -m pip install --quiet --no-deps executorch 'torchao>=0.18,<0.19' \
  pytorch-tokenizers hydra-core omegaconf scikit-learn
if command -v "${PYTHON312:-python3.12}" >/dev/null; then
  make litert "${PYTHON312:-python3.12}" onnx2tf ai-edge-litert
else
  echo "no Python 3.12: LiteRT is left out" >&2
fi
