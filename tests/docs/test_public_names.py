import ast
import importlib
import inspect
import pathlib
import pkgutil

import pytest

import distlab
from tests.support.repository import ROOT

OTHERS_LOADED = """
import sys
before = set(sys.modules)  # what the interpreter and its .pth files load by themselves
import distlab
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - sys.stdlib_module_names - {"distlab"}))
"""


def test_importing_distlab_loads_nothing_but_the_standard_library(run_python):
    assert run_python(OTHERS_LOADED).split() == []


def test_that_test_would_notice_an_eager_import(run_python):
    eager = OTHERS_LOADED.replace("import distlab\n", "import distlab.strategy.factory\n")
    assert {"tensorflow", "keras", "numpy"} <= set(run_python(eager).split())


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
