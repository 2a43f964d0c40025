"""The house keeps its floors: a room imports only rooms below it, and nothing in a circle."""

import ast
import pathlib
import re

import pytest

import distlab

ROOT = pathlib.Path(distlab.__file__).parent
# Folders of tests that are about no room of distlab.
OTHER_TESTS = {"docs", "lessons", "support", "tools", "zoo"}

# Longest prefix wins. `distlab` itself, the front door, may be imported by nobody.
FLOORS = {
    "errors": 0,
    "old_module_names": 0,
    "atomic_write": 0,
    "source_lines": 0,
    "markup": 0,
    "environment": 1,
    "cluster.reading": 1,
    "warm": 2,
    "devices": 2,
    "batching": 2,
    "precision": 2,
    "seeding": 2,
    "printing": 2,
    "quiet_imports": 2,
    "predictions": 2,
    "cluster.spec": 2,
    "cluster.ports": 2,
    "cluster.probing": 2,
    "strategy": 3,
    "datasets": 3,
    "cluster": 3,
    "diagnostics": 4,
    "training": 4,
    "measure": 5,
    "parity": 5,
    "results": 5,
    "course": 5,
    "course_map": 5,
    "coursework": 6,
    "pictures": 6,
    "lab": 6,
    "bench": 7,
    "checks": 7,
    "views": 7,
    "notebooks": 8,
    "landing": 8,
    "autograder.intake": 8,
    "autograder.isolation": 9,
    "autograder.gradebook": 9,
    "autograder.output": 10,
    "autograder": 11,
    "exercise": 12,
    "cli": 13,
    "_jupyter": 13,
}


def room_of(module):
    """'strategy' for 'distlab.strategy.factory': the longest prefix that has a floor."""
    parts = module.split(".")[1:]
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in FLOORS), None)


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT.parent).with_suffix("")
        name = ".".join(relative.parts)
        yield name.removesuffix(".__init__"), path.read_text(encoding="utf-8")


def imports_of(source):
    """Every distlab module a source imports, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("distlab."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distlab"):
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def complaints(module, source):
    here = room_of(module)
    for imported in imports_of(source):
        there = room_of(imported)
        if imported == "distlab.__version__":
            continue
        if there is None:
            yield f"{module} imports {imported}: take it from its room, not from the front door"
        elif there != here and FLOORS[there] >= FLOORS[here]:
            yield f"{module} (floor {FLOORS[here]}) imports {imported} (floor {FLOORS[there]})"


def test_every_module_has_a_floor():
    assert [name for name, _ in modules() if name != "distlab" and room_of(name) is None] == []


def test_rooms_import_only_rooms_on_lower_floors():
    found = [
        complaint
        for module, source in modules()
        if module != "distlab"
        for complaint in complaints(module, source)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "from distlab.training import functions",
        "def f():\n    from distlab.checks.report import Report",
        "import distlab.batching",
        "from distlab import make_strategy",
    ],
)
def test_that_test_would_notice_a_wrong_import(source):
    assert list(complaints("distlab.devices", source))


def test_modules_of_a_room_import_each_other_in_no_circle():
    graph = {name: set() for name, _ in modules()}
    for module, source in modules():
        for imported in imports_of(source):
            target = imported if imported in graph else imported.rpartition(".")[0]
            if target in graph and target != module and module != "distlab":
                graph[module].add(target)
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for leaf in leaves:
            del graph[leaf]
    assert graph == {}


def test_no_module_is_longer_than_300_lines():
    long = {name: len(source.splitlines()) for name, source in modules()}
    assert {name: lines for name, lines in long.items() if lines > 300} == {}


def test_the_room_that_exercises_import_leads_to_no_check():
    # The autograder flags an answer that imports a check, and none that imports coursework.
    assert FLOORS["coursework"] < FLOORS["checks"] < FLOORS["autograder.intake"]


# A lesson names the modules of its own checks as it likes.
OWN_NAMES = "distlab.checks.lesson_"


def test_no_two_modules_share_a_file_name():
    folders = {}
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        if path.name not in ("__init__.py", "__main__.py") and not module.startswith(OWN_NAMES):
            folders.setdefault(path.name, []).append(module)
    assert {name: same for name, same in folders.items() if len(same) > 1} == {}


def test_each_folder_of_tests_has_the_name_of_a_room():
    tests = pathlib.Path(__file__).parent
    folders = {path.parent.name for path in tests.glob("*/*.py")}
    rooms = {path.parent.name for path in ROOT.glob("*/*.py")}
    assert folders - rooms == OTHER_TESTS


def test_what_tests_share_is_in_one_folder():
    tests = pathlib.Path(__file__).parent
    helpers = {path for path in tests.rglob("*.py") if not path.stem.startswith("test_")}
    elsewhere = {path for path in helpers if path.parent.name not in ("support", "zoo")}
    assert {path.name for path in elsewhere} == {"conftest.py"}


def test_only_one_folder_imports_private_names_of_keras():
    private = re.compile(r"^\s*(?:from|import) keras\.src", re.MULTILINE)
    modules = sorted(ROOT.rglob("*.py"))
    found = {path.parent.name for path in modules if private.search(path.read_text("utf-8"))}
    assert found == {"keras_private"}
