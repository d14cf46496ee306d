#!/usr/bin/env bash
# Unpack Debian's Python for 64-bit ARM in build/arm64-root, for qemu-aarch64: the test of the ARM wheel runs in it.
# Nothing is installed. Needs Debian (apt-get, dpkg-deb); if this fails, the script prints the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
target=build/arm64-root
if [ -x "$target/usr/bin/python3" ]; then exit 0; fi
if ! command -v apt-get >/dev/null; then
  echo "no Python for ARM: this is not Debian" >&2
  exit 1
fi
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
