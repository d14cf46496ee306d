#!/usr/bin/env bash
# Runs the README's example: export, prove, infer. Needs `capsedge` on the path.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p out/demo

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

show capsedge export --routing dynamic --iters 3 --with reconstruction -o out/demo/digits.onnx
show capsedge verify out/demo/digits.onnx -o out/demo/certificate.json
show capsedge infer --model out/demo/digits.onnx capsedge/zoo/samples/digit-*.png
show capsedge infer --model out/demo/digits.onnx --invert capsedge/zoo/samples/paper-5.png
show capsedge infer --model out/demo/digits.onnx --top 2 --reconstruct out/demo/seen.png \
  capsedge/zoo/samples/overlapping-2-4.png
