"""How the page looks, light, dark and on paper, and its script: it sorts tables and unfolds what a link leads to."""

# Text colours keep a contrast of 4.5 to both grounds, which a test checks.
LIGHT = {
    "ground": "#ffffff",
    "raised": "#f6f7f9",
    "ink": "#1b2027",
    "muted": "#565f6b",
    "rule": "#dde1e7",
    "rest": "#e3e7ed",
    "accent": "#1d5c9c",
    "blue": "#1d5fa6",
    "orange": "#b4430b",
    "green": "#0d7350",
    "purple": "#80459b",
    "amber": "#8a5d00",
    "teal": "#0b6b80",
    "red": "#b3203f",
    "grey": "#5f6772",
}
DARK = {
    "ground": "#14171c",
    "raised": "#1c2027",
    "ink": "#e7eaee",
    "muted": "#a4adb9",
    "rule": "#323943",
    "rest": "#323943",
    "accent": "#82b8f2",
    "blue": "#74b0f4",
    "orange": "#f39a63",
    "green": "#56c596",
    "purple": "#cf9fe6",
    "amber": "#dfb244",
    "teal": "#5cc4d8",
    "red": "#f4859b",
    "grey": "#a1a9b4",
}
SERIES = ("blue", "orange", "green", "purple", "amber", "teal", "red", "grey")
OUTCOME_COLOURS = {
    "verified": "green",
    "misclassified": "grey",
    "attacked": "orange",
    "falsified": "red",
    "timeout": "amber",
    "unknown": "purple",
}


def _variables(theme: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in theme.items())


def _colours() -> str:
    return "\n".join(f".{name}{{--c:var(--{name})}}" for name in (*SERIES, "rest", "ink"))


CSS = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
--serif:"Iowan Old Style","Palatino Linotype",Palatino,"URW Palladio L",P052,Georgia,serif;
--mono:ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace}}
@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}
{_colours()}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%;scroll-behavior:smooth}}
@media (prefers-reduced-motion:reduce){{html{{scroll-behavior:auto}}}}
body{{margin:0;background:var(--ground);color:var(--ink);font:16px/1.6 var(--sans);overflow-wrap:break-word}}
main,header,footer{{max-width:1120px;margin:0 auto;padding:0 28px}}
header{{padding-top:64px}}
footer{{padding-top:24px;padding-bottom:56px;color:var(--muted);font-size:14px}}
.kicker{{margin:0;color:var(--muted);font-size:13px;letter-spacing:.09em;text-transform:uppercase}}
h1,h2,h3,h4{{font-weight:600;line-height:1.25;text-wrap:balance}}
h1,h2,h3,h4,p,li,a,figcaption,caption,.note,.tile .small{{overflow-wrap:anywhere}}
h1{{margin:.15em 0 .3em;font:600 44px/1.15 var(--serif);letter-spacing:-.01em}}
h2{{margin:72px 0 8px;padding-top:20px;border-top:2px solid var(--ink);font:600 29px/1.2 var(--serif)}}
h3{{margin:36px 0 6px;font-size:19px}}
h4{{margin:32px 0 4px;font-size:16px}}
p{{max-width:44em;margin:8px 0 16px}}
.lead{{font-size:18px;color:var(--muted)}}
.note,figcaption,caption{{color:var(--muted);font-size:14px;line-height:1.5}}
.warn{{padding:10px 14px;border-left:3px solid var(--amber);background:var(--raised);font-size:15px}}
a{{color:var(--accent);text-underline-offset:.18em}}
:focus-visible{{outline:2px solid var(--accent);outline-offset:2px;border-radius:3px}}
main>section:first-child>h2{{margin-top:48px}}
nav ul{{display:flex;flex-wrap:wrap;gap:4px 22px;margin:24px 0 0;padding:0;list-style:none;font-size:15px}}
.skip{{position:absolute;left:-999px}}
.hidden{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}}
.skip:focus{{left:16px;top:12px}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(178px,1fr));gap:14px;margin:22px 0 28px;padding:0}}
.tile{{padding:16px 18px 14px;border-radius:10px;background:var(--raised);border-top:3px solid var(--c,var(--rule))}}
.tile dt{{color:var(--muted);font-size:14px}}
.tile dd{{margin:0}}
.tile .big{{font:600 34px/1.2 var(--serif);font-variant-numeric:lining-nums tabular-nums;white-space:nowrap}}
.tile .small{{color:var(--muted);font-size:13px;line-height:1.45}}
.plots{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:28px 36px;margin:20px 0}}
figure{{margin:0;min-width:0}}
figure>h4{{margin:0 0 8px}}
.plot{{display:block;width:100%;max-width:620px;height:auto;font:12px var(--sans)}}
.plot text{{fill:var(--ink)}}
.plot .tick{{fill:var(--muted);font-variant-numeric:tabular-nums}}
.plot .name{{fill:var(--ink)}}
.plot .label{{fill:var(--c);font-weight:600}}
.plot .grid{{stroke:var(--rule);stroke-width:1}}
.plot .axis{{stroke:var(--muted);stroke-width:1}}
.plot .curve{{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}}
.plot .wide{{stroke-width:7;stroke-opacity:.4}}
.plot .dashed{{stroke-dasharray:6 5}}
.plot .fill{{fill:var(--c)}}
.legend{{display:flex;flex-wrap:wrap;gap:2px 18px;margin:4px 0 0;padding:0;list-style:none;font-size:14px;
color:var(--muted)}}
.legend li::before,.outcome::before{{content:"";display:inline-block;width:.72em;height:.72em;margin-right:.5em;
border-radius:2px;background:var(--c)}}
.scroll{{overflow-x:auto;margin:18px 0 8px}}
.scroll.tall{{max-height:560px;overflow-y:auto;border:1px solid var(--rule);border-radius:8px}}
table{{border-collapse:collapse;width:100%;font-size:15px;font-variant-numeric:lining-nums tabular-nums}}
caption{{padding:0 0 8px;text-align:left;caption-side:top}}
.tall caption{{padding:10px 12px}}
.tall table{{font-size:14px}} .tall th,.tall td{{padding:5px 10px}} .outcome{{white-space:nowrap}}
th,td{{padding:7px 12px;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--rule)}}
thead th{{color:var(--muted);font-weight:600;font-size:14px;vertical-align:bottom}}
thead th.group{{border-bottom:0;padding-bottom:0;color:var(--ink)}}
thead tr:last-child th{{border-bottom:1.5px solid var(--ink)}}
.tall thead th{{position:sticky;top:0;background:var(--ground);border-bottom:0;box-shadow:inset 0 -1.5px var(--ink)}}
tbody th{{font-weight:600;min-width:11em;overflow-wrap:anywhere}}
tbody td:not(.n,.outcome){{min-width:4em;overflow-wrap:anywhere}}
.dense{{font-size:13px}} .dense th,.dense td{{padding:6px 7px}} .dense thead th{{font-size:12.5px}}
tbody th.n{{min-width:0}}
.n{{text-align:right;white-space:nowrap}}
.paper{{color:var(--muted)}}
td.best{{font-weight:700}}
tr.first>*{{border-top:2px solid var(--muted)}}
tr.open>*{{border-bottom:0}}
tr.paper>*{{padding-top:0;color:var(--muted);font-weight:400;font-size:14px}}
tr.paper>th{{padding-left:2em}}
th button{{all:unset;cursor:pointer;white-space:nowrap}}
th button::after{{content:"↕";margin-left:.35em;color:var(--muted);font-weight:400}}
th[aria-sort=ascending] button::after{{content:"↑";color:var(--accent)}}
th[aria-sort=descending] button::after{{content:"↓";color:var(--accent)}}
th button:hover{{color:var(--ink)}}
th button:focus-visible{{outline:2px solid var(--accent);outline-offset:2px;border-radius:3px}}
details{{margin:8px 0;border:1px solid var(--rule);border-radius:10px;padding:0 20px}}
details>summary{{margin:0 -20px;padding:9px 20px;cursor:pointer;border-radius:10px}}
details>summary:hover{{background:var(--raised)}}
details[open]{{padding-bottom:20px}}
summary>h3,summary>h4{{display:inline;margin:0;font-size:16px}}
summary .note{{margin-left:10px;font-variant-numeric:tabular-nums}}
.gallery{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr));gap:26px 28px;margin:18px 0}}
.gallery .trio{{display:grid;grid-template-columns:repeat(3,1fr);gap:8px}}
.gallery img{{display:block;width:100%;aspect-ratio:1;object-fit:contain;image-rendering:pixelated;border-radius:4px;
border:1px solid var(--rule);background:var(--raised)}}
.gallery .trio span{{display:block;margin-top:4px;font-size:12px;line-height:1.35;color:var(--muted)}}
.gallery figcaption b{{color:var(--ink)}}
.gallery figcaption{{margin-bottom:8px}}
.facts{{display:grid;grid-template-columns:fit-content(40%) minmax(0,1fr);gap:4px 24px;margin:14px 0;font-size:15px}}
.facts dt{{color:var(--muted);overflow-wrap:anywhere}}
.facts dd{{margin:0;overflow-wrap:anywhere}}
.facts.pairs{{grid-template-columns:repeat(2,fit-content(20%) minmax(0,1fr))}}
code,pre,.hash{{font:13.5px/1.55 var(--mono)}}
code,.hash{{overflow-wrap:anywhere}}
pre{{margin:10px 0;padding:12px 16px;border-radius:8px;background:var(--raised);white-space:pre-wrap;
overflow-wrap:anywhere}}
@media (max-width:640px){{
main,header,footer{{padding-left:18px;padding-right:18px}}
header{{padding-top:36px}} h1{{font-size:34px}} h2{{margin-top:56px;font-size:25px}}
.facts,.facts.pairs{{grid-template-columns:minmax(0,1fr);gap:0}} .facts dd{{margin-bottom:8px}}
}}
@media print{{
:root{{color-scheme:light;{_variables(LIGHT)}}}
@page{{margin:16mm 14mm}}
body{{font-size:10.5pt}}
main,header,footer{{max-width:none;padding-left:0;padding-right:0}}
header{{padding-top:0}}
nav,.skip{{display:none}}
h1{{font-size:26pt}} h2{{font-size:17pt;margin-top:28pt;break-after:avoid}} h3,h4{{break-after:avoid}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
figure,.tile,tr,pre{{break-inside:avoid}}
.plots{{grid-template-columns:1fr 1fr;gap:14pt 20pt}}
.tiles{{grid-template-columns:repeat(4,1fr);gap:8pt}} .tile .big{{font-size:18pt}} .tile .small{{font-size:8pt}}
.gallery{{grid-template-columns:repeat(3,1fr)}}
.scroll,.scroll.tall{{overflow:visible;max-height:none;border:0}}
table{{font-size:9pt}} th,td{{padding:3pt 5pt}} tr.paper>*,thead th{{font-size:8.5pt}}
.tall thead th{{position:static;box-shadow:none;border-bottom:1.5px solid var(--ink)}}
.facts,.note,figcaption,caption,.legend{{font-size:9pt}} code,pre,.hash{{font-size:8pt}}
th button::after{{content:none}}
details.print::details-content{{content-visibility:visible;display:block}}
details{{border:0;padding:0}} details>summary{{margin:0;padding:5pt 0;list-style:none;break-after:avoid}}
details.long:not([open]){{display:none}}
}}
"""

SCRIPT = """
"use strict";
const unfold = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", unfold);
unfold();
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = (cell.dataset.value ?? cell.textContent).trim();
    const number = text === "" ? NaN : Number(text.replaceAll(",", ""));
    return { text, number };
  };
  const compare = (a, b) => {
    const [x, y] = [Number.isNaN(a.number), Number.isNaN(b.number)];
    if (!x && !y) return a.number - b.number;
    return x === y ? a.text.localeCompare(b.text) : x - y;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => ({ row, key: key(row, column) }));
      rows.sort((a, b) => {
        if (!a.key.text || !b.key.text) return !a.key.text - !b.key.text;
        return up ? compare(a.key, b.key) : compare(b.key, a.key);
      });
      body.append(...rows.map(({ row }) => row));
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
    });
  });
}
"""
