"""The house keeps the floors of ARCHITECTURE.md: a room imports only rooms below it."""

import ast
import pathlib
import re

import distlab
from tests.support.repository import ROOT

PACKAGE = pathlib.Path(distlab.__file__).parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
# Longest prefix wins. `distlab` itself, the front door, may be imported by nobody.
FLOORS = {
    room.replace("/", "."): int(floor)
    for floor, rooms in re.findall(r"^\| (\d+) \| (.*?) \|", PAGE, flags=re.MULTILINE)
    for room in re.findall(r"`(.*?)`", rooms)
}


def room_of(module):
    """'strategy' for 'distlab.strategy.factory': the longest prefix that has a floor."""
    parts = module.split(".")[1:]
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in FLOORS), None)


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE.parent).with_suffix("")
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
    room = room_of(module)
    for imported in imports_of(source):
        target = room_of(imported)
        if imported == "distlab.__version__":
            continue
        if target is None:
            yield f"{module} imports {imported}: take it from its room, not from the front door"
        elif target != room and FLOORS[target] >= FLOORS[room]:
            yield f"{module} (floor {FLOORS[room]}) imports {imported} (floor {FLOORS[target]})"


def test_rooms_import_only_rooms_on_lower_floors():
    rooms = [(name, source) for name, source in modules() if name != "distlab"]
    assert [name for name, _ in rooms if room_of(name) is None] == [], "without a floor"
    assert [line for name, source in rooms for line in complaints(name, source)] == []


def test_that_test_would_notice_a_wrong_import():
    for source in (
        "from distlab.training import functions",
        "def f():\n    from distlab.checks.report import Report",
        "import distlab.batching",
        "from distlab import make_strategy",
    ):
        assert list(complaints("distlab.devices", source)), source


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


def test_the_page_is_one_page_and_names_rooms_and_files_that_exist():
    assert len(FLOORS) > 20
    rooms = {room: PACKAGE / room.replace(".", "/") for room in FLOORS}
    absent = [
        room
        for room, path in rooms.items()
        if not (path.is_dir() or path.with_suffix(".py").is_file())
    ]
    assert absent == []
    named = re.findall(r"`((?:distlab|lessons|tests|tools|notebooks|autograder)/[\w./]*)`", PAGE)
    places = [name for name in named if "NN_slug" not in name]
    assert len(places) > 20
    assert [name for name in places if not any((f / name).exists() for f in (ROOT, PACKAGE))] == []
    assert len(PAGE.splitlines()) < 100


def test_the_room_that_exercises_import_leads_to_no_check():
    # An answer may import coursework, and need not import a check.
    assert FLOORS["coursework"] < FLOORS["checks"] < FLOORS["autograder.intake"]


def test_only_what_is_named_for_it_imports_private_names_of_keras():
    private = re.compile(r"^\s*(?:from|import) keras\.src", re.MULTILINE)
    names = [name.split(".") for name, source in modules() if private.search(source)]
    assert names
    assert [name for name in names if "keras_private" not in name[-2:]] == []
