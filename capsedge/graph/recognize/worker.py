"""The process that takes a foreign file apart: `capsedge.runtime.files.confined`, with the batch as its word.

The file comes in over the standard input. A line of JSON goes out over the standard output, and after it
the new file. What is being done goes to the standard error, a line each, for the message of whoever waits.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from capsedge.runtime.files.confined import confine


def main() -> None:
    """Improve the file on the standard input under the limits that the arguments name."""
    (word,) = confine()
    batch = int(word) if word.isdigit() else word
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


if __name__ == "__main__":
    main()
