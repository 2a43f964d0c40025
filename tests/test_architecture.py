"""The wings of ARCHITECTURE.md keep its three import rules."""

import ast
import pathlib
import re

import pytest

import distlab
from tests.support.repository import ROOT

PACKAGE = pathlib.Path(distlab.__file__).parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LIBRARY = {"training", "strategy", "cluster"}
ABOVE_IT = {"course", "autograder", "authoring"}
SOURCES = {"lesson.py", "exercise.py"}  # cells of a notebook, which nothing imports


def modules():
    """The source of every module, by its name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name.startswith("lesson_") and path.name in SOURCES:
            continue
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        yield name.removesuffix(".__init__"), path.read_text(encoding="utf-8")


MODULES = dict(modules())


def imports_of(source):
    """Every distlab module a source imports, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("distlab"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distlab"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def part_of(module, level):
    """The wing of a module (level 1), or the folder in it (level 2)."""
    parts = module.split(".")
    return parts[level] if len(parts) > level else ""


def complaint(module, imported):
    """Which rule an import breaks."""
    wing, other = part_of(module, 1), part_of(imported, 1)
    if wing not in ABOVE_IT | {"", "cli"} and other in ABOVE_IT:
        return "the library imports nothing from the course, the autograder or authoring"
    lesson, other_lesson = part_of(module, 2), part_of(imported, 2)
    if lesson.startswith("lesson_") and other_lesson.startswith("lesson_"):
        if lesson != other_lesson:
            return "a lesson imports no other lesson"
        if "checks" in imported.split(".") and "checks" not in module.split("."):
            return "what an answer may import leads to no check"
    if wing == "course" and lesson in ("runs", "figures") and "checks" in imported.split("."):
        return "what an answer may import leads to no check"
    return ""


def test_the_import_rules_hold():
    broken = [
        f"{module} imports {imported}: {rule}"
        for module, source in MODULES.items()
        for imported in imports_of(source)
        if (rule := complaint(module, imported))
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("distlab.training.distribute", "from distlab.course import palette"),
        ("distlab.errors", "def f():\n    from distlab.course.checks.report import Report"),
        (
            "distlab.course.lesson_09_multi_worker.runs",
            "from distlab.course.lesson_03_custom_training_loop import runs",
        ),
        ("distlab.course.runs.replicas", "from distlab.course.checks import Check"),
    ],
)
def test_those_rules_would_notice(module, source):
    assert any(complaint(module, imported) for imported in imports_of(source))


def test_modules_import_each_other_in_no_circle():
    graph = {module: set() for module in MODULES if module != "distlab"}
    for module in graph:
        graph[module] = {name for name in imports_of(MODULES[module]) if name in graph} - {module}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for leaf in leaves:
            del graph[leaf]
    assert graph == {}


def test_only_one_place_imports_private_names_of_keras():
    private = re.compile(r"^\s*(?:from|import) keras\.src", re.MULTILINE)
    names = [name.split(".") for name, source in MODULES.items() if private.search(source)]
    assert names
    assert [name for name in names if name[-2] != "keras_private"] == []


def test_the_page_fits_on_a_screen_and_a_half_and_names_what_exists():
    named = re.findall(r"`((?:distlab|tests|tools|notebooks)/[\w./]*)`", PAGE)
    places = [name for name in named if "NN_slug" not in name]
    assert len(places) > 15
    assert [name for name in places if not (ROOT / name).exists()] == []
    wings = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert [name for name in wings if f"`{name}/`" not in PAGE] == []
    assert len(PAGE.splitlines()) < 100
