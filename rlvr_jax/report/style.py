"""The page's only style sheet: system fonts, two themes, one column on a telephone."""

CSS = """
:root { color-scheme: light dark; --text: #1c1d1f; --soft: #5c6066; --line: #dcdee2; --page: #f6f7f8;
  --card: #fff; --good: #00674b; --bad: #a84300; --warn: #fff4d6; --bar: #0072b2; --code: #f3f4f6; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e7e9; --soft: #a3a8af; --line: #3a3d42;
  --page: #17181a; --card: #202225; --good: #4fc9a1; --bad: #f08a4b; --warn: #3a3115; --bar: #6ab7e6;
  --code: #191b1d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 44px 0 12px; }
h3 { font-size: 1rem; margin: 0 0 6px; }
p { margin: 0 0 12px; max-width: 78ch; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
p.soft { max-width: 100ch; }
.lead { font-size: 1.1rem; margin: 18px 0 20px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 18px; min-width: 0; }
.notes { background: var(--warn); border-radius: 10px; padding: 12px 18px; margin: 16px 0; }
.notes ul { margin: 4px 0 0; padding-left: 20px; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.big { font-size: 2rem; font-weight: 650; line-height: 1.15; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.big i { font-style: normal; color: var(--soft); font-weight: 400; }
.track { position: relative; height: 10px; margin: 10px 0 0; background: var(--code); border-radius: 5px; }
.track b { position: absolute; top: 2px; height: 6px; border-radius: 3px; background: var(--soft);
  opacity: .55; }
.track s { position: absolute; top: -2px; width: 4px; height: 14px; margin-left: -2px; border-radius: 2px;
  background: var(--soft); }
.track.after b, .track.after s { background: var(--bar); }
.ends { display: flex; justify-content: space-between; color: var(--soft); font-size: .75rem; }
.curves, .curves > div { display: flex; gap: 16px; }
.curves > div { flex: 1; min-width: 0; flex-direction: column; }
figure { margin: 0; }
@media (max-width: 900px) { .curves { flex-direction: column; } .curves > div { display: contents; } }
figure img { display: block; width: 100%; max-width: 100%; height: auto; background: #fff;
  border-radius: 6px; }
figcaption { margin-top: 8px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 14px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 400; white-space: nowrap; }
tbody th.part { font-weight: 650; padding-top: 14px; }
td.n, th.n { text-align: right; white-space: nowrap; }
td > b { white-space: nowrap; }
td.n small { display: block; color: var(--soft); }
pre { margin: 4px 0 0; padding: 8px 10px; background: var(--code); border-radius: 6px; overflow: auto;
  max-height: 16em; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .86rem/1.45 ui-monospace, Menlo, Consolas, "Liberation Mono", monospace; }
td pre { margin: 0; min-width: 200px; max-height: 9em; }
.mark { color: var(--soft); opacity: .8; }
.samples { display: grid; gap: 14px; }
.pair { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr));
  margin-top: 10px; }
details { margin: 10px 0; } summary { cursor: pointer; padding: 4px 0; }
li { margin-bottom: 6px; max-width: 78ch; }
@media (max-width: 600px) { main { padding: 20px 14px 48px; } .card { padding: 14px; }
  th, td { padding: 6px 8px; } table.narrow { font-size: .84rem; }
  table.narrow th, table.narrow small { white-space: normal; } }
"""
