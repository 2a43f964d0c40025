"""A link of a check leads to a section in JupyterLab, and to the same section on the site."""

import importlib.util

from tests.support.repository import ROOT

spec = importlib.util.spec_from_file_location("output_links", ROOT / "docs" / "output_links.py")
output_links = importlib.util.module_from_spec(spec)
spec.loader.exec_module(output_links)


def test_a_link_to_a_notebook_becomes_one_to_its_page():
    pages = {
        "../notebooks/00_a.ipynb#heading=The-trap:-a-b": "../notebooks/00_a.html#the-trap-a-b",
        "../notebooks/00_a.ipynb#Which-one,%20where?": "../notebooks/00_a.html#which-one-where",
        "../exercises/00_a.ipynb": "../exercises/00_a.html",
        "https://a.b/notebooks/00_a.ipynb#C": "https://a.b/notebooks/00_a.ipynb#C",
    }
    for link, page in pages.items():
        html = f'<p><a href="{link}">again</a> {link}</p>'
        assert output_links.with_pages(html) == f'<p><a href="{page}">again</a> {link}</p>'
