"""Define the arguments of the JavaScript interfaces: the npm package, and the module of a compiled network.

``python -m tools.spec`` writes the table for both, and that of docs/how-to/browser.md. Both check a call
against it before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.spec.limits import LIMITS


@dataclass(frozen=True)
class WebArgument:
    """A number or switch that a call takes.

    Attributes:
        kind: ``whole``, ``number`` or ``switch``.
        least, most: bounds of a number; None if the network or nothing sets one.
        meaning: Markdown of the pages.
    """

    name: str
    kind: str
    meaning: str
    least: int | None = None
    most: int | None = None

    @property
    def wanted(self) -> str:
        """What it takes, in words."""
        if self.kind == "switch":
            return "true or false"
        noun = "a whole number" if self.kind == "whole" else "a number"
        if self.most is not None:
            return f"{noun} from {self.least} to {self.most}"
        return f"{noun} of at least {self.least}"


_SIDE = LIMITS["IMAGE_SIDE"].value
WEB_ARGUMENTS = (
    WebArgument("top", "whole", "classes in the ranking", 1),
    WebArgument("threshold", "number", "least score of a class in the ranking", 0, 1),
    WebArgument("invert", "switch", "dark ink on a light background"),
    WebArgument("trace", "switch", "the routing, iteration by iteration, in the answer"),
    WebArgument("threads", "whole", "threads of WebAssembly", 1, LIMITS["RUN_THREADS"].value),
    WebArgument("width", "whole", "width of the pixels of an image", 1, _SIDE),
    WebArgument("height", "whole", "their height", 1, _SIDE),
    WebArgument("channels", "whole", "their channels", 1, LIMITS["WIDTH"].value),
    WebArgument("classIndex", "whole", "number of a class, counted from 0", 0),
)

# The options that a call of the npm package takes, besides what it is called for.
WEB_OPTIONS = {
    "load": ("providers", "threads", "runtime", "limits"),
    "loadCompiled": ("limits",),
    "prepare": ("invert",),
    "predict": ("top", "threshold", "invert", "trace"),
}
