"""Define the CSS of the HTML page: light or dark as in the reader's system, for screens from a phone's width on, and
for paper."""

STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --card: #ffffff; --ink: #1d2126; --soft: #59616b; --rule: #e3e0da;
  --grid: #e9e6e0; --go: #0068a8; --one: #b07400; --warm: #c8500a; --before: #007f5f; --floor: #767c84;
  --good: #1a7145; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --card: #1c2024; --ink: #e9e7e3; --soft: #a5adb6; --rule: #31373d; --grid: #2b3136;
    --go: #62b5ee; --one: #ecb040; --warm: #ff8a4c; --before: #3fcfa2; --floor: #98a0a8; --good: #5fd093;
    --bad: #ff8b82; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif;
  overflow-wrap: break-word; }
main { max-width: 1040px; margin: 0 auto; padding: 48px 24px 72px; }
h1 { font-size: clamp(1.55rem, 1.1rem + 2vw, 2.3rem); line-height: 1.2; letter-spacing: -.015em; margin: 10px 0 20px;
  text-wrap: balance; max-width: 26em; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 52px 0 6px; }
h3 { font-size: .95rem; margin: 0 0 4px; }
p { margin: 0 0 12px; max-width: 44em; }
.kicker, .note, .small, figcaption, caption { color: var(--soft); }
.kicker { font-size: .9rem; margin: 0; }
.lead { font-size: 1.08rem; }
.note { font-size: .92rem; }
code, pre { font: .88em/1.5 ui-monospace, monospace; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px 14px; margin: 0 0 12px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; }
.verdict { margin-top: 26px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  border-spacing: 0; border-collapse: separate; overflow: hidden; }
.verdict th, .verdict td { padding: 8px 16px; vertical-align: top; border-top: 1px solid var(--rule); }
.verdict thead th { border-top: 0; font-size: .88rem; color: var(--soft); padding: 12px 16px; }
.verdict tbody th[scope=row] { font-weight: 500; width: 30%; }
.verdict .group th { font-size: .82rem; color: var(--soft); background: var(--page); padding: 7px 16px; }
.verdict .small { display: block; font-size: .84rem; }
.tone { font-weight: 650; }
.faster { color: var(--good); } .slower { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 26px 34px;
  margin-top: 16px; }
.plots figure { margin: 0; min-width: 0; max-width: 470px; }
figure svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .tick, svg .axis { fill: var(--soft); font-size: 11px; }
svg .times, svg .value { font-weight: 600; } svg .case { font-size: 12.5px; }
svg .halo { paint-order: stroke; stroke: var(--page); stroke-width: 5px; stroke-linejoin: round; }
svg .grid { stroke: var(--grid); fill: none; } svg .range { stroke: var(--rule); stroke-width: 3; fill: none; }
.s-go { fill: var(--go); } .s-one-shot { fill: var(--one); } .s-warm { fill: var(--warm); }
.s-before { fill: var(--before); } .s-floor { fill: var(--floor); }
.curve.s-go { stroke: var(--go); } .curve.s-one-shot { stroke: var(--one); } .curve.s-warm { stroke: var(--warm); }
.curve.s-before { stroke: var(--before); } svg .curve.s-floor { stroke: var(--floor); stroke-width: 1.4; }
svg .curve { fill: none; stroke-width: 2.2; stroke-linejoin: round; } svg .dashed { stroke-dasharray: 6 4; }
svg .dotted { stroke-dasharray: 1.5 4; stroke-linecap: round; }
svg .name.s-go { fill: var(--go); } svg .name.s-one-shot { fill: var(--one); } svg .name.s-warm { fill: var(--warm); }
svg .name.s-before { fill: var(--before); } svg .name.s-floor { fill: var(--floor); }
svg .name { font-weight: 600; font-size: 11.5px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; padding: 0; margin: 10px 0 0;
  font-size: .9rem; }
.legend svg { width: 16px; height: 16px; vertical-align: -3px; margin-right: 6px; }
details { border-top: 1px solid var(--rule); } details:last-of-type { border-bottom: 1px solid var(--rule); }
summary { padding: 10px 0; font-weight: 600; cursor: pointer; }
.scroll { overflow-x: auto; margin-bottom: 10px; }
.figures { font-size: .84rem; white-space: nowrap; }
.figures th, .figures td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--grid); text-align: right; }
.figures .label { text-align: left; font-weight: 400; }
.figures thead th { color: var(--soft); vertical-align: bottom; }
dl { display: grid; grid-template-columns: minmax(9em, 15em) 1fr; gap: 6px 20px; margin: 12px 0; font-size: .94rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
li { margin-bottom: 5px; max-width: 46em; }
ul.plain { padding-left: 1.2em; }
:focus-visible { outline: 2px solid var(--go); outline-offset: 2px; }
@media (max-width: 640px) {
  main { padding: 26px 16px 48px; } h2 { margin-top: 40px; }
  .verdict thead { display: none; } .verdict tr, .verdict th, .verdict td { display: block; width: auto; }
  .verdict th, .verdict td { border: 0; padding: 2px 14px; }
  .verdict tbody th[scope=row] { width: auto; font-weight: 650; padding-top: 12px; border-top: 1px solid var(--rule); }
  .verdict td[data-side]::before { content: attr(data-side); display: block; color: var(--soft);
    font-size: .86rem; }
  .verdict td { padding-bottom: 6px; }
  .verdict .group th { padding: 8px 14px; } .verdict td:last-child { padding-bottom: 12px; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 9px; } }
@media print {
  :root { --page: #fff; } main { max-width: none; padding: 0; }
  figure, .verdict tr { break-inside: avoid; } .figures { white-space: normal; } }
"""
