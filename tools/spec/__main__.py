"""Write the specification into C++, TypeScript and the documentation: ``python -m tools.spec``.

The output is checked in, so that C++ and npm build without Python. ``--check`` writes nothing and exits with
1 if something is not up to date.
"""

from __future__ import annotations

import argparse
import sys

from tools.spec.outputs import ROOT, outputs


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(prog="python -m tools.spec", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    try:
        made = outputs()
    except ValueError as error:
        print(f"nothing written: {error}", file=sys.stderr)
        return 1
    stale = []
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
