"""What earns full marks elsewhere earns nothing here, or is held for a person to look at."""

import os
from pathlib import Path

import pytest

from distlab.autograder.isolation.judge_process import Judge
from distlab.autograder.isolation.static_scan import suspicions
from distlab.warm.process import can_fork
from tests.support.questions import PROBE, SPLIT, asked, cells_of, probed
from tests.support.repository import ROOT

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

CHECKS, FRAMES = "it reaches for the checks", "it looks into Python's own frames and objects"
PATCH, EQUAL = "it replaces a function of a library", "it decides itself what it is equal to"
FORGED = "it sent records of its own to the grader"
WRONG = "\ndef split(examples, replicas):\n    return [examples] * replicas\n"
MODULE = "distlab.checks.lesson_00_start_here.sharing"


@pytest.fixture(scope="module")
def judge():
    with Judge() as judge:
        yield judge


def reasons(outcome):
    return {reason.partition(" (")[0].partition(": ")[0] for reason in outcome.review}


# Names written in parts, as one writes them who knows that the code is read.
IN_PARTS = "part = 'distlab.che' + 'cks.lesson_00_start_here.sharing'\n"

REACHES = {
    "imports it": f"from {MODULE} import split_batch as s\ndef split(e, r): return list(s(e, r))",
    "imports it late": f"def split(e, r):\n    import {MODULE} as m\n"
    "    return list(m.split_batch(e, r))",
    "by name": f"import importlib\n{IN_PARTS}m = importlib.import_module(part)\n"
    "def split(e, r): return list(m.split_batch(e, r))",
    "by __import__": f"{IN_PARTS}def split(e, r):\n"
    "    m = __import__(part, fromlist=['x'])\n    return list(m.split_batch(e, r))",
    "from the loaded modules": f"import sys\n{IN_PARTS}m = getattr(sys, 'mod' + 'ules')[part]\n"
    "def split(e, r): return list(vars(m)['split_batch'](e, r))",
    "finds it": "import importlib\n"
    "m = importlib.import_module('distlab.che' + 'cks.registry').find_check('slices')\n" + SPLIT,
    "reads the file": "import distlab, pathlib\n"
    "text = pathlib.Path(distlab.__file__).with_name('che' + 'cks').joinpath("
    "'lesson_00_start_here', 'sharing.py').read_text()\n" + SPLIT,
    "reads the file by open": "import distlab, os\n"
    "text = open(os.path.dirname(distlab.__file__) + '/che' + 'cks/run_check.py').read()\n" + SPLIT,
    "reads the file by numpy": "import distlab, os\nimport numpy as np\n"
    "lines = np.loadtxt(os.path.dirname(distlab.__file__) + '/che' + 'cks/run_check.py', str,"
    " comments=None, delimiter='\\a', quotechar=None)\n" + SPLIT,
    "replaces the runner": f"import importlib\nm = importlib.import_module('distlab.che' + "
    f"'cks.run_check')\nm.call_check = lambda *a, **k: None\n{WRONG}",
}


@pytest.mark.parametrize("source", REACHES.values(), ids=REACHES)
def test_who_reaches_for_the_checks_is_held(source):
    outcome = asked(source, seeds=(1,))
    assert CHECKS in reasons(outcome)
    assert "of split" in outcome.review[0]


@pytest.mark.parametrize("name", ["private.py", "replicas.py", "clusters.py", "own_runs.py"])
def test_reading_a_teachers_own_checks_is_held_whatever_their_file_is_called(name, tmp_path):
    private = tmp_path / name
    private.write_text(PROBE)
    source = f"text = open({str(private)!r}).read()\ndef probe(): return 42"
    outcome = asked(source, check="probe", extra_checks=private)
    assert outcome.review == (f"{CHECKS} (line 1 of split)",)


LOOKS = {
    "frames": "import sys\ndef split(e, r): return list(sys._getframe(1).f_locals)",
    "frames by name": "import sys\ndef split(e, r):\n"
    "    return [getattr(sys, '_get' + 'frame')(2).f_lineno]",
    "inspect": "import inspect\ndef split(e, r): return [len(inspect.stack())]",
    "everything": "import gc\ndef split(e, r): return [len(getattr(gc, 'get_' + 'objects')())]",
    "tracing": "import sys\ndef split(e, r):\n    getattr(sys, 'set' + 'trace')(None)\n",
    "a traceback": "def split(e, r):\n    try: 1 / 0\n    except ZeroDivisionError as error:\n"
    "        return [str(error.__traceback__.tb_frame.f_back)]",
    "a traceback, in parts": "def split(e, r):\n    try: 1 / 0\n"
    "    except ZeroDivisionError as error:\n"
    "        return [str(getattr(error.__traceback__, 'tb_' + 'frame'))]",
    "a generator, in parts": "g = (one for one in [1])\nframe = getattr(g, 'gi_' + 'frame')\n"
    + SPLIT,
    "by logging": "import logging\ndef split(e, r): return [str(logging.currentframe())]",
    "by traceback": "import traceback\n"
    "def split(e, r): return [str(f) for f, _ in traceback.walk_stack(None)]",
    "tracing by bdb": "import bdb\ndef split(e, r): return [bdb.Bdb().runcall(lambda: 1)]",
    "a module by its class": "import sys, types\n"
    f"{IN_PARTS}m = getattr(sys, 'mod' + 'ules')[part]\n"
    "def split(e, r): return list(types.ModuleType.__getattribute__(m, 'split_batch')(e, r))",
    "a closure": "def split(e, r): return [len(split.__globals__)]",
}


@pytest.mark.parametrize("source", LOOKS.values(), ids=LOOKS)
def test_who_looks_into_python_is_held(source):
    assert FRAMES in reasons(asked(source, seeds=(1,)))


PATCHES = {
    "numpy": "import numpy as np\nnp.allclose = lambda *a, **k: True\n"
    "np.array_equal = np.allclose\n",
    "part of numpy": "import numpy.testing as t\nt.assert_allclose = lambda *a, **k: None\n",
    "tensorflow": "import tensorflow as tf\ntf.reduce_all = lambda *a, **k: True\n",
    "json": "import json\njson.dumps = lambda *a, real=json.dumps, **k: real(*a, **k)\n",
    "os, unseen": "import os\nvars(os)['wri' 'te'] = lambda *a, real=os.write: real(*a)\n",
    "builtins": "import builtins\nsetattr(builtins, 'all', lambda *a: True)\n",
    "with mock": "from unittest import mock\n"
    "mock.patch('numpy.allclose', lambda *a: True).start()\n",
    "unseen": "import numpy\nvars(numpy)['all' 'close'] = lambda *a, **k: True\n",
    "distlab": "import distlab as dl\ndl.check = lambda *a: 'passed'\n",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_a_patched_library_earns_nothing_and_is_held(patch, judge):
    outcome = asked(patch + WRONG)
    report = judge.report("slices", outcome.called)
    assert (report.status, report.earned) == ("not yet", 0)
    assert report.mistake  # judged as any other answer
    assert outcome.review


ALWAYS_EQUAL = """
class Right{base}:
    def __eq__(self, other): return True
    def __getitem__(self, key): return self
    def __hash__(self): return 1
"""
EQUALS = {
    "an object": ALWAYS_EQUAL.format(base="") + "def split(e, r): return Right()",
    "a list": ALWAYS_EQUAL.format(base="(list)") + "def split(e, r): return Right()",
    "an integer": ALWAYS_EQUAL.format(base="(int)") + "def split(e, r): return [Right(0)] * r",
    "an array": "import numpy as np" + ALWAYS_EQUAL.format(base="(np.ndarray)") + "\n"
    "def split(e, r): return np.zeros(r).view(Right)",
    "made by type": "R = type('R', (int,), {'__e' 'q__': lambda a, b: True})\n"
    "def split(e, r): return [R(0)] * r",
}


@pytest.mark.parametrize("source", EQUALS.values(), ids=EQUALS)
def test_an_object_that_equals_everything_earns_nothing(source, judge):
    outcome = asked(source)
    assert judge.report("slices", outcome.called).earned == 0
    assert EQUAL in reasons(outcome)


FORGE = """
import os, struct, json
def record(head, payload=b""):
    text = json.dumps(head).encode()
    os.write(3, struct.pack("!IQ", len(text), len(payload)) + text + payload)
"""
CALLED = "{'called': {'seed': 1, 'failure': None, 'printed': ''}, 'token': '0' * 32}"
FORGERIES = {
    "a call": f"record({CALLED}, b'distlab1')",
    "the end": "record({'done': True})",
    "no JSON": "os.write(3, struct.pack('!IQ', 2, 0) + b'no')",
    "noise": "os.write(3, os.urandom(100_000))",
    "far too large": "os.write(3, struct.pack('!IQ', 2, 2**62))",
    "zeros": "os.write(3, bytes(100))",
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("then", ["os._exit(0)", "pass"])
def test_forged_records_earn_nothing(forgery, then, judge):
    outcome = asked(f"{FORGE}\n{forgery}\n{then}\n{SPLIT}")
    assert outcome.stopped in (
        "it sent something that is not an answer",
        "its answer is too large to be sent",
    )
    assert judge.report("slices", outcome.called).earned == 0


def test_a_call_that_is_sent_with_the_token_is_judged_like_any_other(judge):
    """Who finds the token gains nothing by it: right is only what is right."""
    source = (
        FORGE
        + WRONG
        + (
            "import gc\n"
            "from distlab.results.plain_values import encode\n"
            "(sender,) = [o for o in gc.get_objects() if type(o).__name__ == 'Sender']\n"
            "cases = {'equal': [1], 'smaller': [1], 'nothing': [1]}\n"
            "for seed in (1, 2):\n"
            "    called = {'seed': seed, 'failure': None, 'printed': ''}\n"
            "    sender.send({'called': called}, encode(cases))\n"
            "sender.send({'done': True})\n"
        )
    )
    outcome = asked(source)
    assert [called.failure for called in outcome.called] == [None, None]
    assert judge.report("slices", outcome.called).earned == 0
    assert {CHECKS, FRAMES} <= reasons(outcome)


# What a note is sent with, or where to: replaced for as long as the checks are looked at.
WITHHOLD = {
    "json": """
import json
real = json.dumps
def fake(head, **more):
    if 'review' in head: raise OSError
    return real(head, **more)
vars(json)['dumps'] = fake
(peek(), vars(json).update(dumps=real))
""",
    "write": """
import os
real = os.write
vars(os)['write'] = lambda fd, data: len(data)
(peek(), vars(os).update(write=real))
""",
    "another pipe": """
import os
kept, null = os.dup(3), os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 3)
(peek(), os.dup2(kept, 3))
""",
    "no pipe": """
import os
kept = os.dup(3)
os.close(3)
(peek(), os.dup2(kept, 3))
""",
    "an end that is none": """
import os
kept = os.dup(3)
os.close(3)
vars(os)['_exit'] = lambda code: None
(peek(), os.dup2(kept, 3))
""",
}


@pytest.mark.parametrize("withhold", WITHHOLD.values(), ids=WITHHOLD)
def test_no_note_can_be_held_back(withhold, judge):
    peek = (
        "import importlib\ndef peek():\n"
        "    global m\n    m = importlib.import_module('distlab.che' + 'cks.run_check')\n"
        "    m.call_check\n"
    )
    outcome = asked(peek + withhold + SPLIT)
    earned = judge.report("slices", outcome.called).earned
    assert earned == 0 or any(reason.startswith(CHECKS) for reason in outcome.review)


def test_reasons_without_end_that_are_sent_with_the_token_are_not_kept():
    source = (
        "import gc\n(sender,) = [o for o in gc.get_objects() if type(o).__name__ == 'Sender']\n"
        "for number in range(500): sender.send({'review': str(number) * 1000})\n"
    )
    outcome = asked(source + SPLIT)
    assert len(outcome.review) == 20
    assert max(map(len, outcome.review)) == 300


@pytest.mark.parametrize("seeds", ["(1, 1)", "(2, 1)", "(1, 2, 3)", "(7,)"])
def test_calls_of_other_seeds_are_forged(seeds):
    source = (
        "import gc\n(sender,) = [o for o in gc.get_objects() if type(o).__name__ == 'Sender']\n"
        f"for seed in {seeds}:\n"
        "    sender.send({'called': {'seed': seed, 'failure': None, 'printed': ''}}, b'')\n"
        "sender.send({'done': True})\n"
    )
    assert FORGED in asked(source + SPLIT).review


def test_writing_outside_of_the_folder_is_held(tmp_path):
    file = tmp_path / "outside"
    outcome = asked(f"open({str(file)!r}, 'w').write('x')\n{SPLIT}")
    assert outcome.review == (f"it writes outside of its folder: {file} (line 1 of split)",)
    assert file.exists()  # it is seen, and cannot be kept from it


@pytest.mark.parametrize(
    "change",
    [
        "os.mkdir({0!r})",
        "os.makedirs({0!r} + '/below')",
        "open('mine', 'w'); os.rename('mine', {0!r})",
        "os.symlink('/', {0!r})",
        "os.link(__import__('tempfile').mkstemp()[1], {0!r})",
        "pathlib.Path({0!r}).touch()",
        "np.save({0!r}, np.ones(3))",
        "np.ones(3).tofile({0!r})",
        "shutil.copyfile('/proc/self/comm', {0!r})",
    ],
)
def test_making_files_outside_of_the_folder_is_held(tmp_path, change):
    file = str(tmp_path / "outside")
    change = change.format(file)
    outcome = asked(f"import os, pathlib, shutil; import numpy as np\n{change}\n{SPLIT}")
    assert outcome.review[0].startswith(f"it writes outside of its folder: {file}")
    assert outcome.review[0].endswith(" (line 2 of split)")


@pytest.mark.parametrize("change", ["os.remove", "os.truncate", "os.chmod", "os.rmdir"])
def test_changing_files_outside_of_the_folder_is_held(tmp_path, change):
    file = tmp_path / "outside"
    file.mkdir() if change == "os.rmdir" else file.touch()
    more = {"os.truncate": ", 0", "os.chmod": ", 0o600"}.get(change, "")
    outcome = asked(f"import os\n{change}({str(file)!r}{more})\n{SPLIT}")
    assert outcome.review == (f"it writes outside of its folder: {file} (line 2 of split)",)


def test_memory_that_looks_like_files_is_outside_of_the_folder(tmp_path):
    name = f"/dev/shm/{tmp_path.name}-{os.getpid()}"
    try:
        outcome = asked(f"open({name!r}, 'w').write('x')\n{SPLIT}")
    finally:
        Path(name).unlink(missing_ok=True)
    assert outcome.review == (f"it writes outside of its folder: {name} (line 1 of split)",)


IN_TASKS = """
import importlib
import distlab as dl

def peek():
    open({file!r}, "w").close()
    m = importlib.import_module("distlab.che" + "cks.lesson_00_start_here")
    try: 1 / 0
    except ZeroDivisionError as error: getattr(error.__traceback__, "tb_" + "frame")

def probe():
    dl.LocalCluster(workers=2).run(peek)
"""


def test_tasks_of_a_cluster_are_looked_on_too(tmp_path):
    file = str(tmp_path / "outside")
    _, outcome = probed(IN_TASKS.format(file=file), tmp_path)
    assert set(outcome.review) == {
        f"it writes outside of its folder: {file} (line 6 of split)",
        f"{CHECKS} (line 7 of split)",
        f"{FRAMES} (line 9 of split)",
    }


@pytest.mark.parametrize(
    "whom",
    [
        "os.getppid()",
        "int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])",
    ],
)
def test_a_signal_to_what_watches_is_held(whom):
    outcome = asked(f"import os\nos.kill({whom}, 0)\n{SPLIT}")
    assert outcome.review == ("it signals the process that watches over it (line 2 of split)",)
    assert asked(f"import os\nos.kill(os.getpid(), 0)\n{SPLIT}").review == ()


def test_reasons_are_told_once_and_not_without_end():
    lines = "\n".join(f"sys._getframe({number} * 0)" for number in range(50))
    outcome = asked(f"import sys\nfor _ in range(3):\n    sys._getframe()\n{lines}\n{SPLIT}")
    assert len(outcome.review) == len(set(outcome.review)) == 20


def test_changing_what_the_notebook_runs_earns_nothing():
    source = "get_ipython().input_transformers_cleanup.append(lambda lines: [])\n" + WRONG
    outcome = asked(source)
    assert outcome.called[0].failure.error.startswith("NameError: name 'get_ipython'")
    assert reasons(outcome) == {"it changes what the notebook runs"}


HONEST = """
import collections, contextlib, copy, dataclasses, functools, gc, io, json, logging, math, os
import pickle, random, shutil, sys, tempfile, traceback, typing, warnings
from pathlib import Path
import numpy as np
import tensorflow as tf
import keras
import distlab as dl
from distlab.coursework.process_calls import call_in_process

Pair = collections.namedtuple("Pair", "a b")

class Three(typing.NamedTuple):
    a: int

@dataclasses.dataclass(frozen=True)
class Size:
    a: int = 0

class Layer(keras.layers.Layer):
    def call(self, x): return tf.stack([x, x])

@tf.function
def added(x):
    total = 0
    for i in tf.range(3):
        if i > 1: total += i
    return total + tf.cast(x, tf.int32)

np.random.seed(1); tf.random.set_seed(1); gc.collect()
logging.warning("a warning"); warnings.warn("another")
pickle.loads(pickle.dumps([Pair(1, 2), Three(3), np.add, np.float32(1)]))
copy.deepcopy(Size()); print(sys.version, os.getcwd(), file=io.StringIO())
with open("notes.txt", "w") as file: file.write("mine")
with tempfile.TemporaryDirectory() as folder: np.save(folder + "/x.npy", np.ones(3))
os.makedirs("a/b", exist_ok=True); os.rename("notes.txt", "a/notes"); os.symlink("a", "link")
shutil.copytree("a", "copy"); shutil.rmtree("copy"); os.remove("a/notes"); Path("x").touch()
os.chdir("a"); os.rmdir("b"); os.chdir(".."); display(1, np.ones(2))
with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing): print("x")
try: 1 / 0
except ZeroDivisionError: text = traceback.format_exc()
Layer()(tf.ones(2)); added(2.0); dl.show("x", 1, expected=1)
self = Size(); object.__setattr__(self, "a", 1)
dl.check
"""


def test_honest_code_is_not_suspected():
    outcome = asked(HONEST + SPLIT)
    assert [called.failure for called in outcome.called] == [None, None]
    assert outcome.review == ()


@pytest.mark.parametrize("folder", ["solutions", "exercises"])
def test_no_exercise_needs_what_is_suspected(folder):
    notebooks = sorted((ROOT / folder).glob("*.ipynb"))
    assert notebooks
    found = {path.stem: suspicions(cells_of(path)) for path in notebooks}
    assert {stem: reasons for stem, reasons in found.items() if reasons} == {}


def test_a_suspicion_names_its_line_and_does_not_fail_the_answer(judge):
    outcome = asked("import inspect\n" + SPLIT)
    assert outcome.review == (f"{FRAMES} (line 1 of split: import inspect)",)
    assert judge.report("slices", outcome.called).passed


def test_text_that_is_no_python_is_not_read():
    assert suspicions([("a", "def ("), ("b", "(" * 500), ("c", "\0")]) == []
