"""docs/leaving.md: what the page says of packages that are installed here, and its script."""

import ast
import importlib.util
import re

from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "leaving.md").read_text(encoding="utf-8")


def test_keras_has_a_module_of_layouts_for_jax_and_none_for_pytorch():
    (folder,) = importlib.util.find_spec("keras.src.backend").submodule_search_locations
    backends = {path.parent.name for path in ROOT.joinpath(folder).glob("*/distribution_lib.py")}
    assert {"jax", "tensorflow"} == backends


def test_the_script_is_a_whole_program_and_divides_what_the_page_says():
    (script,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    tree = ast.parse(script)
    assert {node.names[0].name for node in tree.body if isinstance(node, ast.Import)} == {
        "os",
        "keras",
        "numpy",
    }
    assert (
        '"KERAS_BACKEND"] = "jax"' in script and 'layout[".*kernel.*"] = ("batch", None)' in script
    )
