import ast
import importlib
import importlib.util
import inspect
import pathlib
import pkgutil
import re

import pytest

import distlab
from distlab import errors
from tests.support.repository import ROOT

NAMES = [name for name in distlab.__all__ if name != "__version__"]
OTHERS_LOADED = """
import sys
before = set(sys.modules)  # what the interpreter and its .pth files load by themselves
import distlab
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - sys.stdlib_module_names - {"distlab"}))
"""


def test_importing_distlab_loads_nothing_but_the_standard_library(run_python):
    assert run_python(OTHERS_LOADED).split() == []
    eager = OTHERS_LOADED.replace("import distlab\n", "import distlab, numpy\n")
    assert run_python(eager).split() == ["numpy"]


def test_the_root_has_at_most_17_names_and_dir_shows_them():
    # The sixteenth is `predict`: every lesson calls it, so it is imported with the other helpers.
    # The seventeenth is `memory_limit`: like `split_devices`, a script calls it first of all.
    assert len(NAMES) <= 17
    assert dir(distlab) == sorted(distlab.__all__)
    modules = {info.name for info in pkgutil.iter_modules(distlab.__path__)}
    assert not modules & set(NAMES), "a module would hide the public name"


def test_every_public_name_is_there_and_documented():
    lacking = []
    for name in NAMES:
        public = getattr(distlab, name)
        doc, parameters = inspect.getdoc(public) or "", inspect.signature(public).parameters
        lacking += [] if doc else [f"{name}: no docstring"]
        lacking += [] if "Args:" in doc or not parameters else [f"{name}: no Args"]
        lacking += [f"{name}: {parameter}" for parameter in parameters if parameter not in doc]
    assert lacking == []
    assert len(inspect.getdoc(distlab.distribute).splitlines()) <= 45, "more than a screen"
    assert "docs/distribute.md" in inspect.getdoc(distlab.distribute)
    assert (ROOT / "docs" / "distribute.md").is_file()


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


def test_without_tensorflow_or_an_extra_the_error_says_how_to_get_it(run_python):
    hidden = "import sys; sys.modules['tensorflow'] = None; import distlab; distlab.make_strategy"
    message = run_python(hidden, fails=True)
    assert "distlab.make_strategy\n  found: tensorflow is not installed for CPython" in message
    assert "to do: pip install distlab" in message
    # TensorFlow would take seconds to import, and is not what this tests.
    hidden = """
import sys, unittest.mock
sys.modules["tensorflow"] = unittest.mock.MagicMock()
sys.modules["tensorflow_datasets"] = None
import distlab
distlab.load_dataset("digits")
"""
    assert 'to do: pip install "distlab[data]"' in run_python(hidden, fails=True)


def test_the_reference_lists_each_name_and_error_with_the_sentence_of_its_docstring():
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- `(dl|distlab)\.([\w.]+)`: (.+)$", page, re.MULTILINE)
    said = {name: text for _, name, text in listed}
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    kinds = {each.__name__ for each in classes if issubclass(each, errors.DistlabError)}
    assert {f"errors.{kind}" for kind in kinds} | set(NAMES) <= set(said)
    assert "training.side_car.evaluate_checkpoints" in said
    for root, name, text in listed:
        module, _, last = name.rpartition(".")
        public = getattr(importlib.import_module(f"distlab.{module}".rstrip(".")), last)
        sentence = " ".join(inspect.getdoc(public).split("\n\n")[0].split())
        assert (root, text) == ("distlab" if module else "dl", sentence), name


def test_the_site_shows_each_docstring_with_its_example():
    pytest.importorskip("sphinx")
    path = ROOT / "docs" / "public_names.py"
    spec = importlib.util.spec_from_file_location("public_names", path)
    spec.loader.exec_module(site := importlib.util.module_from_spec(spec))
    for name in NAMES:
        room = pathlib.Path(distlab.__file__).parent / distlab._ROOMS[name].replace(".", "/")
        lines = site._described(name, site._find(room.with_suffix(".py"), name))
        shown = [line.strip() for line in lines]
        assert inspect.getdoc(getattr(distlab, name)).splitlines()[0] in shown, name
        code = shown[shown.index(".. rubric:: Example") + 2]
        assert code.startswith(">>> "), name
