"""The shell of a page: one file, its own style, light and dark, nothing fetched and nothing executed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

CSS = """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f8fa;--ink:#24292f;--soft:#57606a;--line:#d5dae0;--grid:#d5dae0;
--accent:#0b62a8;--warn:#8a4b00;--warnbg:#fff3dc;
--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#b8568c;--s4:#c98500;--s5:#3d9fd6;--s6:#6e7781}
@media (prefers-color-scheme:dark){:root{--bg:#0f1419;--card:#182028;--ink:#e2e7ec;--soft:#9aa5b1;--line:#313b45;
--grid:#3a4550;--accent:#7cc0f5;--warn:#ffcf85;--warnbg:#3a2b10;
--s0:#4aa8e8;--s1:#ff8a3d;--s2:#2fc99a;--s3:#e79bc6;--s4:#f2b632;--s5:#8fd0f7;--s6:#a5afba}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main,body>header,body>footer{max-width:1080px;margin:0 auto;padding:0 24px}
body>header{padding-top:40px}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.35rem;margin:56px 0 8px;padding-top:20px;border-top:1px solid var(--line);overflow-wrap:anywhere}
h3{font-size:1.08rem;margin:36px 0 6px}
p{margin:6px 0 12px}.lead,.note,figcaption,caption,footer{color:var(--soft)}.lead{font-size:1.05rem}
.note{font-size:.92rem;max-width:75ch}
a{color:var(--accent)}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:14px 0 0;padding:0;font-size:.95rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:22px 0 8px;padding:0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px}
.tile dt{font-size:.86rem;color:var(--soft)}
.tile dd{margin:0;font-size:1.65rem;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.3}
.tile dd small{display:block;font-size:.82rem;font-weight:400;color:var(--soft)}
figure{margin:14px 0 26px}
figcaption,caption{font-size:.9rem;text-align:left;padding:2px 0 8px;max-width:80ch}
svg{display:block;width:100%;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}
svg text{font-family:inherit!important}
.pair{display:flex;flex-wrap:wrap;gap:0 56px}.pair>*{flex:1 1 320px}.pair table{width:100%}
.scroll{overflow-x:auto;margin:10px 0 18px}
.scroll:focus-visible,a:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;font-size:.92rem;min-width:50%}
th,td{padding:6px 12px 6px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:baseline}
th+th,th+td,td+td{padding-left:12px}
thead th{font-weight:600;vertical-align:bottom;border-bottom:1px solid var(--soft);line-height:1.3}
thead th.group{text-align:center;border-bottom:1px solid var(--line)}
tbody th{font-weight:500;overflow-wrap:anywhere;min-width:8.5em}.pair tbody th{min-width:12em}
.num{text-align:right;font-variant-numeric:tabular-nums}td.num{white-space:nowrap}
.std,.none{color:var(--soft)}.std{display:block;font-size:.85em}.side .std{display:inline}.side .num{text-align:left}
strong{font-weight:750}
.badge{display:inline-block;background:var(--warnbg);color:var(--warn);border-radius:99px;padding:1px 10px;
font-size:.8rem;font-weight:600;white-space:nowrap}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.9em;overflow-wrap:anywhere}
dl.words{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;font-size:.92rem;max-width:90ch}
dl.words dt{font-weight:600}dl.words dd{margin:0;color:var(--soft)}
body>footer{padding:26px 24px 48px;font-size:.86rem}
@media (max-width:640px){.side .std{display:block}figure{overflow-x:auto}figure svg{min-width:calc(.62*var(--width))}
figcaption{position:sticky;left:0}}
@media print{.scroll,figure{overflow:visible}thead{display:table-header-group}
body{font-size:11pt}figure,tr{break-inside:avoid}h1,h2,h3,caption{break-after:avoid}nav{display:none}}
"""


def page(title: str, header: str, body: str, footer: str) -> str:
    """A whole document; the parts are HTML, the title is text."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"<header>{header}</header>\n<main>\n{body}\n</main>\n<footer>{footer}</footer>\n</body>\n</html>\n"
    )


def figure(svg: str, caption: str) -> str:
    """A picture with the sentence that says what to see in it."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>\n"


def scrolling(table: str, label: str) -> str:
    """A table that scrolls by itself where the screen is narrow, by keyboard too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>\n'


def simple_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Everything escaped; the first cell of a row names it, numbers stand to the right."""
    body, numeric = [list(row) for row in rows], set[int]()
    for i in range(len(header)):
        if all(_is_figure(row[i]) for row in body):
            numeric.add(i)
    head = "".join(_cell(name, 'th scope="col"', i in numeric) for i, name in enumerate(header))
    lines = []
    for row in body:
        cells = "".join(_cell(cell, "td" if i else 'th scope="row"', i in numeric) for i, cell in enumerate(row))
        lines.append(f"<tr>{cells}</tr>")
    return scrolling(
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>",
        caption,
    )


def _is_figure(cell: object) -> bool:
    text = str(cell)
    return text == "–" or (text[:1].isdigit() and text.replace(".", "", 1).isdigit())


def _cell(content: object, tag: str, numeric: bool) -> str:
    kind = ' class="num"' if numeric else ""
    return f"<{tag}{kind}>{escape(str(content))}</{tag.split()[0]}>"
