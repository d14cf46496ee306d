#!/usr/bin/env bash
# Fetch ONNX Runtime's official C header into build/onnxruntime-headers, for the test that compares it with our
# declaration of the ABI. Debian's own archive has it in libonnxruntime-dev, from Debian 13 on. On Debian 12, the
# package of Debian 13 is downloaded and unpacked but not installed. If this fails, the script prints the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
target=build/onnxruntime-headers
if [ -n "$(find "$target" -name onnxruntime_c_api.h 2>/dev/null)" ]; then exit 0; fi
if ! command -v apt-get >/dev/null; then
  echo "no official ONNX Runtime header: this is not Debian" >&2
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/parts" "$target"
# The machine's own mirror, with Debian 13 as the release.
mirror=$( (cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null || true) |
  sed -nE 's/^(URIs: *|deb +)(\S+\/debian)(\s.*)?$/\2/p' | head -n 1)
if [ -z "$mirror" ]; then
  echo "no official ONNX Runtime header: found no Debian mirror in apt's sources" >&2
  exit 0
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror trixie main" > "$work/sources.list"
options=(-o "Dir::Etc::SourceList=$work/sources.list" -o "Dir::Etc::SourceParts=$work/parts"
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o APT::Sandbox::User=root)
if apt-get "${options[@]}" -qq update &&
  (cd "$work" && apt-get "${options[@]}" -qq download libonnxruntime-dev); then
  dpkg-deb -x "$work"/libonnxruntime-dev_*.deb "$target"
  find "$target" -name onnxruntime_c_api.h
else
  echo "no official ONNX Runtime header: could not download libonnxruntime-dev from Debian's archive" >&2
fi
