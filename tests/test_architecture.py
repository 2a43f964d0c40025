"""The wings of ARCHITECTURE.md keep its three import rules."""

import ast
import itertools
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
FOLDERS = {
    ".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in PACKAGE.rglob("*.py")
}


def imports_of(source):
    """Every distlab module that a source imports when it runs, also inside functions."""
    tree = ast.parse(source)
    for_types = [
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
    ]
    for node in ast.walk(tree):
        if node in for_types:
            continue
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


def folders_that_need_each_other():
    """The sides of an import that are folders of one folder, where some import the other way."""
    needs = {}
    for module, source in MODULES.items():
        for imported in imports_of(source):
            pairs = itertools.zip_longest(module.split("."), imported.split("."), fillvalue="")
            shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            side, other = (".".join(name.split(".")[: shared + 1]) for name in (module, imported))
            beside = side.count(".") == other.count(".") == shared
            if {side, other} <= FOLDERS and side != other and beside:
                needs.setdefault(side, set()).add(other)
    while leaves := [name for name, others in needs.items() if not others & needs.keys()]:
        for leaf in leaves:
            del needs[leaf]
    return needs


def test_folders_import_each_other_in_no_circle():
    assert folders_that_need_each_other() == {}


def test_a_circle_of_folders_would_be_noticed(monkeypatch):
    monkeypatch.setitem(
        MODULES, "distlab.training.keras_private.x", "import distlab.training.rule.rows"
    )
    assert folders_that_need_each_other().keys() >= {
        "distlab.training.keras_private",
        "distlab.training.rule",
    }


PRIVATE_MODULE = re.compile(r"^(keras\.src|tensorflow\.python)\b")


def private_names(source):
    """What a source reads of another's: private modules, and attributes with an underscore."""
    tree = ast.parse(source)
    defined = {node.name for node in ast.walk(tree) if hasattr(node, "name")}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and PRIVATE_MODULE.match(node.module or ""):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if PRIVATE_MODULE.match(a.name))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield from [node.attr] if is_private(node.attr, defined) else []
        elif isinstance(node, ast.FunctionDef) and "self" in [a.arg for a in node.args.args[1:]]:
            # A replacement, whose self is Keras's.
            yield from (
                part.attr
                for part in ast.walk(node)
                if isinstance(part, ast.Attribute)
                and ast.unparse(part.value) == "self"
                and is_private(part.attr, defined)
            )
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value, defined):
                yield name.value


def is_private(name, defined):
    """Whether a name belongs to somebody else: distlab's own marks and this file's are not."""
    return (
        name.startswith("_")
        and not name.startswith(("__", "_distlab"))
        and name not in defined | {"_getframe"}
    )


def test_only_one_place_of_the_wing_reads_what_is_private_in_keras_and_tensorflow():
    read = {
        name: found
        for name, source in MODULES.items()
        if name.startswith("distlab.training") and "keras_private" not in name
        if (found := sorted(set(private_names(source))))
    }
    assert read == {}
    keras = [
        name for name, source in MODULES.items() if re.search(r"^\s*from keras\.src", source, re.M)
    ]
    assert keras
    assert [name for name in keras if "keras_private" not in name] == []


@pytest.mark.parametrize(
    "source",
    [
        "from keras.src import backend",
        "import tensorflow.python.eager.context",
        "def f(model):\n    return model._compile_loss",
        "def f(step, original, self):\n    return self._fn",
        "x = getattr(strategy, '_cluster_resolver', None)",
    ],
)
def test_a_private_name_would_be_noticed(source):
    assert list(private_names(source))


def test_the_page_fits_on_a_screen_and_a_half_and_names_what_exists():
    named = re.findall(r"`((?:distlab|tests|tools|notebooks)/[\w./]*)`", PAGE)
    places = [name for name in named if "NN_slug" not in name]
    assert len(places) > 15
    assert [name for name in places if not (ROOT / name).exists()] == []
    wings = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert [name for name in wings if f"`{name}/`" not in PAGE] == []
    assert len(PAGE.splitlines()) < 100
