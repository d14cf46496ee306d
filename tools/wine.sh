#!/usr/bin/env bash
# What `make test-wine` needs of Debian: Wine for 64-bit programs (100 MB to download, 700 MB on disk), installed as root
# or by sudo.
set -euo pipefail
if command -v wine >/dev/null; then exit 0; fi
if ! command -v apt-get >/dev/null; then
  echo "error: Wine is installed on Debian and Ubuntu only: this system has no apt-get" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi
install=("${as_root[@]}" apt-get -qq install --yes --no-install-recommends wine wine64)
"${install[@]}" >/dev/null || { "${as_root[@]}" apt-get -qq update && "${install[@]}" >/dev/null; }
