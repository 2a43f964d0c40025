"""The site: `make docs` builds it, and it needs no network, neither to be built nor to be read.

`tools/site_pages.py` puts the pages into build/docs, in the folders that they have in the
repository. So a link between two pages works here, on GitHub and in a learner's folder. The
notebooks are shown with their stored outputs, and nothing is run.
"""

import os
import sys
from pathlib import Path

import distlab
from distlab.course import palette

sys.path.insert(0, str(Path(__file__).parent))  # for the extensions of this folder

project = "distlab"
author = "The distlab authors"
copyright = "The distlab authors, Apache-2.0"
release = version = distlab.__version__

extensions = [
    "myst_nb",
    "alternative_text",
    "course_sidebar",
    "equations",
    "measured_pictures",
    "output_links",
    "public_names",
    "site_search",
    "verdicts",
]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css", "which_run.css", "one_step.css"]
SCRIPTS = ("sidebar.js", "predictions.js", "views.js", "which_run.js", "measured.js", "one_step.js")
html_js_files = [(name, {"defer": "defer"}) for name in SCRIPTS]
html_favicon = "_static/favicon.svg"
# A link to a page shows a picture only if the page says where the picture is on the web.
html_baseurl = os.environ.get("SITE_URL", "")
html_context = {
    "description": "Learn distributed training in TensorFlow by running it on your laptop: "
    "22 lessons, exercises with checks, and one line for your own Keras model.",
    "preview": html_baseurl and f"{html_baseurl.rstrip('/')}/_static/preview.png",
    "colours": {
        "right": palette.RIGHT.colour,
        "wrong": palette.WRONG.colour,
        "note": palette.NOTE,
        **{f"replica-{number}": palette.replica(number).colour for number in range(4)},
        **{f"category-{number}": palette.category(number).colour for number in range(2)},
    },
    # The long pages whose entries a reader filters, and what an entry is called there.
    "entries": {
        "docs/glossary": "terms",
        "docs/pitfalls": "pitfalls",
        "docs/reference": "names",
        "docs/teaching": "sections",
    },
}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# The committed outputs are the page; the regression test keeps them true.
nb_execution_mode = "off"
# What stands on a folded cell; `tools/site_notebooks.py` names a folded result.
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
# A page must not depend on the network: widgets are the reader's own JupyterLab's business.
nb_ipywidgets_js = {}
# Docstrings mark code by single backticks.
default_role = "code"
html_math_renderer = "mathml"

html_theme = "pydata_sphinx_theme"
html_title = "distlab"
html_theme_options = {
    "logo": {
        "text": "distlab",
        "image_light": "_static/favicon.svg",
        "image_dark": "_static/favicon.svg",
        "alt_text": "",
    },
    "navbar_start": ["navbar-logo"],
    "navbar_center": ["site-doors"],
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "back_to_top_button": False,
}
html_additional_pages = {"search": "search.html"}
html_sidebars = {"**": ["course-sidebar"]}
html_show_sourcelink = False
html_copy_source = False
