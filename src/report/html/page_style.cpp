#include "report/html/html_text.hpp"

namespace glu_ckpt {

std::string_view page_style() {
  return R"css(
:root { color-scheme: light dark; --page: #ffffff; --text: #1b1f24; --quiet: #57606a; --line: #d0d7de; --soft: #f3f5f7;
  --link: #0550ae; --warn: #8a2c0d; --gate: #2f6db5; --up: #e08214; --unknown: #9aa3ad; --bar: #5b7fa6; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1419; --text: #e6e9ec; --quiet: #a2abb5; --line: #37404a;
  --soft: #1a2128; --link: #79b8ff; --warn: #ffab70; --gate: #5b9ee6; --up: #f2a33c; --unknown: #6b7580;
  --bar: #7ea6d3; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 1rem 1.25rem 3rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); }
p, figcaption, li { max-width: 46rem; }
a { color: var(--link); }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--page); padding: .3rem .6rem; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
code { font: .875em ui-monospace, monospace; overflow-wrap: anywhere; unicode-bidi: isolate; }
.made { color: var(--quiet); max-width: none; overflow-wrap: anywhere; }
/* A monitor has room for two things side by side. */
@media (min-width: 72rem) { main { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); column-gap: 3rem; }
  main > * { grid-column: 1 / -1; } main > p { margin: .4rem 0; } [aria-labelledby="summary"], [aria-labelledby="rows"] { grid-column: auto; } }
[aria-labelledby="bytes"] { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  column-gap: 3rem; }
[aria-labelledby="bytes"]:has(td + td) { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); --step: .05rem; }
[aria-labelledby="bytes"] > h2 { grid-column: 1 / -1; } .words, .bytes { width: 100%; }
@media (min-width: 46rem) { [aria-labelledby="summary"] tbody th, .bytes :is(th, td) { white-space: nowrap; } }
/* A shadow at an edge says that there is more beyond it. */
.wide { position: relative; overflow-x: auto; margin: .6rem 0; background:
  linear-gradient(90deg, var(--page) 30%, transparent) 0 0 / 2.5rem 100% no-repeat local,
  linear-gradient(-90deg, var(--page) 30%, transparent) 100% 0 / 2.5rem 100% no-repeat local,
  linear-gradient(90deg, var(--line), transparent) 0 0 / .8rem 100% no-repeat scroll,
  linear-gradient(-90deg, var(--line), transparent) 100% 0 / .8rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--quiet); padding-bottom: .3rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
.silent caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.numbers th, .numbers td { white-space: nowrap; }
.numbers td, .numbers thead th:not(:first-child) { text-align: right; }
.tensors td:nth-last-child(-n + 2), .tensors thead th:nth-last-child(-n + 2) { text-align: left; }
.numbers tbody th { overflow-wrap: anywhere; }
:target { background: var(--soft); outline: 2px solid var(--link); }
.warn { color: var(--warn); border-left: .3rem solid currentColor; padding-left: .7rem; }
.verdict { font-size: 1.1rem; font-weight: 600; max-width: none; }
.bar { display: inline-block; width: calc(var(--percent) * var(--step, .07rem)); height: .7rem; background: var(--bar); vertical-align: baseline; margin-right: .5rem; }
@media (max-width: 40rem) { .bar { width: calc(var(--percent) * .04rem); } }
figure { margin: .8rem 0 1.4rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 60rem; }
.slim { display: none; } .slim text { font-size: 11px; }
@media (max-width: 46rem) { .broad { display: none; } figure .slim { display: block; max-width: 28rem; } }
@media (min-width: 72rem) { .broad { display: none; } figure .slim { display: block; max-width: 31rem; } }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
.key { white-space: nowrap; }
.gate { fill: var(--gate); } .up { fill: var(--up); } .unknown { fill: var(--unknown); }
.key::before { content: ""; display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; }
.key.g::before { background: var(--gate); } .key.u::before { background: var(--up); }
form { display: flex; flex-wrap: wrap; gap: .6rem 1rem; } fieldset { border: 1px solid var(--line); padding: .3rem .8rem .5rem; margin: 0; min-width: 0; }
.choice { display: inline-block; margin-right: 1rem; }
.heat table { border-spacing: 0; border-collapse: separate; }
.heat .cells { table-layout: fixed; width: calc(100% - 4rem); margin-right: 4rem; }
/* What is out of sight is not laid out before somebody scrolls there: a map may have 20,000 cells. */
.late { content-visibility: auto; contain-intrinsic-size: auto 60rem; }
.heat .cells th, .heat .cells td { padding: var(--pad, 0); border: 0; line-height: 1; white-space: nowrap; }
.heat .cells tbody th { position: sticky; left: 0; background: var(--page); padding: 0 .5rem 0 0; font-size: .7rem;
  font-weight: 400; vertical-align: middle; z-index: 1; }
.heat .cells thead th { font-size: 0; overflow: visible; }
.heat .cells thead th.n { font-size: .7rem; font-weight: 400; padding-bottom: .3rem; }
.heat .cells td { font-size: var(--font, 0); line-height: var(--height, 0); position: relative; counter-increment: expert; }
.heat .cells tr { counter-reset: expert -1; }
.heat .cells b { font-weight: 400; }
.heat .cells td:hover { outline: 2px solid var(--text); z-index: 2; }
.heat .cells td:hover b { position: absolute; left: 0; top: calc(100% + .3rem); z-index: 3; padding: .25rem .5rem;
  font-size: .8rem; line-height: 1.2; color: var(--text); background: var(--page); border: 1px solid var(--text); }
.heat .cells td:hover b.r { left: auto; right: 0; }
.heat .cells td:hover b::before { content: var(--layer, "") "expert " counter(expert) ": "; }
.heat .wide { padding-bottom: 2.2rem; }
.heat tr:hover > th { text-decoration: underline; }
.heat .z { background: var(--soft); }
.heat .x { background: repeating-linear-gradient(45deg, var(--line) 0 2px, var(--page) 2px 4px); }
/* Cells inherit it: looking for #numbers from each of them takes a quarter of the time that the page takes. */
.heat:has(#numbers:checked) { --font: .75rem; --height: 1.2; --pad: .15rem .4rem; }
.heat:has(#numbers:checked) .cells { table-layout: auto; width: auto !important; }
.heat:has(#numbers:checked) .cells thead th { font-size: .7rem; font-weight: 400; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem .6rem; align-items: center; color: var(--quiet); }
.ramp { white-space: nowrap; } .own, .heat:has(#each:checked) .whole { display: none; }
.heat:has(#each:checked) .own { display: inline; } .heat:has(#each:checked) .ramp { white-space: normal; } .heat:has(#unequal:checked) .same { display: none; }
.scale { display: inline-flex; vertical-align: middle; } .scale i { width: 1rem; height: .8rem; }
.heat {
  --level-a: #440154; --level-b: #481a6c; --level-c: #472f7d; --level-d: #414487; --level-e: #39568c;
  --level-f: #31688e; --level-g2: #2a788e; --level-h: #23888e; --level-i: #1f988b; --level-j: #22a884;
  --level-k: #35b779; --level-l: #54c568; --level-m: #7ad151; --level-n2: #a5db36; --level-o: #d2e21b;
  --level-p: #fde725; }
/* The darkest of them would look like cells that are equal. */
@media (prefers-color-scheme: dark) { .heat { --level-a: #3b2a5c; --level-b: #403370; --level-c: #423c7c; } }
@media (max-width: 46rem) { .scale i { width: .7rem; } .tensors tbody th { white-space: normal; min-width: 9rem; } }
summary { cursor: pointer; margin: .5rem 0; }
/* Paper does not scroll: names are broken, numbers are not, and colours are what the picture is made of. */
@media print { .wide, .late { overflow: visible; background: none; content-visibility: visible; } body { max-width: none; padding: 0 .5rem; }
  table { font-size: 8pt; } .numbers th, .numbers td { white-space: normal; padding-right: .5rem; } .numbers { font-size: 7pt; }
  .heat td, .heat i, .bar, .key::before { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .heat .cells { min-width: 0 !important; width: 100%; margin: 0; } .heat .wide { padding: 0; }
  h2 { break-after: avoid; } tr, figure { break-inside: avoid; } form, .skip, details:not([open]) { display: none; } }
)css";
}

}  // namespace glu_ckpt
