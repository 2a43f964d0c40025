"""What several tasks print, as a notebook's cell shows it: in columns, in one block, or folded."""

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from distlab.authoring.execute import execute
from distlab.cluster.local import output_columns
from tests.support.browser import open_browser, open_page, violations

START = "%load_ext distlab\nimport distlab as dl\ncluster = dl.LocalCluster(workers=5)"
INDEX = "import json, os\nindex = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
CELLS = {
    "same": "%%workers\nprint('the same <on> all')",
    "two differ": "%%workers worker:0 worker:1\nprint('I am', index)",
    "one differs": "%%workers\nprint('last' if index == 4 else 'others')",
    "all differ": "%%workers\nfor step in range(30): print('step', step, 'of', index)",
    "colours": "%%workers\nprint('\\x1b[1;32mgreen\\x1b[39mbold\\x1b[0m\\x1b[38;5;31mplain')\n"
    "import sys; print('warned', file=sys.stderr)",
    "table": "%%workers\nclass Table:\n    def _repr_html_(self): return '<i>own</i>'\nTable()",
    "long": "%%workers worker:0 worker:1\nprint('word ' * 60, index)",
}


@pytest.fixture(scope="module")
def shown():
    """The data of each cell's one output."""
    cells = [START, f"%%workers\n{INDEX}", *CELLS.values()]
    notebook = execute(new_notebook(cells=[new_code_cell(cell) for cell in cells]))
    outputs = [cell.outputs for cell in notebook.cells[2:]]
    assert [len(each) for each in outputs] == [1] * len(CELLS)
    return dict(zip(CELLS, [each[0].data for each in outputs], strict=True))


def test_tasks_that_agree_share_a_block_and_the_text_says_the_same_as_the_html(shown):
    text = {name: data["text/plain"] for name, data in shown.items()}
    html = {name: data["text/html"] for name, data in shown.items()}
    everyone = ", ".join(f"worker:{number}" for number in range(5))
    others = everyone.removesuffix(", worker:4")
    assert text["same"] == f"{everyone}\nthe same <on> all"
    assert f"<b>{everyone}</b><div>the same &lt;on&gt; all\n</div>" in html["same"]
    assert text["two differ"] == "worker:0\nI am 0\nworker:1\nI am 1"
    assert text["one differs"] == f"{others}\nothers\nworker:4\nlast"
    assert "<details" not in html["same"] + html["two differ"] + html["one differs"]
    assert text["all differ"].count("step 29 of") == 5
    assert html["all differ"].count("<details") == 5
    assert html["all differ"].count("<details open") == 1
    assert html["all differ"].count(">step 29 of 4</span></summary>") == 1
    assert text["colours"] == f"{everyone}\ngreenboldplain\nwarned"
    green = f"font-weight:bold;color:{output_columns._STYLES[32][1]}"
    bold = '<span style="font-weight:bold">bold</span>plain'
    assert f'<div><span style="{green}">green</span>{bold}\n</div>' in html["colours"]
    assert f'<div style="{output_columns._STDERR}">warned\n</div>' in html["colours"]
    assert "<i>own</i>" in html["table"]


def test_columns_stand_side_by_side_if_they_fit_and_blocks_open_without_javascript(shown):
    bodies = "".join(
        f'<section id="{n.replace(" ", "_")}">{d["text/html"]}</section>' for n, d in shown.items()
    )
    page_of = f'<!doctype html><html lang="en"><title>t</title><main>{bodies}</main></html>'
    with open_browser() as browser:
        for width, are_beside in ((1440, True), (390, True)):
            with open_page(browser, viewport={"width": width, "height": 900}) as page:
                page.set_content(page_of)
                assert violations(page) == []
                for name, is_beside in (("two_differ", are_beside), ("long", False)):
                    first, second = (b.bounding_box() for b in page.locator(f"#{name} b").all())
                    assert (first["y"] == second["y"]) == is_beside, (width, name)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width
        with open_page(browser, java_script_enabled=False) as page:
            page.set_content(page_of)
            folded = page.locator("#all_differ details").nth(3)
            assert "step 3 of 3" not in folded.inner_text()
            folded.locator("summary").focus()
            page.keyboard.press("Enter")
            assert "step 3 of 3" in folded.inner_text()
