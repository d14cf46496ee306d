"""Write the speed table of README.md and its chart from what `benchmarks.peers` measured.

python -m tools.speed
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import OPENVINO, PLAIN, REFERENCE

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs/benchmarks/peers.json"
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


def milliseconds(document: dict[str, Any], model: str, batch: int) -> dict[str, float]:
    """Medians of the four peers of the table.

    Raises:
        KeyError: one of them was not measured.
    """
    found = {
        row["peer"]: float(row["median_ms"])
        for row in document["rows"]
        if (row["model"], row["batch"], row["threads"]) == (model, batch, THREADS)
    }
    return {peer: found[peer] for peer in PEERS}


def table(document: dict[str, Any]) -> str:
    """What the times are of, and the table, as Markdown."""
    machine = document["machine"]
    versions = sorted(
        {f"{row['version']}".partition(",")[0] for row in document["rows"] if row["peer"] in PEERS}
    )
    lines = [
        f"Milliseconds per batch (medians), {THREADS} threads, {machine['cpu']}, {machine['cores']} cores; "
        f"{', '.join(versions)}.",
        "",
        f"| model | batch | {' | '.join(PEERS.values())} |",
        "|---|---|---|---|---|---|",
    ]
    for model, title in MODELS.items():
        for batch in BATCHES:
            times = milliseconds(document, model, batch)
            ours = times[CAPSEDGE]
            cells = [f"**{_figure(ours)}**"]
            cells += [
                f"{_figure(times[peer])} ({_times(times[peer] / ours)})" for peer in list(PEERS)[1:]
            ]
            lines.append(
                f"| {title if batch == BATCHES[0] else ''} | {batch} | {' | '.join(cells)} |"
            )
    return "\n".join(lines) + "\n"


def chart(document: dict[str, Any]) -> str:
    """Bars of the speed at batch 1, relative to the plain export in ONNX Runtime, as SVG."""
    times = {model: milliseconds(document, model, BATCHES[0]) for model in MODELS}
    most = max(found[PLAIN] / found[peer] for found in times.values() for peer in PEERS)
    unit = (WIDTH - LABELS - VALUES) / most
    parts, y = [], 28
    parts.append(
        _text(16, y, "Speed at batch 1, relative to the plain export in ONNX Runtime", "title")
    )
    for model, found in times.items():
        y += 30
        parts.append(
            _text(16, y, MODELS[model].replace("the same", "Tsai et al. table 8"), "title")
        )
        y += 8
        for peer, name in PEERS.items():
            speed = found[PLAIN] / found[peer]
            length = max(speed * unit, 1.0)
            kind = "ours" if peer == CAPSEDGE else "theirs"
            parts.append(_text(16, y + BAR - 3, name))
            parts.append(
                f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>'
            )
            label = f"{_times(speed)}, {_figure(found[peer])} ms"
            parts.append(_text(LABELS + length + 8, y + BAR - 3, label, "small"))
            y += BAR + GAP
    height = y + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img">\n<title>Speed relative to the plain export in ONNX Runtime</title>\n'
    )
    page = f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>'
    return "\n".join([f"{head}<style>{STYLE}</style>", page, *parts, "</svg>\n"])


def readme(text: str, document: dict[str, Any]) -> str:
    """The README with the table of these measurements."""
    return _BLOCK.sub(lambda found: f"{found[1]}{table(document)}{found[2]}", text)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y}">{escape(text)}</text>'


def _figure(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _times(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 0.995 else 1 if ratio < 9.95 else 0}f}x"


def main() -> None:
    """Write the table and the chart."""
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    README.write_text(readme(README.read_text(encoding="utf-8"), document), encoding="utf-8")
    CHART.write_text(chart(document), encoding="utf-8")
    print(f"wrote {README.name} and {CHART.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
