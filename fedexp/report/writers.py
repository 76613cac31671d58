"""A page as terminal text, Markdown and LaTeX."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedexp.report.page import Entry, Page, Sheet


def terminal(page: Page, console: Console) -> None:
    console.print(f"[bold]{escape(page.title)}[/bold]")
    for line in page.lead:
        console.print(escape(line))
    for sheet in page.sheets:
        table = Table(title=sheet.title, title_justify="left", caption=sheet.caption or None, caption_justify="left")
        for number, name in enumerate(sheet.header):
            table.add_column(escape(name), no_wrap=number == 0)
        for row in sheet.rows:
            table.add_row(*(_rich(entry) for entry in row))
        console.print(table)
    for note in page.notes:
        console.print(note, markup=False, soft_wrap=True)


def _rich(entry: Entry) -> str:
    style = {"best": "bold green", "second": "underline"}.get(entry.mark, "dim" if entry.missing else "")
    main = f"[{style}]{escape(entry.main)}[/]" if style else escape(entry.main)
    return f"{main}\n[dim]{escape(entry.aside)}[/]" if entry.aside else main


def markdown(page: Page) -> str:
    parts = [f"## {page.title}", *page.lead]
    for sheet in page.sheets:
        parts += [f"### {sheet.title}", _markdown_sheet(sheet)]
        if sheet.caption:
            parts.append(sheet.caption)
    if page.notes:
        parts.append("\n".join(f"- {_plain_markdown(note)}" for note in page.notes))
    return "\n\n".join(parts) + "\n"


def _markdown_sheet(sheet: Sheet) -> str:
    lines = [sheet.header, ["---"] * len(sheet.header)]
    lines += [[_marked(entry) for entry in row] for row in sheet.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _marked(entry: Entry) -> str:
    sign = {"best": "**", "second": "_"}.get(entry.mark, "")
    main = f"{sign}{_plain_markdown(entry.main)}{sign}" if entry.main else ""
    return f"{main} {entry.aside}".strip()


def _plain_markdown(text: str) -> str:
    return text.replace("*", "\\*").replace("_", "\\_")


def latex(page: Page) -> str:
    """Tables for a document that uses booktabs."""
    parts = [f"% {page.title}", *(f"% {line}" for line in page.lead), "% \\usepackage{booktabs}"]
    for number, sheet in enumerate(page.sheets):
        lines = [
            "\\begin{table}", "\\centering", f"\\caption{{{_tex(_caption(page, sheet))}}}",
            f"\\label{{tab:{page.name}_{number + 1}}}", f"\\begin{{tabular}}{{l{'c' * (len(sheet.header) - 1)}}}",
            "\\toprule", " & ".join(map(_tex, sheet.header)) + " \\\\", "\\midrule",
            *(" & ".join(_tex_entry(entry) for entry in row) + " \\\\" for row in sheet.rows),
            "\\bottomrule", "\\end{tabular}", "\\end{table}",
        ]  # fmt: skip
        parts.append("\n".join(lines))
    parts += [f"% {note}" for note in page.notes]
    return "\n".join(parts) + "\n"


def _caption(page: Page, sheet: Sheet) -> str:
    return f"{page.title}. {sheet.title}. {sheet.caption}".strip()


def _tex_entry(entry: Entry) -> str:
    command = {"best": "\\textbf", "second": "\\underline"}.get(entry.mark)
    main = f"{command}{{{_tex(entry.main)}}}" if command else _tex(entry.main)
    return f"{main} {{\\scriptsize {_tex(entry.aside)}}}" if entry.aside else main


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$\dagger$",
    "\u2013": "--", "\u2212": "$-$",
    "|": r"$|$", "<": "$<$", ">": "$>$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)
