"""Functions are sent with their source, whatever cloudpickle does with the names of files."""

import linecache
import pickle
import sys
from types import CodeType, ModuleType

import cloudpickle
import pytest

from distlab.cluster.local.remote_calls import answer, pack_call
from distlab.course.runs.process_calls import call_in_process
from distlab.errors import TaskFailed
from distlab.source_lines import keep_lines

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such processes")
CELL = """
import functools, inspect
import tensorflow as tf

def plain(x):
    return x + 1

def outer():
    def nested(x):
        return x + 2
    return nested

nested = outer()
short = lambda x: x + 3

class Model:
    def method(self, x):
        return x + 4

    @staticmethod
    def static(x):
        return x + 5

    class Inner:
        def __call__(self, x):
            return x + 6

def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

@logged
def decorated(x):
    return x + 7

@tf.function
def traced(x):
    while x < 8.0:  # AutoGraph's loop, for which it reads the source
        x += 1.0
    return x

part = functools.partial(nested, 8)

def uses_global(x):
    return plain(x)

def outer_closure():
    inner = Model().method
    return lambda x: inner(x)

uses_closure = outer_closure()

def look(kinds):
    found = {}
    for name, (value, find) in kinds.items():
        function = find(value)
        lines, first = inspect.getsourcelines(function.__code__)
        positions = [*function.__code__.co_positions()]
        found[name] = (function.__code__.co_filename, first, "".join(lines), positions)
    return found

def look_and_trace(kinds):
    return look(kinds), float(traced(tf.constant(0.0)))

def give_back(kinds):
    return kinds

def fail():
    raise ValueError("boom")  # in the cell
"""
# What is sent, and how one comes from that to the function whose source is asked for.
KINDS = """{
    "a function": (plain, lambda it: it),
    "a nested one": (nested, lambda it: it),
    "one that holds another": (outer, lambda it: it()),
    "a lambda": (short, lambda it: it),
    "a method": (Model().method, lambda it: it.__func__),
    "a static method": (Model.static, lambda it: it),
    "a class": (Model, lambda it: it.method),
    "an object": (Model.Inner(), lambda it: type(it).__call__),
    "a wrapper": (decorated, lambda it: it),
    "what it wraps": (decorated, lambda it: it.__wrapped__),
    "a tf.function": (traced, lambda it: it.python_function),
    "a partial": (part, lambda it: it.func),
    "a global": (uses_global, lambda it: it.__globals__["plain"]),
    "a closure": (uses_closure, lambda it: it.__closure__[0].cell_contents.__func__),
    "in a list": ([plain], lambda it: it[0]),
}"""


@pytest.fixture(params=["as installed", "without file names"])
def cloudpickles(request, monkeypatch):
    """Both kinds of cloudpickle: since 3.1.3 it calls the file of all code `<dynamic-code>`."""
    if request.param == "without file names":
        table = cloudpickle.Pickler.dispatch_table
        reduce = table[CodeType]

        def forget(code):
            return reduce(code.replace(co_filename="<dynamic-code>"))

        monkeypatch.setitem(table, CodeType, forget)


@pytest.fixture(params=["cell", "script", "module"])
def code(request, monkeypatch, tmp_path):
    """The names of a notebook's cell, of a script, or of a module beside one."""
    name = "helpers_of_a_script" if request.param == "module" else "__main__"
    module, path = ModuleType(name), tmp_path / f"{request.param}.py"
    if request.param == "cell":  # its file is made up
        keep_lines({str(path): CELL.splitlines(keepends=True)})
    else:
        path.write_text(CELL)
        module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(CELL, str(path), "exec"), vars(module))
    yield module
    linecache.cache.pop(str(path), None)


def test_every_kind_of_function_has_its_source_on_a_task(shared, code, cloudpickles):
    kinds = eval(KINDS, vars(code))
    here = code.look(kinds)
    assert len({found[1] for found in here.values()}) == 9
    assert here["a method"][2] == "    def method(self, x):\n        return x + 4\n"
    assert shared.run(code.look_and_trace, kinds, tasks="worker:0") == [(here, 8.0)]
    with pytest.raises(TaskFailed) as caught:
        shared.run(code.fail, tasks="worker:1")
    assert 'raise ValueError("boom")  # in the cell' in str(caught.value)


def test_what_comes_back_keeps_it(code, cloudpickles, tmp_path):
    kinds = eval(KINDS, vars(code))
    here, call, result = code.look(kinds), tmp_path / "call", tmp_path / "result"
    call.write_bytes(pack_call(code.give_back, (kinds,)))
    answer(str(call), str(result))  # as in the task, but with this process's cloudpickle
    assert code.look(pickle.loads(result.read_bytes())) == here


def test_a_process_of_a_check_has_it_too(code, cloudpickles):
    found = code.look({"it": (code.plain, lambda it: it)})["it"][:3]
    job = eval("lambda look: [*look({'it': (plain, lambda it: it)})['it'][:3]]", vars(code))
    assert tuple(call_in_process(code.look, job=job).result) == found
