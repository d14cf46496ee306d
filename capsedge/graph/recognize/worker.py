"""The process that takes a foreign file apart: ``python -m MODULE SECONDS BYTES BATCH``.

The file comes in over the standard input. A line of JSON goes out over the standard output, and after it
the new file. What is being done goes to the standard error, a line each, for the message of whoever waits.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def main() -> None:
    """Improve the file on the standard input under the limits that the arguments name."""
    seconds, most = (int(word) for word in sys.argv[1:3])
    batch = int(sys.argv[3]) if sys.argv[3].isdigit() else sys.argv[3]
    _confine(seconds, most)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    from capsedge.errors import CapsedgeError
    from capsedge.graph.recognize.improving import improve
    from capsedge.graph.recognize.values import first_line

    data = sys.stdin.buffer.read()
    model = b""
    try:
        improved = improve(data, _say, batch)  # type: ignore[arg-type]
        document, model = improved.to_dict(), improved.model
    except CapsedgeError as error:
        document = {"error": [type(error).__name__, error.what, error.why, error.fix]}
    except MemoryError:
        document = {"error": ["UnsupportedModelError", "The file needs too much memory.", "", ""]}
    except Exception as error:  # what other libraries raise on odd files
        traceback.print_exc()
        why = f"While {_stages[-1]}, {type(error).__name__} says: {first_line(error)}"
        words = ["The file cannot be worked on.", why, "Use the file as it is."]
        document = {"error": ["UnsupportedModelError", *words]}
    answer.write(json.dumps(document).encode() + b"\n" + model)
    answer.close()


_stages = ["starting"]


def _say(what: str) -> None:
    _stages.append(what)
    print(f"stage: {what}", file=sys.stderr, flush=True)


def _confine(seconds: int, most: int) -> None:
    """Limit the processor time and the address space of this process, where the system can."""
    try:
        import resource
    except ImportError:
        return
    for kind, limit in ((resource.RLIMIT_CPU, 4 * seconds), (resource.RLIMIT_AS, most)):
        _, hard = resource.getrlimit(kind)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (least, hard))


if __name__ == "__main__":
    main()
