"""The tables of docs/benchmarks/serving.md, from the JSON of `benchmarks.serving`.

python -m benchmarks.serving_page
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import replace_between

PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks/serving.md"
JSON = PAGE.with_suffix(".json")
BEGIN, END = "<!-- tables -->", "<!-- end of the tables -->"
PEER, OWN, OTHER = "FastAPI", "capsedge", "the other capsedge"
_HEAD = (
    "server", "clients", "p50, ms", "p99, ms", "answers/s", "CPU s per 1,000", f"of {PEER}'s",
    "peak memory, MiB", "errors", "busiest client",
)  # fmt: skip


def table(model: dict[str, Any]) -> str:
    """A model's rows, faults and soak as Markdown."""
    rows = model["rows"]
    peers = {r["clients"]: r["cpu_s_per_1000"] for r in rows if r["server"] == PEER}
    rows = sorted(rows, key=lambda r: r["clients"])
    lines = [f"**{model['model']}**", "", *_lines(rows, peers)]
    if "faults" in model:
        lines += ["", "Faults, with 16 well-behaved clients:", "", *_lines(model["faults"], {})]
    if "soak" in model:
        lines += ["", _soak(model["soak"])]
    return "\n".join(lines)


def _lines(rows: Sequence[dict[str, Any]], peers: dict[int, float]) -> list[str]:
    head = [f"| {' | '.join(_HEAD)} |", "|---|" + "---:|" * (len(_HEAD) - 1)]
    return head + [f"| {' | '.join(_cells(row, peers))} |" for row in rows]


def _cells(row: dict[str, Any], peers: dict[int, float]) -> list[str]:
    served = row["most_mib"] > 0
    peer = peers.get(row["clients"]) if served else None
    return [
        row["server"],
        str(row["clients"]),
        _number(row["p50_ms"]),
        _number(row["p99_ms"]),
        f"{row['per_second']:,.0f}",
        f"{row['cpu_s_per_1000']:.2f}" if row["cpu_s_per_1000"] else "",
        f"{row['cpu_s_per_1000'] / peer:.2f}" if peer else "",
        f"{row['most_mib']:.0f}" if served else "",
        str(row["errors"]) if served else "",
        f"{row['busiest_client']:.0%}" if served else "",
    ]


def _ratios(models: Sequence[dict[str, Any]], what: str, key: str, peer: str) -> str:
    """A figure for each model as a multiple of another server's, by number of clients."""
    figures = [{(r["server"], r["clients"]): r[key] for r in m["rows"]} for m in models]
    clients = sorted({count for server, count in figures[0] if server == peer})
    if not clients:
        return ""
    lines = [f"| model | {' | '.join(map(str, clients))} |", "|---|" + "---:|" * len(clients)]
    for model, figure in zip(models, figures, strict=True):
        cells = [f"{figure[OWN, n] / figure[peer, n]:.2f}" for n in clients]
        lines.append(f"| {model['model']} | {' | '.join(cells)} |")
    head = f"{what} of `capsedge serve`, as a multiple of that of {peer}, by the number of clients:"
    return "\n".join([head, "", *lines])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _soak(found: dict[str, Any]) -> str:
    sizes = found["rss_mib"]
    return (
        f"Soak: {found['minutes']:g} minutes, {found['requests']:,} answers, {found['errors']} errors. "
        f"Resident memory in MiB after each twentieth: {', '.join(f'{size:.1f}' for size in sizes)}."
    )


def _more(seconds: float) -> str:
    return f", and {1e3 * seconds:g} ms per client" if seconds else ""


def render(document: dict[str, Any]) -> str:
    """The text between the markers of the page."""
    about = document["machine"]
    intro = (
        f"Measured on {about['cpu']}, {about['cores']} cores, {about['system']}, Python {about['python']}: "
        f"{document['rounds']} rounds of {document['seconds']:g} s per row"
        f"{_more(document['seconds_per_client'])}, all servers interleaved; "
        f"client processes: {document['client_processes']}; {document['minutes']:.0f} minutes in total."
    )
    everything = [r for m in document["models"] for r in [*m["rows"], *m.get("faults", [])]]
    wrong, lost = (sum(r[key] for r in everything) for key in ("wrong", "lost"))
    count = sum(r["requests"] for r in everything)
    checked = f"Of {count:,} answers {wrong} were wrong, and {lost} requests were never answered."
    models = document["models"]
    ratios = [_ratios(models, "Answers per second", "per_second", PEER)]
    for what, key in (("p50", "p50_ms"), ("p99", "p99_ms"), ("Processor time", "cpu_s_per_1000")):
        ratios.append(_ratios(models, what, key, OTHER))
    return "\n\n".join(["", intro, checked, *filter(None, ratios), *map(table, models), ""])


def write_page() -> None:
    """Write the tables into the page."""
    document = json.loads(JSON.read_text(encoding="utf-8"))
    replace_between(PAGE, BEGIN, END, render(document))


if __name__ == "__main__":
    write_page()
