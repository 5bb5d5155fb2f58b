"""The style sheet of a report, written into the page so that the file stands alone."""

STYLE = """
:root { color-scheme: light dark; --page: #f4f6f8; --card: #ffffff; --ink: #1f2933;
  --muted: #66727f; --line: #e3e7ec; --accent: #1d5fbf; --soft: #c3cad3; --warn: #8a4b08;
  --warn-card: #fff6e5; }
@media (prefers-color-scheme: dark) { :root { --page: #12171d; --card: #1b222a; --ink: #e4e9ee;
  --muted: #9aa7b4; --line: #2c3640; --accent: #6aa5f5; --soft: #4a5663; --warn: #ffd08a;
  --warn-card: #33270f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 56px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 1.12rem; margin: 36px 0 10px; }
h3 { font-size: .92rem; font-weight: 600; margin: 0 0 10px; }
p { margin: 6px 0 12px; }
.lead { font-size: 1.06rem; max-width: 78ch; }
.note { color: var(--muted); font-size: .88rem; max-width: 92ch; }
.warning { background: var(--warn-card); color: var(--warn); border-radius: 8px;
  padding: 8px 14px; font-size: .92rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px; }
.tiles { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr));
  margin: 14px 0; }
.tiles.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
.tile { padding: 13px 16px; }
.tile .name, .tile .more { color: var(--muted); font-size: .82rem; }
.tile .value { font-size: 1.5rem; font-weight: 650; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
.tile .value.absent { font-size: 1.1rem; font-weight: 500; color: var(--muted); padding: 6px 0; }
.bar { display: grid; grid-template-columns: 5.4em 1fr 3.6em; gap: 8px; align-items: center;
  font-size: .84rem; margin-top: 3px; }
.bar .track { background: var(--line); border-radius: 3px; height: 9px; }
.bar .fill { background: var(--soft); border-radius: 3px; height: 9px; }
.bar.first .fill { background: var(--accent); }
.bar .number { text-align: right; font-variant-numeric: tabular-nums; }
.figures { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
figure { margin: 0; }
figure.plot { background: #ffffff; color: #1f2933; padding: 12px 12px 8px; }
figure.plot h3 { margin: 0 0 2px; }
figure.plot svg { display: block; width: 100%; height: auto; }
figure.plot svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif !important; }
.pictures { display: grid; gap: 18px 8px; grid-template-columns: repeat(8, 1fr); }
.pictures img { display: block; width: 100%; height: auto; }
.block { background: #ffffff; color: #1f2933; margin-bottom: 14px; }
.scroll { overflow-x: auto; padding: 4px 0; }
table { border-collapse: collapse; width: 100%; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 7px 12px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { color: var(--muted); font-weight: 600; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { text-align: left; }
tbody tr:last-child :is(td, th) { border-bottom: 0; }
tr.total td { font-weight: 650; border-top: 2px solid var(--line); }
.facts th { text-align: left; font-weight: 500; color: var(--muted); width: 1%; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.chip { display: inline-block; width: 13px; height: 13px; border-radius: 3px;
  border: 1px solid #9fb4cf; margin-right: 8px; vertical-align: -2px; }
.columns { display: grid; gap: 14px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
.columns h2 { margin-top: 28px; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .86rem;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 600px) { main { padding: 18px 12px 40px; } h1 { font-size: 1.3rem; }
  .tiles { grid-template-columns: 1fr 1fr; } .tiles.wide { grid-template-columns: 1fr; }
  .tile { padding: 10px 12px; }
  .tiles:not(.wide) .tile:last-child:nth-child(odd) { grid-column: span 2; }
  .tile .value { font-size: 1.3rem; } .card { padding: 12px; }
  .pictures { grid-template-columns: repeat(4, 1fr); } th, td { padding: 6px 9px; } }
"""
