"""One line of ``capsedge doctor``."""

from __future__ import annotations

from dataclasses import dataclass

OK, MISSING, BROKEN = "ok", "missing", "broken"


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: the part.
        job: what needs it: ``infer`` (the base job), ``faster``, ``export``, ``gpu``, ``compare``.
        status: ``ok``, ``missing`` or ``broken``.
        found: version, path or the reason.
        cost: what is lost without it; empty when it is there.
        fix: the command that mends it; empty when it is there.
    """

    name: str
    job: str
    status: str
    found: str
    cost: str = ""
    fix: str = ""
