"""The results page: rules, tables and a chart per submission."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.capsbench import submission
from benchmarks.capsbench.rules import MULTI, OFFLINE, SCENARIOS, SERVER, SINGLE, Scenario
from benchmarks.common import replace_between
from capsedge.runtime.result_summary import save_figure

COLUMNS = (SINGLE, MULTI, SERVER, OFFLINE)
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


def write(page: Path, folder: Path) -> None:
    """Write the scenarios and the results into the page, and the charts beside the submissions.

    Raises:
        ValueError: a submission is invalid, or the page has no markers.
    """
    documents = [submission.read(path) for path in sorted(folder.glob("*.json"))]
    sections = []
    for document in documents:
        picture = folder / f"{document['name']}.png"
        chart(document, picture)
        sections.append(section(document, picture.relative_to(page.parent)))
    for name, text in (("scenarios", scenarios()), ("results", "\n".join(sections))):
        replace_between(page, BEGIN.format(name), END.format(name), text)


def scenarios() -> str:
    """The table of scenarios."""
    rows = [f"| {s.name} | {s.text} | {s.queries} |" for s in SCENARIOS.values()]
    return "\n".join(["| scenario | measures | minimum queries |", "|---|---|---|", *rows])


def section(document: dict[str, Any], picture: Path) -> str:
    """The tables of one machine."""
    m = document["machine"]
    also = f", {m['accelerator']}" if "accelerator" in m else ""
    lines = [
        f"## {document['name']}",
        "",
        f"{m['cpu']}{also}, {m['cores']} core{'s' * (m['cores'] > 1)}, {m['system']}, Python {m['python']},",
        f"LoadGen {document['loadgen']};",
        f"`{document['command']}`; [submission](capsbench/{document['name']}.json).",
        "",
        f"![SingleStream on {document['name']}: latency of each runtime by model]({picture.as_posix()})",
        "",
    ]
    rows = document["rows"]
    measured = {r.get("scenario") for r in rows}
    columns = [s for s in COLUMNS if s.name in measured]
    for model in dict.fromkeys(r["model"] for r in rows):
        mine = [r for r in rows if r["model"] == model]
        weights = "trained" if mine[0]["trained"] else "random weights"
        lines += [f"### {model}", "", f"{mine[0]['iterations']} iterations, {weights}.", ""]
        lines += table(mine, columns)
    versions = sorted({r["version"] for r in rows if "version" in r})
    return "\n".join([*lines, "Versions: " + "; ".join(versions) + ".", ""])


def table(rows: list[dict[str, Any]], columns: Sequence[Scenario] = COLUMNS) -> list[str]:
    """A model's table: one row per runtime and precision."""
    energy = any(r.get("joules_per_image") is not None for r in rows)
    heads = ["", *(f"{s.name}, {'ms' if s.is_latency else 'images/s'}" for s in columns)]
    heads += ["accuracy", "agreement", "KiB", *(["mJ per image"] if energy else [])]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for runtime, precision in dict.fromkeys((r["runtime"], r["precision"]) for r in rows):
        mine = [r for r in rows if (r["runtime"], r["precision"]) == (runtime, precision)]
        lines.append(
            "| " + " | ".join([f"{runtime}, {precision}", *_cells(mine, columns, energy)]) + " |"
        )
    return [*lines, ""]


def _cells(rows: list[dict[str, Any]], columns: Sequence[Scenario], energy: bool) -> list[str]:
    done = {r["scenario"]: r for r in rows if "scenario" in r}
    error = next((r["error"] for r in rows if "error" in r), "")
    if not done:
        return [_short(error), *[""] * (len(columns) + 2 + energy)]
    cells = [_figure(done[s.name]) if s.name in done else _short(error) for s in columns]
    any_row = next(iter(done.values()))
    accuracy = any_row["accuracy"]
    cells += [
        "" if accuracy is None else f"{100 * accuracy:.2f} %",
        f"{100 * any_row['agreement']:.2f} %",
        f"{any_row['bytes'] / 1024:.0f}",
    ]
    if energy:
        joules = done.get(OFFLINE.name, any_row)["joules_per_image"]
        cells.append("" if joules is None else f"{1e3 * joules:.2f}")
    return cells


def _figure(row: dict[str, Any]) -> str:
    if not row["valid"]:
        return f"invalid: {_short(row['reason'])}" if row["reason"] else "invalid"
    return f"{1e-6 * row['result']:.3f}" if row["unit"] == "ns" else f"{row['result']:.0f}"


def _short(text: str) -> str:
    """An error as a table cell."""
    found = " ".join(text.split())
    found = found if len(found) <= 120 else found[:117] + "..."
    return found.replace("|", "\\|").replace("<", "&lt;")


def chart(document: dict[str, Any], path: Path) -> None:
    """Draw SingleStream: a panel per model, a bar per runtime and precision."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    rows = [r for r in document["rows"] if r.get("scenario") == SINGLE.name and r["valid"]]
    models = list(dict.fromkeys(r["model"] for r in rows)) or [""]
    wide = 2 if len(models) > 1 else 1
    high = -(-len(models) // wide)
    figure, axes = pyplot.subplots(high, wide, figsize=(6 * wide, 3.4 * high), squeeze=False)
    for axis, model in zip(axes.flat, models, strict=False):
        mine = sorted((r for r in rows if r["model"] == model), key=lambda r: float(r["result"]))
        names = [f"{r['runtime']}, {r['precision']}" for r in mine]
        colours = [
            "#0b6e4f" if r["runtime"] in ("capsedge", "tensorrt") else "#9aa5b1" for r in mine
        ]
        bars = axis.barh(names, [1e-6 * r["result"] for r in mine], color=colours)
        axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=7)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.invert_yaxis()
        axis.set_title(model, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.margins(x=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(models) :]:
        axis.set_axis_off()
    figure.suptitle(
        "SingleStream: 90th percentile of the latency in milliseconds (log scale)", fontsize=10
    )
    figure.tight_layout()
    save_figure(figure, path)
    pyplot.close(figure)
