"""The process that takes a foreign file apart: `capsedge.runtime.files.confined`.

The file comes in over the standard input. A line of JSON goes out over the standard output, and after it
the new file. What is being done goes to the standard error, a line each, for the message of whoever waits.
"""

from __future__ import annotations

import json
import os
import sys

from capsedge.runtime.files.confined import confine


def main() -> None:
    """Improve the file on the standard input under the limits that the arguments name."""
    confine()
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    from capsedge.errors import CapsedgeError
    from capsedge.graph.recognize.improving import improve

    data = sys.stdin.buffer.read()
    model = b""
    try:
        improved = improve(data, lambda what: print(f"stage: {what}", file=sys.stderr, flush=True))
        document, model = improved.to_dict(), improved.model
    except CapsedgeError as error:
        document = {"error": [type(error).__name__, error.what, error.why, error.fix]}
    except MemoryError:
        document = {"error": ["UnsupportedModelError", "The file needs too much memory.", "", ""]}
    answer.write(json.dumps(document).encode() + b"\n" + model)
    answer.close()


if __name__ == "__main__":
    main()
