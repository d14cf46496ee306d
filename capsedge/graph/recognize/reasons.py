"""Why something is left as it is."""

from __future__ import annotations


class NotRecognized(Exception):
    """What was looked at is no operator of this package; the message is the reason, for a person."""
