"""The style sheet of the page: system fonts, light and dark, wide tables scroll inside their own box."""

CSS = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5c6370; --line: #dde1e6; --back: #ffffff; --card: #f6f7f9;
  --good: #1a7f37; --warn: #9a6700; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3af; --line: #363b42; --back: #16181c;
  --card: #1f2227; --good: #56d364; --warn: #e3b341; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; overflow-wrap: anywhere; }
h2 { margin: 2.4rem 0 .6rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); font-size: 1.15rem; }
p, li, dd { max-width: 60rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
section .soft { margin: 0; font-size: .9rem; }
.verdicts { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .8rem; padding: 0; }
.verdicts li { list-style: none; padding: .7rem .9rem; background: var(--card); border-left: 4px solid var(--line); }
.verdicts .good { border-color: var(--good); } .verdicts .warn { border-color: var(--warn); }
.verdicts .bad { border-color: var(--bad); }
.verdicts b { display: block; }
.scroll { overflow-x: auto; margin: .8rem 0 1.4rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; font-size: .87rem; white-space: normal; vertical-align: bottom; }
td.name, th.name { text-align: left; white-space: normal; overflow-wrap: break-word; min-width: 8rem;
  max-width: 22rem; }
td small { display: block; color: var(--soft); font-size: .78rem; }
.plots { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 1.6rem; }
figure { margin: 0; max-width: 100%; }
figure img { max-width: 100%; height: auto; padding: .6rem; background: #ffffff; border: 1px solid var(--line); }
details { margin: .4rem 0; padding: .4rem .7rem; background: var(--card); }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { margin: .6rem 0 .2rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .25rem 1rem; }
dt { font-weight: 600; overflow-wrap: anywhere; } dd { margin: 0; }
@media (max-width: 40rem) { dl { display: block; } dd { margin: 0 0 .5rem; } body { padding: .8rem; } }
@media print { body { max-width: none; } .scroll { overflow: visible; } }
"""
