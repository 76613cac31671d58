"""A page as one HTML file that needs nothing else: pictures lie in it, no script, no network."""

import base64
from html import escape

from fedexp.report.page import Entry, Page, Picture, Sheet

_STYLE = """
:root { --ink: #1c2430; --soft: #667085; --line: #dfe3e8; --best: #0b6b3a; --band: #f6f8fa; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: var(--ink);
       background: #fff; margin: 0 auto; max-width: 1440px; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
p { max-width: 100ch; margin: .4rem 0; }
.warning { background: #fff6e0; border-left: 4px solid #d99a00; padding: .6rem .9rem; max-width: none; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { background: var(--band); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; white-space: nowrap; position: sticky; left: 0; background: #fff; }
tbody tr:last-child > * { border-bottom: 0; }
td .main { white-space: nowrap; }
td .aside { display: block; color: var(--soft); font-size: .82em; }
.best { font-weight: 700; color: var(--best); }
.second { text-decoration: underline; text-underline-offset: 3px; }
.missing { color: var(--soft); }
.caption, .notes { color: var(--soft); font-size: .9rem; }
.notes li { margin: .25rem 0; overflow-wrap: anywhere; }
figure { margin: .5rem 0 1rem; }
figure img { max-width: 100%; height: auto; display: block; }
figure img.png { max-height: 340px; width: auto; }
figcaption { color: var(--soft); font-size: .85rem; }
@media print { body { max-width: none; padding: 0; } figure, tr { break-inside: avoid; } }
"""


def html(page: Page) -> str:
    """The whole file."""
    lead = [f'<p class="{"warning" if line.startswith("Scale:") else "lead"}">{escape(line)}</p>' for line in page.lead]
    parts = [f"<h1>{escape(page.title)}</h1>", *lead, *(_sheet(sheet) for sheet in page.sheets)]
    if page.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in page.notes)
        parts.append(f'<h2>Notes</h2><ul class="notes">{notes}</ul>')
    if page.pictures:
        parts += ["<h2>Curves and partitions</h2>", *_pictures(page.pictures)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _sheet(sheet: Sheet) -> str:
    header = "".join(f'<th scope="col">{escape(name)}</th>' for name in sheet.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0].main)}</th>{"".join(_cell(entry) for entry in row[1:])}</tr>\n'
        for row in sheet.rows
    )
    caption = f'<p class="caption">{escape(sheet.caption)}</p>' if sheet.caption else ""
    return (
        f'<h2>{escape(sheet.title)}</h2><div class="scroll"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>{caption}"
    )


def _cell(entry: Entry) -> str:
    kind = " ".join(filter(None, ["main", entry.mark, "missing" if entry.missing else ""]))
    aside = f'<span class="aside">{escape(entry.aside)}</span>' if entry.aside else ""
    return f'<td><span class="{kind}">{escape(entry.main)}</span>{aside}</td>'


def _pictures(pictures: list[Picture]) -> list[str]:
    parts, group = [], None
    for picture in pictures:
        if picture.group != group:
            group = picture.group
            parts.append(f"<h3>{escape(group)}</h3>")
        kind = {"svg": "image/svg+xml", "png": "image/png"}[picture.kind]
        data = base64.b64encode(picture.content).decode()
        parts.append(
            f'<figure><img class="{picture.kind}" alt="{escape(picture.title)}" src="data:{kind};base64,{data}">'
            f"<figcaption>{escape(picture.title)}</figcaption></figure>"
        )
    return parts
