"""Of a notebook runs what a function needs, in its order, and nothing else."""

import random

import pytest

from distlab.autograder.intake.code_slice import Cell, python_of, slice_of


def cells(*sources):
    return [Cell(name=f"cell {number}", source=source) for number, source in enumerate(sources, 1)]


def kept(*sources, wanted="f", until=None):
    last = len(sources) - 1 if until is None else until
    program = slice_of(cells(*sources), wanted=[wanted], until=last)
    return [[line for line in cell.source.split("\n") if line] for cell in program]


def ran(*sources, wanted="f", until=None):
    """What the function returns when its slice has run."""
    last = len(sources) - 1 if until is None else until
    names = {}
    for cell in slice_of(cells(*sources), wanted=[wanted], until=last):
        exec(compile(cell.source, cell.name, "exec"), names)
    return names[wanted]()


def test_what_nobody_needs_is_left_out():
    assert kept("import time\ntime.sleep(600)", "def f():\n    return 1", "f()") == [
        ["def f():", "    return 1"]
    ]


def test_what_is_needed_at_a_distance_comes_along():
    program = kept(
        "import math as m, os\nimport sys",
        "width = m.pi\nheight = 3\ndepth = 4",
        "area = width * height",
        "def inner():\n    return area",
        "def f():\n    return [inner() for _ in range(2)]",
    )
    assert program == [
        ["import math as m, os"],
        ["width = m.pi", "height = 3"],
        ["area = width * height"],
        ["def inner():", "    return area"],
        ["def f():", "    return [inner() for _ in range(2)]"],
    ]


def test_lines_stay_where_they_are():
    [cell] = slice_of(cells("1 / 0\n\n@dec\ndef f():\n    return 1\n1 / 0"), wanted=["f"], until=0)
    assert cell.source.split("\n").index("@dec") == 2


def test_of_two_bindings_the_one_before_counts():
    both = ("x = 1", "def f():\n    return x", "x = 2")
    assert ran(*both, until=1) == 1
    assert ran(*both, until=2) == 2
    assert kept(*both, until=2)[0] == ["def f():", "    return x"]


def test_what_is_only_bound_after_it_is_found_there():
    assert ran("def f():\n    return helper()", "def helper():\n    return 5", until=0) == 5


def test_changes_of_a_thing_belong_to_it():
    sources = (
        "table = {}\nother = []",
        "table['a'] = 1\nother[:] = [1]",
        "class Box: pass\nbox = Box()\nbox.size = 3",
        "count = 0\ncount += 2",
        "def f():\n    return table['a'] + box.size + count",
    )
    assert ran(*sources) == 6
    assert not [line for cell in kept(*sources) for line in cell if "other" in line]


def test_calls_of_a_module_are_taken_to_change_nothing():
    sources = ("import time", "time.sleep(600)", "def f():\n    return time.monotonic() > 0")
    assert ran(*sources) is True


def test_a_binding_that_reads_itself_needs_the_one_before():
    assert ran("x = [1]", "x = x + [2]", "def f():\n    return x") == [1, 2]


def test_bindings_under_a_condition_do_not_hide_the_one_before():
    assert ran("x = 1", "if False:\n    x = 2", "def f():\n    return x") == 1
    assert (
        ran(
            "try:\n    import nothing_of_that_name as x\nexcept ImportError:\n    x = 3",
            "def f():\n    return x",
        )
        == 3
    )


def test_loops_decorators_defaults_and_classes_are_looked_into():
    sources = (
        "from functools import lru_cache\nbase = 2\nstep = 3",
        "class Base:\n    size = base",
        "class Mine(Base):\n    def get(self):\n        return self.size + step",
        "@lru_cache\ndef f(made=Mine()):\n    return made.get()",
    )
    assert ran(*sources) == 5


def test_names_of_a_functions_own_are_no_global_names():
    assert kept("model = 1 / 0", "def f(data=None):\n    model = data\n    return model") == [
        ["def f(data=None):", "    model = data", "    return model"]
    ]


def test_a_star_may_bring_anything():
    assert ran("from math import *", "def f():\n    return floor(2.5)") == 2


def test_global_names_that_functions_set_are_bound_by_them():
    assert ran("total = 0", "def f():\n    global total\n    total += 1\n    return total") == 1


@pytest.mark.parametrize(
    ("source", "python"),
    [
        ("%load_ext distlab\nx = 1", "pass\nx = 1"),
        ("!pip install x", "pass"),
        ("if x:\n    %time f()", "if x:\n    f()"),
        ("%time x = f(1)\ny = %time g()", "x = f(1)\ny = g()"),
        ("%timeit f()\nx = !ls -l\ny = %sql z", "pass\nx = None\ny = None"),
        ("%%time\nx = 1", "\nx = 1"),
        ("\n%%capture out\n%time x = 1", "\n\nx = 1"),
        ("%%timeit\nx = 1", ""),
        ("%%", ""),
        ("x = (7\n     % y)", "x = (7\n     % y)"),
        ("!ls\nx = (7\n     % y)", "pass\nx = (7\n     % y)"),
        ("x = '''\n%time\n!ls\n'''", "x = '''\n%time\n!ls\n'''"),
        ("f?", "pass"),
        ("np.mean??", "pass"),
        ("%%workers\nprint(1)", ""),
        ("x = 7 % 2\ny = '%d' % x", "x = 7 % 2\ny = '%d' % x"),
    ],
)
def test_what_only_a_notebook_understands_is_left_out(source, python):
    assert python_of(source) == python


def test_a_cell_that_is_no_python_gives_nothing():
    broken = ["x = = 1", "y = 1\x00", "return 1", "x = " + "-" * 100_000 + "1", "(" * 100_000]
    assert kept(*broken, "def f():\n    return 1") == [["def f():", "    return 1"]]


def test_what_has_too_much_to_follow_runs_all():
    sources = ("x = 0\n" + "if x < 3: x = x + 1\n" * 1000, "y = 1", "def f():\n    return x")
    assert ran(*sources) == 3
    assert kept(*sources)[1] == ["y = 1"]


def test_any_program_gives_the_same_by_its_slice():
    """Programs drawn at random: what the whole notebook gives, its slice gives too."""
    for seed in range(200):
        draw = random.Random(seed)
        names = [f"n{number}" for number in range(6)]
        sources = [f"{name} = [{number}]" for number, name in enumerate(names)]
        for _ in range(12):
            one, other = draw.sample(names, 2)
            sources.append(
                draw.choice(
                    [
                        f"{one} = {other} + [1]",
                        f"{one}[0] = len({other})",
                        f"{one} += {other}[:2]",
                        f"{one}.append(len({other}))",
                        f"print({one}, end='')",
                        f"if len({other}) > 2:\n    {one} = list({other})",
                        f"def g_{one}():\n    return {other}\n{one} = list(g_{one}())",
                    ]
                )
            )
        sources.append(f"def f():\n    return {draw.choice(names)} + {draw.choice(names)}")
        whole = {}
        for source in sources:
            exec(source, whole)
        assert ran(*sources) == whole["f"](), seed
