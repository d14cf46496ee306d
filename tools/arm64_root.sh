#!/usr/bin/env bash
# What `make test-arm` needs of Debian: the emulator and the compiler for 64-bit ARM, installed as root or by sudo, and
# Debian's Python for ARM, unpacked in build/arm64-root, in which the test of the ARM wheel runs.
set -euo pipefail
cd "$(dirname "$0")/.."
target=build/arm64-root
if ! command -v apt-get >/dev/null; then
  echo "error: emulated ARM is tested on Debian and Ubuntu only: this system has no apt-get" >&2
  exit 1
fi
if ! command -v qemu-aarch64 >/dev/null || ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  as_root=()
  if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi
  install=("${as_root[@]}" apt-get -qq install --yes --no-install-recommends qemu-user g++-aarch64-linux-gnu)
  "${install[@]}" >/dev/null || { "${as_root[@]}" apt-get -qq update && "${install[@]}" >/dev/null; }
fi
if [ -x "$target/usr/bin/python3" ]; then exit 0; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/root"
touch "$work/status"
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State::status=$work/status"
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o APT::Sandbox::User=root
  -o APT::Install-Recommends=false)
apt-get "${options[@]}" update
apt-get "${options[@]}" --download-only --yes install python3 libstdc++6 libgomp1
for package in "$work"/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
rm -rf "$target"
mkdir -p build
mv "$work/root" "$target"
