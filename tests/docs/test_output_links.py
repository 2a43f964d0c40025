"""A link of a check leads to a section in JupyterLab, and to the same section on the site."""

import functools
import importlib.util

from distlab.authoring.notebook_text import anchors_of
from distlab.authoring.source import Page, draft_page
from distlab.course.checks.help_steps import section_to_revisit
from distlab.course.checks.registry import all_checks
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


def test_the_link_of_each_check_names_a_heading_as_jupyterlab_does():
    @functools.cache
    def anchors_in(stem):
        return anchors_of(draft_page(Page(ROOT, stem, "lesson")).notebook)

    links = {section_to_revisit(check).link for check in all_checks()}
    assert len(links) > 50
    wrong = []
    for link in sorted(links):
        path, _, anchor = link.partition("#heading=")
        stem = path.removeprefix("../notebooks/").removesuffix(".ipynb")
        if anchor not in anchors_in(stem):
            wrong.append(link)
    assert wrong == []
