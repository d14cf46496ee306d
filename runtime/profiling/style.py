"""Colours and the page's style sheet. Groups have the colours of Okabe and Ito, safe for colour blindness."""

from __future__ import annotations

COLOURS = {
    "stem": "#0072B2",
    "votes": "#E69F00",
    "routing": "#009E73",
    "classifier": "#CC79A7",
    "decoder": "#56B4E9",
    "other": "#8A8F98",
}
_GROUPS = "".join(
    f".g-{name}{{fill:{colour};background:{colour}}}" for name, colour in COLOURS.items()
)

STYLE = (
    """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--text:#1b1f24;--soft:#57606a;--line:#d0d7de;
--bar:#0072B2;--good:#00785a}
@media (prefers-color-scheme:dark){:root{--bg:#0f1216;--card:#181c22;--text:#e6edf3;--soft:#9aa4af;
--line:#30363d;
--bar:#4aa3df;--good:#3fc39b}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:1.5rem;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:34px 0 12px;
overflow-wrap:anywhere}
header p,figure p,section>p:not(.caption){color:var(--soft);margin:4px 0}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:10px;margin:0 0 16px}
.numbers div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 12px}
.numbers dt{color:var(--soft);font-size:.8rem}.numbers dd{margin:0;font-size:1.2rem;font-weight:650;
font-variant-numeric:tabular-nums;white-space:nowrap}
.groups{display:flex;gap:2px;height:36px;border-radius:6px;overflow:hidden}
.groups span{flex:0 1 0;min-width:2px;color:#fff;font-weight:650;font-size:.85rem;text-align:center;
line-height:36px;
overflow:hidden;white-space:nowrap}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:6px 0 16px;padding:0;
font-size:.88rem}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.warnings{border-left:3px solid #D55E00;margin:0 0 16px;padding:8px 12px 8px 30px;background:var(--card);
font-size:.9rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;
min-width:0}
figcaption{font-weight:650;margin-bottom:8px}figure p{font-size:.82rem}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--text)}svg .tick,svg .title{fill:var(--soft)}
svg .label{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
svg .axis{stroke:var(--soft)}svg .grid{stroke:var(--line);stroke-width:.6}
svg .bar,svg .dot{fill:var(--bar)}
svg .mark{stroke:#D55E00;stroke-width:1.5;stroke-dasharray:4 3}svg .stable{fill:var(--line);opacity:.35}
svg .roof{fill:none;stroke:var(--text);stroke-width:1.8}svg circle{fill-opacity:.75}
.bars{display:grid;grid-template-columns:minmax(90px,max-content) 1fr max-content;gap:5px 10px;
align-items:center;
font-size:.88rem}
.bars .name{max-width:min(38ch,34vw);overflow-wrap:anywhere}.bars .track{background:var(--line);
border-radius:4px;height:14px}
.bars .fill{display:block;height:14px;border-radius:4px;min-width:1px}
.bars .value{font-variant-numeric:tabular-nums;color:var(--soft);white-space:nowrap}
.bars .row{display:contents}
details{margin-top:12px}summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto;margin:8px 0}table{border-collapse:collapse;font-size:.84rem;
font-variant-numeric:tabular-nums}
.caption{font-weight:650;margin:10px 0 0;color:var(--text)}th,td{text-align:right;padding:4px 10px;
border-bottom:1px solid
var(--line);white-space:nowrap}th:first-child,td:first-child{text-align:left;position:sticky;left:0;
background:var(--bg);white-space:normal;overflow-wrap:anywhere;
min-width:min(34vw,24ch);max-width:min(40vw,42ch)}.fastest td{font-weight:650;color:var(--good)}
th{color:var(--soft);
font-weight:600}
@media (max-width:560px){svg text{font-size:15px}.groups span{font-size:0}
.bars{grid-template-columns:1fr}.bars .row{display:grid;gap:1px 10px;margin-bottom:5px;
grid-template-columns:1fr fit-content(60%)}.bars .name{max-width:none}
.bars .value{white-space:normal;text-align:right}.bars .track{grid-area:2/1/3/3}}
"""
    + _GROUPS
    + ".groups .g-votes,.groups .g-decoder{color:#10151b}"  # white on a light colour is hard to read
)
