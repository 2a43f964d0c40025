"""The site shows a figure with the alternative text that its output has stored."""

import base64
import io

import nbformat
from PIL import Image
from sphinx.application import Sphinx

from tests.support.repository import ROOT

DOCS = ROOT / "docs"
CONF = f"""
import sys
sys.path.insert(0, {str(DOCS)!r})
extensions = ["myst_nb", "alternative_text"]
nb_execution_mode = "off"
"""


def notebook(alt):
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
    output = nbformat.v4.new_output(
        "execute_result", data, execution_count=1, metadata={"image/png": {"alt": alt}}
    )
    cell = nbformat.v4.new_code_cell("draw()", outputs=[output], execution_count=1)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A page"), cell])


def test_the_page_of_a_notebook_keeps_the_alternative_text(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text(CONF)
    nbformat.write(notebook("Two bars, the first 3 high."), source / "index.ipynb")
    built = tmp_path / "html"
    Sphinx(
        source, source, built, tmp_path / "trees", "html", status=None, warningiserror=True
    ).build()
    assert 'alt="Two bars, the first 3 high."' in (built / "index.html").read_text()
