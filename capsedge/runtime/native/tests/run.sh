#!/usr/bin/env bash
# Runs the native tests in one of their builds:
#   capsedge/runtime/native/tests/run.sh plain|old|asan|tsan|arm CASES [BUILD]
# CASES is a folder filled by `python -m tests.conformance dump CASES --dtype float32 --dtype float16`, and BUILD is
# the build folder (default build/native-<kind>). `old` runs the plain build on emulated x86 processors without AVX
# and without AVX-512. Exit code 77 means that a tool is missing; the message names it.
set -euo pipefail
kind=${1:?plain, old, asan, tsan or arm}
cases=$(realpath "${2:?the folder with the cases}")
native=$(cd "$(dirname "$0")/.." && pwd)
build=${3:-build/native-$kind}

need() {
  command -v "$1" >/dev/null || { echo "$1 is missing: $2" >&2; exit 77; }
}
need cmake "pip install cmake"
options=(-DCMAKE_BUILD_TYPE=Release -DCAPSEDGE_TESTS=ON)
run=()
case $kind in
  plain) need c++ "apt-get install g++" ;;
  old) need c++ "apt-get install g++"; need qemu-x86_64 "apt-get install qemu-user" ;;
  asan) need c++ "apt-get install g++"; options+=(-DCAPSEDGE_SANITIZE=address,undefined) ;;
  tsan) need c++ "apt-get install g++"; options+=(-DCAPSEDGE_SANITIZE=thread) ;;
  arm)
    need aarch64-linux-gnu-g++ "apt-get install g++-aarch64-linux-gnu"
    need qemu-aarch64 "apt-get install qemu-user"
    options+=(--toolchain "$native/cmake/aarch64.cmake")
    run=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
    ;;
  *) echo "no build '$kind': plain, old, asan, tsan or arm" >&2; exit 2 ;;
esac

cmake -S "$native" -B "$build" "${options[@]}" >/dev/null
cmake --build "$build" --target capsedge_native_tests -j 2 >/dev/null
program=$build/tests/capsedge_native_tests
tests=("${run[@]}" "$program")
case $kind in
  tsan) "${tests[@]}" concurrent "$cases" ;;
  old)
    for processor in Nehalem Haswell; do
      # The emulator reports the processor features that it lacks on every start; none of them matters here.
      old() { qemu-x86_64 -cpu "$processor" "$program" "$@" 2> >(grep -v "TCG doesn't support" >&2); }
      old levels
      old cases "$cases"
    done
    ;;
  *)
    "${tests[@]}" math "${MATH_STEP:-4099}"
    "${tests[@]}" cases "$cases"
    "${tests[@]}" concurrent "$cases"
    ;;
esac
