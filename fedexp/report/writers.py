"""A page as terminal text, Markdown, LaTeX and HTML, and all files of a report."""

import re
from functools import partial
from io import BytesIO
from pathlib import Path
from urllib.parse import quote, unquote

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedexp import files
from fedexp.errors import ConfigError
from fedexp.report.page import Entry, Page, Sheet, plural
from fedexp.report.style import styled

_TEMPLATES = jinja2.Environment(loader=jinja2.PackageLoader("fedexp.report", "."), autoescape=True, trim_blocks=True)


def write(page: Page, to: Path) -> str:
    """Write all files of a report, in place of those of an earlier one; returns what they are, in words. Raises
    ConfigError where they cannot be written."""
    texts = {"md": markdown(page), "csv": page.records.to_csv(index=False), "tex": latex(page), "html": html(page)}
    drawn = {picture.name: picture.draw for picture in page.pictures if picture.draw is not None}
    try:
        to.mkdir(parents=True, exist_ok=True)
        earlier = _pictures_of(to / f"{page.name}.md")
        for kind, text in texts.items():
            files.write_text(to / f"{page.name}.{kind}", text)
        for name, draw in drawn.items():
            save(draw(), to, name)
        for name in earlier - drawn.keys():
            for kind in ("png", "pdf"):
                (to / f"{name}.{kind}").unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError("to", to, f"cannot be written to ({error})") from error
    pictures = f" and {plural(len(drawn), 'picture')}, each as png and pdf" if drawn else ""
    return f"{to}/{page.name}.{{{','.join(texts)}}}{pictures}"


def _pictures_of(file: Path) -> set[str]:
    """The names of the pictures in a page's Markdown; none if there is no such file."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    names = map(unquote, re.findall(r"^!\[.*\]\((.+)\.png\)$", text, re.MULTILINE))
    return {name for name in names if re.fullmatch(r"[\w.=+-]+", name)}  # as fedexp names them: no path to elsewhere


def beside(folder: Path) -> Path:
    """The folder for reports on the runs in `folder`, or on the run that it is."""
    return (folder.parent if (folder / "config.yaml").exists() else folder) / "reports"


def save(figure: Figure, to: Path, name: str) -> list[Path]:
    """Save a figure as png, in 256 colours, which take a third of the room, and as pdf; returns the files."""
    png, pdf = to / f"{name}.png", to / f"{name}.pdf"
    drawn = BytesIO()
    with styled():
        figure.savefig(drawn, dpi=150, format="png")
        few = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        files.write(png, partial(few.save, format="png"))
        files.write(pdf, partial(figure.savefig, dpi=150, format="pdf"))
    return [png, pdf]


def terminal(page: Page, console: Console) -> None:
    """Print a page. In a narrow terminal names are folded; numbers stay whole."""
    console.print(f"[bold]{escape(page.title)}[/bold]")
    for line in page.lead:
        console.print(escape(line))
    for sheet in map(Sheet.narrow, page.sheets):
        console.print()
        table = Table(
            title=escape(sheet.title), caption=escape(sheet.caption) or None, title_style="bold", title_justify="left",
            caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        )  # fmt: skip
        for number, name in enumerate(sheet.header):
            table.add_column(escape(name), no_wrap=number > 0, overflow="fold", justify="right" if number else "left")
        for row in sheet.rows:
            table.add_row(*map(_rich, row))
        console.print(table)
    for note in page.notes:
        console.print(note, markup=False, soft_wrap=True)


def _rich(entry: Entry) -> str:
    style = {"best": "bold green", "second": "underline"}.get(entry.mark, "dim" if entry.missing else "")
    main = f"[{style}]{escape(entry.main)}[/]" if style else escape(entry.main)
    return f"{main}\n[dim]{escape(entry.aside)}[/]" if entry.aside else main


def markdown(page: Page) -> str:
    parts = [f"## {_plain_markdown(page.title)}", *map(_plain_markdown, page.lead)]
    for sheet in map(Sheet.narrow, page.sheets):
        parts += [f"### {_plain_markdown(sheet.title)}", _markdown_sheet(sheet)]
        if sheet.caption:
            parts.append(_plain_markdown(sheet.caption))
    if page.notes:
        parts.append("\n".join(f"- {_plain_markdown(note)}" for note in page.notes))
    parts += [
        f"![{_plain_markdown(picture.title)}]({quote(picture.name)}.png)"
        for picture in page.pictures if picture.draw is not None
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _markdown_sheet(sheet: Sheet) -> str:
    lines = [list(map(_plain_markdown, sheet.header)), ["---"] * len(sheet.header)]
    lines += [[_marked(entry) for entry in row] for row in sheet.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _marked(entry: Entry) -> str:
    sign = {"best": "**", "second": "_"}.get(entry.mark, "")
    main = f"{sign}{_plain_markdown(entry.main)}{sign}" if entry.main else ""
    return f"{main} {_plain_markdown(entry.aside)}".strip()


_MARKDOWN = str.maketrans({
    **{sign: f"\\{sign}" for sign in "\\`*_[]|"}, "&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " ",
})  # fmt: skip


def _plain_markdown(text: str) -> str:
    """Text escaped so that it is shown as it is: names in it cannot become links, pictures or HTML."""
    return text.translate(_MARKDOWN)


def latex(page: Page) -> str:
    """Tables for a document that uses booktabs."""
    parts = [_tex_comment(line) for line in (page.title, *page.lead, "\\usepackage{booktabs}")]
    for number, sheet in enumerate(map(Sheet.narrow, page.sheets)):
        style = sheet.entries().style.format(_tex_entry).format_index(_tex, axis=0).format_index(_tex, axis=1)
        caption, label = f"{page.title}. {sheet.title}. {sheet.caption}".strip(), f"tab:{page.name}_{number + 1}"
        parts.append(style.to_latex(
            hrules=True, position_float="centering", caption=_tex(caption), label=label,
            column_format="l" + "c" * (len(sheet.header) - 1),
        ).strip())  # fmt: skip
    parts += map(_tex_comment, page.notes)
    return "\n".join(parts) + "\n"


def _tex_comment(text: str) -> str:
    return f"% {' '.join(text.split())}"


def _tex_entry(entry: Entry) -> str:
    command = {"best": "\\textbf", "second": "\\underline"}.get(entry.mark)
    main = f"{command}{{{_tex(entry.main)}}}" if command else _tex(entry.main)
    return f"{main} {{\\scriptsize {_tex(entry.aside)}}}" if entry.aside else main


_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$\dagger$", "‡": r"$\ddagger$",
    "\u2013": "--", "\u2212": "$-$", "|": r"$|$", "<": "$<$", ">": "$>$", "\n": " ", "\r": " ",
})  # fmt: skip


def _tex(text: str) -> str:
    return text.translate(_TEX)


def html(page: Page) -> str:
    """One self-contained file: tables to sort and filter, interactive curves, no network. With pictures it holds
    plotly's script, 4.8 MB."""
    from plotly.io import to_html  # imported here: it takes a while, and the terminal's text needs none of it
    from plotly.offline import get_plotlyjs

    charts = []
    for picture in page.pictures:
        config = {"responsive": True, "displaylogo": False, "toImageButtonOptions": {"filename": picture.name}}
        chart = to_html(picture.chart(), config=config, include_plotlyjs=False, full_html=False, validate=False)
        charts.append((picture, Markup(chart)))
    partitions = any(picture.draw is None for picture in page.pictures)
    return _TEMPLATES.get_template("page.html.jinja").render(
        page=page,
        tables=[(sheet, Markup(sheet.html())) for sheet in page.sheets],
        charts=charts,
        heading="Curves and partitions" if partitions else "Curves",
        plotly=Markup(get_plotlyjs()) if charts else "",
    )
