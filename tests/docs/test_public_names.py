import ast
import importlib
import inspect
import pathlib
import pkgutil

import pytest

import distlab
from tests.support.repository import ROOT

IMPORT_COST = """
import sys, time
start = time.perf_counter()
import distlab
cost_ms = (time.perf_counter() - start) * 1000
print(cost_ms, "tensorflow" in sys.modules, "keras" in sys.modules, "numpy" in sys.modules)
"""


def cost_of_import(run_python, code=IMPORT_COST):
    """The least of five, since anything else on the machine can only add to it."""
    runs = [run_python(code).split() for _ in range(5)]
    return min(float(run[0]) for run in runs), {tuple(run[1:]) for run in runs}


def test_importing_distlab_loads_no_tensorflow_and_takes_under_50_ms(run_python):
    cost_ms, loaded = cost_of_import(run_python)
    assert loaded == {("False", "False", "False")}
    assert cost_ms < 50


def test_that_test_would_notice_an_eager_import(run_python):
    eager = IMPORT_COST.replace("import distlab\n", "import distlab, distlab.strategy.factory\n")
    done = run_python(eager).split()
    assert done[1] == "True"
    assert float(done[0]) > 50


def test_the_root_has_at_most_16_names_and_dir_shows_them():
    names = [name for name in distlab.__all__ if name != "__version__"]
    # The sixteenth is `predict`: every lesson calls it, so it is imported with the other helpers.
    assert len(names) <= 16
    assert dir(distlab) == sorted(distlab.__all__)


@pytest.mark.parametrize("name", [name for name in distlab.__all__ if name != "__version__"])
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(distlab, name)
    doc = inspect.getdoc(thing)
    assert doc
    parameters = inspect.signature(thing).parameters
    assert all(parameter in doc for parameter in parameters)
    assert "Args:" in doc or not parameters


def test_help_on_distribute_fits_on_one_screen_and_names_its_page():
    doc = inspect.getdoc(distlab.distribute)
    assert len(doc.splitlines()) <= 45
    assert "docs/distribute.md" in doc
    assert (ROOT / "docs" / "distribute.md").is_file()


def test_no_public_name_is_a_module_of_that_name():
    modules = {info.name for info in pkgutil.iter_modules(distlab.__path__)}
    assert not modules & set(distlab.__all__)


def test_names_for_type_checkers_are_those_for_python():
    tree = ast.parse(pathlib.Path(distlab.__file__).read_text())
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
        if alias.asname
    }
    assert typed == {name: f"distlab.{room}" for name, room in distlab._ROOMS.items()}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'distlab' has no attribute 'distribut'"):
        distlab.distribut  # noqa: B018


def test_without_tensorflow_the_error_says_how_to_get_it(run_python):
    hide = "import sys; sys.modules['tensorflow'] = None\nimport distlab\ndistlab.make_strategy"
    message = run_python(hide, fails=True)
    assert "import tensorflow\n  found: it is not installed for CPython" in message
    assert "to do: pip install distlab" in message


def test_without_an_extra_the_error_names_it(run_python):
    hide = (
        "import sys; sys.modules['tensorflow_datasets'] = None\n"
        "import distlab\n"
        "distlab.load_dataset('digits')"
    )
    assert 'to do: pip install "distlab[data]"' in run_python(hide, fails=True, warm=True)


def test_every_module_imports_by_itself_name():
    for info in pkgutil.walk_packages(distlab.__path__, "distlab."):
        if not info.name.endswith("__main__"):
            importlib.import_module(info.name)
