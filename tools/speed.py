"""Write the speed table of README.md and its chart from several runs of `benchmarks.peers`.

python -m tools.speed              # from the stored runs
python -m tools.speed peers.json   # stores this run too
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks.peers import OPENVINO, PLAIN, REFERENCE

Run: TypeAlias = dict[str, Any]
ROOT: Final = Path(__file__).resolve().parent.parent
RUNS: Final = ROOT / "docs/benchmarks/speed-runs.json"
README: Final = ROOT / "README.md"
CHART: Final = ROOT / "docs/assets/speed.svg"
CAPSEDGE: Final = "capsedge fused"
PEERS: Final = {
    CAPSEDGE: "capsedge",
    PLAIN: "plain, ONNX Runtime",
    OPENVINO: "plain, OpenVINO FP32",
    REFERENCE: "torch eager",
}
MODELS: Final = {
    "capsnet-mnist:3": "CapsNet-MNIST, 3 iterations",
    "attention-cifar10-simple:2": "Tsai et al. table 8, 2 passes",
    "attention-cifar10-simple:3": "the same, 3 passes",
    "em-smallnorb:3": "matrix capsules, smallNORB, 3 iterations",
}
BATCHES: Final = (1, 16)
THREADS: Final = 2
_BLOCK: Final = re.compile(
    r"(<!-- speed: tools/speed.py -->\n).*?(<!-- end of speed -->)", re.DOTALL
)

WIDTH, LABELS, VALUES, BAR, GAP = 600, 190, 110, 15, 5  # pixels
STYLE: Final = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 }
  .small { fill: #59636e }
  .page { fill: #ffffff } .ours { fill: #00796b } .theirs { fill: #9aa4ae }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 }
    .page { fill: #0d1117 } .ours { fill: #26a69a } .theirs { fill: #59636e }
  }
"""


def load_runs() -> list[Run]:
    """Every stored run, oldest first."""
    runs: list[Run] = json.loads(RUNS.read_text(encoding="utf-8"))
    return runs


def kept(document: dict[str, Any]) -> Run:
    """The figures from one run of `benchmarks.peers` that the table shows.

    Raises:
        KeyError: one of them was not measured.
    """
    rows = {
        (row["model"], row["batch"], row["peer"]): row
        for row in document["rows"]
        if row["threads"] == THREADS
    }
    chosen = [rows[m, b, p] for m in MODELS for b in BATCHES for p in PEERS]
    milliseconds = {
        model: {
            str(batch): {p: round(float(rows[model, batch, p]["median_ms"]), 4) for p in PEERS}
            for batch in BATCHES
        }
        for model in MODELS
    }
    return {
        "date": document["date"],
        "machine": document["machine"],
        "versions": sorted({re.split(r",| \(", row["version"])[0] for row in chosen}),
        "milliseconds": milliseconds,
    }


def ratios(runs: Sequence[Run], model: str, batch: int, peer: str) -> list[float]:
    """A peer's time relative to capsedge's in each run, in ascending order."""
    times = [run["milliseconds"][model][str(batch)] for run in runs]
    return sorted(found[peer] / found[CAPSEDGE] for found in times)


def table(runs: Sequence[Run]) -> str:
    """A description of the measurements, and the table, as Markdown."""
    last = runs[-1]
    machine = last["machine"]
    lines = [
        "Milliseconds per batch with capsedge, and how many times as long the others take: "
        f"{THREADS} threads, {machine['cpu']}, {machine['cores']} cores; {', '.join(last['versions'])}.",
        "",
        f"| model | batch | {' | '.join(PEERS.values())} |",
        "|---|---|---|---|---|---|",
    ]
    for model, title in MODELS.items():
        for batch in BATCHES:
            ours = last["milliseconds"][model][str(batch)][CAPSEDGE]
            cells = [f"**{_figure(ours)}**"]
            for peer in list(PEERS)[1:]:
                found = ratios(runs, model, batch, peer)
                cells.append(f"{_times(median(found))} ({_times(found[0])}-{_times(found[-1])})")
            lines.append(
                f"| {title if batch == BATCHES[0] else ''} | {batch} | {' | '.join(cells)} |"
            )
    dates = sorted({run["date"] for run in runs})
    days = f"{len(dates)} days ({', '.join(dates)})" if len(dates) > 1 else dates[0]
    lines += [
        "",
        f"Ratios are medians of {len(runs)} runs on {days}, with "
        "the smallest and the largest in brackets; milliseconds are those of the last run.",
    ]
    return "\n".join(lines) + "\n"


def chart(runs: Sequence[Run]) -> str:
    """Bars of the speed at batch 1, relative to the plain export in ONNX Runtime, as SVG; medians of runs."""
    batch = BATCHES[0]
    speeds: dict[str, dict[str, float]] = {}
    for model in MODELS:
        plain = median(ratios(runs, model, batch, PLAIN))
        speeds[model] = {p: plain / median(ratios(runs, model, batch, p)) for p in PEERS}
    most = max(max(found.values()) for found in speeds.values())
    unit = (WIDTH - LABELS - VALUES) / most
    parts, y = [], 28
    parts.append(
        _text(16, y, "Speed at batch 1, relative to the plain export in ONNX Runtime", "title")
    )
    for model, found in speeds.items():
        y += 30
        parts.append(
            _text(16, y, MODELS[model].replace("the same", "Tsai et al. table 8"), "title")
        )
        y += 8
        for peer, name in PEERS.items():
            speed = found[peer]
            length = max(speed * unit, 1.0)
            kind = "ours" if peer == CAPSEDGE else "theirs"
            parts.append(_text(16, y + BAR - 3, name))
            parts.append(
                f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>'
            )
            parts.append(_text(LABELS + length + 8, y + BAR - 3, _times(speed), "small"))
            y += BAR + GAP
    height = y + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img">\n<title>Speed relative to the plain export in ONNX Runtime</title>\n'
    )
    page = f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>'
    return "\n".join([f"{head}<style>{STYLE}</style>", page, *parts, "</svg>\n"])


def readme(text: str, runs: Sequence[Run]) -> str:
    """The README with the table of these measurements."""
    return _BLOCK.sub(lambda found: f"{found[1]}{table(runs)}{found[2]}", text)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y}">{escape(text)}</text>'


def _figure(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _times(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 0.995 else 1 if ratio < 9.95 else 0}f}x"


def main() -> None:
    """Store the given runs, and write the table and the chart."""
    runs = load_runs()
    runs += [kept(json.loads(Path(name).read_text(encoding="utf-8"))) for name in sys.argv[1:]]
    runs.sort(key=lambda run: str(run["date"]))
    RUNS.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), runs), encoding="utf-8")
    CHART.write_text(chart(runs), encoding="utf-8")
    print(f"wrote {README.name} and {CHART.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
