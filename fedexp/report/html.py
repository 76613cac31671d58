"""A page as one self-contained HTML file: tables to sort and filter, interactive curves, no network."""

import jinja2
from markupsafe import Markup

from fedexp.report.page import Page, Picture

_TEMPLATES = jinja2.Environment(loader=jinja2.PackageLoader("fedexp.report", "."), autoescape=True, trim_blocks=True)


def html(page: Page) -> str:
    """The whole file. With pictures it holds plotly's script, 4.8 MB."""
    charts = [(picture, Markup(_chart(picture))) for picture in page.pictures]
    partitions = any(picture.draw is None for picture in page.pictures)
    return _TEMPLATES.get_template("page.html.jinja").render(
        page=page,
        tables=[(sheet, Markup(sheet.html())) for sheet in page.sheets],
        charts=charts,
        heading="Curves and partitions" if partitions else "Curves",
        plotly=Markup(_script()) if charts else "",
    )


def _script() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _chart(picture: Picture) -> str:
    from plotly.io import to_html

    config = {"responsive": True, "displaylogo": False, "toImageButtonOptions": {"filename": picture.name}}
    return to_html(picture.chart(), config=config, include_plotlyjs=False, full_html=False, validate=False)
