"""Where an answer runs: its failures are told, its limits hold, and it can do no harm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distlab.autograder.intake.private_checks import check_named, load_checks
from distlab.autograder.isolation.judge_process import Judge
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.run_isolated import Question, ask
from distlab.autograder.isolation.static_scan import suspicions
from distlab.course.results.failures import Failure, FailureKind
from distlab.course.results.plain_values import decode
from distlab.errors import InvalidArgument, UnsupportedEnvironment
from distlab.warm.process import can_fork, shared_server
from tests.support.questions import (
    SPLIT,
    are_gone,
    asked,
    cells_of,
    pids_in,
    probed,
    wait_until,
    working_in,
)
from tests.support.repository import ROOT

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

WRONG = "\ndef split(examples, replicas):\n    return [examples] * replicas\n"
# Two processes that outlive the one that started them, and one that listens to no one.
LEAVES_CHILDREN = """
import os, signal, subprocess, sys, time
CODE = "import os, time; open(f'pid{os.getpid()}', 'w').write(str(os.getpid())); time.sleep(600)"

def start():
    subprocess.Popen([sys.executable, "-c", CODE], start_new_session=True)
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        if not os.fork():
            exec(CODE)
        os._exit(0)
    while len([name for name in os.listdir() if name.startswith("pid")]) < 2:
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def judge():
    with Judge() as judge:
        yield judge


# What an answer gives


def test_an_answer_is_called_once_for_each_seed_and_its_prints_are_kept():
    source = SPLIT + "    \ndef split(e, r, right=split):\n    display('x')\n    return right(e, r)"
    outcome = asked(source, seeds=(5, 6, 7))
    assert [called.seed for called in outcome.called] == [5, 6, 7]
    assert [called.failure for called in outcome.called] == [None] * 3
    assert set(decode(outcome.called[0].payload)) == {"equal", "smaller", "nothing"}
    assert outcome.called[0].printed.splitlines() == ["'x'"] * 3
    assert (outcome.stopped, outcome.review) == ("", ())


def test_failures_tell_the_learners_lines():
    cases = {
        "x = 1": ("NameError: no cell defines `split`", ""),
        "def split(e, r):\n    return e +": ("SyntaxError: invalid syntax", "line 2 in split"),
        "x = 1\ny = [][x]": ("IndexError: list index", "line 2 in split: y = [][x]"),
        "def split(e, r):\n    exit()": ("SystemExit", "line 2 in split: exit()"),
        "\0": ("", "somewhere in split"),
        "x = '\ud800'": ("UnicodeEncodeError: ", "somewhere in split"),
        "x = '\u2028'\n\x0c\n1 / 0": ("ZeroDivisionError", "line 3 in split: 1 / 0"),
    }
    wrong = {}
    for source, (error, line) in cases.items():
        (called,) = asked(source).called
        lines = "".join(called.failure.lines)
        if not (called.failure.error.startswith(error) and lines.startswith(line)):
            wrong[source] = called.failure
        assert called.payload == b""
    assert wrong == {}


def test_an_end_of_the_process_is_said_in_words_and_calls_before_it_are_kept():
    cases = {
        "os._exit(0)": "its process ended by itself, with exit code 0",
        "os._exit(7)": "its process ended by itself, with exit code 7",
        "os.kill(os.getpid(), 9)": "its process was ended by SIGKILL",
        "os.closerange(0, 100)": "its process ended by itself, with exit code 1",
    }
    for ending, says in cases.items():
        outcome = asked(f"import os\ndef split(e, r):\n    {ending}\nsplit(1, 2)")
        assert outcome.stopped == says
        assert [called.failure for called in outcome.called] == [
            Failure(FailureKind.ERROR, f"Stopped: {says}")
        ]
    source = "count = 0\ndef split(e, r):\n    global count\n    count += 1\n"
    outcome = asked(source + "    if count > 3: __import__('os')._exit(0)\n    return count")
    first, second = outcome.called
    assert decode(first.payload) == {"equal": 1, "smaller": 2, "nothing": 3}
    assert second.failure.error.startswith("Stopped: ")


def test_the_learners_code_has_its_own_folder_and_nothing_of_the_graders(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHERS_SECRET", "x")
    code = """
import os, random, sys
def probe():
    fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    here = [os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"], sys.path[0]]
    return {
        "fds": fds, "here": here, "files": os.listdir(), "names": list(os.environ),
        "stdin": sys.stdin.read(), "leads": os.getsid(0) == os.getpid(),
        "keeper": os.environ["DISTLAB_WARM_ADDRESS"], "drawn": random.random(),
        "modules": [str(module) for module in sys.modules.values()],
    }
"""
    got, _ = probed(code, tmp_path)
    assert set(got["fds"]) <= {"0", "1", "2", "3"}
    assert len(set(got["here"])) == 1
    assert not Path(got["here"][0]).exists(), "it was not removed"
    assert (got["files"], got["stdin"], got["leads"]) == ([], "", True)
    assert not [name for name in got["names"] if "SECRET" in name]
    assert got["keeper"] != shared_server().address
    # A teacher's own check is not there to be read.
    assert not [name for name in got["modules"] if "private" in name and str(tmp_path) in name]
    assert check_named("probe", tmp_path / "private.py").verdict({}, 42).passed
    assert probed(code, tmp_path)[0]["drawn"] != got["drawn"]


CLUSTER = """
import os
import distlab as dl

def here():
    return [os.getcwd(), os.environ["HOME"], "TEACHERS_SECRET" in os.environ, os.getpid()]

def probe():
    return [os.getcwd(), *dl.LocalCluster(workers=2).run(here)]
"""


def test_a_cluster_of_an_answer_runs_in_its_folder_and_leaves_no_task(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHERS_SECRET", "x")
    (folder, *tasks), outcome = probed(CLUSTER, tmp_path)
    assert [task[:3] for task in tasks] == [[folder, folder, False]] * 2
    assert are_gone({task[3] for task in tasks})
    assert (outcome.stopped, outcome.review) == ("", ())


# Limits

BEGIN = """
import itertools, os, signal, subprocess, sys, time

def forked(count):
    for _ in range(count):
        if not os.fork():
            open(f"pid{os.getpid()}", "w").write(str(os.getpid()))
            time.sleep(600)
"""
MIB = 2**20
# What an answer does, what it may use, and why it is stopped.
LIMITS = {
    "memory": (
        "kept = []\nwhile True: kept.append(bytearray(10_000_000))",
        {"memory_bytes": 900 * MIB},
        "it used more than 900 MiB of memory",
    ),
    "processes": (
        "forked(24)\ntime.sleep(600)",
        {"processes": 16},
        "it started more than 16 processes",
    ),
    "processes without parents": (
        "[subprocess.Popen(['sleep', '600'], start_new_session=True) for _ in range(24)]\n"
        "open('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)",
        {"processes": 16},
        "it started more than 16 processes",
    ),
    "what is printed": (
        "while True: print('for ever')",
        {"printed_bytes": 100_000},
        "it printed more than 100,000 characters",
    ),
    "what is written": (
        "for n in itertools.count(): open(f'f{n}', 'wb').write(bytes(1_000_000))",
        {"written_bytes": 30_000_000},
        "it wrote more than 30 MB",
    ),
    "files": (
        "for n in itertools.count(): open(f'f{n}', 'wb')",
        {},
        "it wrote more than 10,000 files",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_used_is_limited_and_no_process_is_left(name, tmp_path):
    source, limits, says = LIMITS[name]
    outcome = asked(f"{BEGIN}\n{source}", folder=tmp_path, **limits)
    assert outcome.stopped == says
    assert outcome.called[-1].failure.kind is FailureKind.ERROR
    assert outcome.called[-1].failure.error == f"Stopped: {says}"
    assert working_in(tmp_path) == []


def test_an_answer_without_an_end_is_ended_and_its_line_told():
    blind = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: time.sleep(60)"
    for source in (f"{BEGIN}\ntime.sleep(600)", f"{BEGIN}\n{blind}"):
        outcome = asked(source, secs=8)
        assert outcome.stopped == "it was still running after 8 seconds"
        failure = outcome.called[-1].failure
        assert failure.kind is FailureKind.TIMED_OUT
        assert failure.error == "It was stopped after 8 seconds."
    (called,) = asked(f"{BEGIN}\ntime.sleep(600)", secs=8).called
    assert "".join(called.failure.lines) == "line 10 in split: time.sleep(600)"


def test_limits_and_questions_that_cannot_be_meant_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    cases = {
        "secs=0": lambda: Limits(secs=0),
        "anything would pass": lambda: Question(check="slices", cells=(), seeds=()),
        "check of that name": lambda: asked(SPLIT, check="slice"),
        "a folder with files": lambda: asked(SPLIT, folder=tmp_path),
        "no such folder": lambda: asked(SPLIT, folder=tmp_path / "none"),
    }
    for text in ("1/0", "x = 1", "CHECKS = (1,)"):
        private = tmp_path / f"{len(cases)}.py"
        private.write_text(text)
        cases[f"checks of {private}"] = lambda path=private: load_checks(path)
    for told, call in cases.items():
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert told in str(caught.value)


def test_root_is_refused_and_another_user_is_not(monkeypatch):
    question = Question(check="slices", cells=(("split", SPLIT),))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UnsupportedEnvironment, match="or add --allow-root in a container"):
        ask(question)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert ask(question).called[0].failure is None


# Nothing is left behind


def test_processes_that_an_answer_leaves_behind_are_ended(tmp_path):
    outcome = asked(LEAVES_CHILDREN + "start()\n" + SPLIT, folder=tmp_path)
    assert outcome.stopped == ""
    assert len(pids_in(tmp_path)) == 2
    assert are_gone(pids_in(tmp_path)) and working_in(tmp_path) == []


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_an_answer_that_ends_what_watches_it_earns_nothing_and_leaves_nothing(signal, tmp_path):
    end = f"start()\nos.kill(os.getppid(), signal.{signal})\ntime.sleep(600)"
    outcome = asked(LEAVES_CHILDREN + end, folder=tmp_path)
    assert outcome.stopped == "the process that watches over it was ended"
    assert outcome.review == ("the process that watches over it was ended",)
    assert [called.failure.kind for called in outcome.called] == ["error"]
    assert are_gone(pids_in(tmp_path)) and working_in(tmp_path) == []


def test_a_killed_grader_leaves_no_process(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    cell = LEAVES_CHILDREN + "start()\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)"
    code = (
        f"from pathlib import Path\nfrom tests.support.questions import asked\n"
        f"asked({cell!r}, folder=Path({str(work)!r}), secs=600)"
    )
    grader = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ))
    try:
        wait_until(lambda: (work / "pid").exists() and len(pids_in(work)) == 3)
    finally:
        grader.kill()
        grader.wait()
    wait_until(lambda: are_gone(pids_in(work)))


# A result that is forged earns nothing

RECORD = """
import os, struct, json
def record(head, payload=b""):
    text = json.dumps(head).encode()
    os.write(3, struct.pack("!IQ", len(text), len(payload)) + text + payload)
"""
CALLED = "{'called': {'seed': 1, 'failure': None, 'printed': ''}, 'token': '0' * 32}"
EQUAL = """
class Right(list):
    def __eq__(self, other): return True
    def __getitem__(self, key): return self
    __hash__ = None
def split(e, r): return Right()
"""
IMPORTED = """
import importlib
part = 'distlab.che' + 'cks.lesson_00_start_here.sharing'
def split(e, r): return list(importlib.import_module(part).split_batch(e, r))
"""
FORGERIES = {
    "a record of a call": f"{RECORD}record({CALLED}, b'distlab1')\n{SPLIT}",
    "a record of the end": f"{RECORD}record({{'done': True}})\nos._exit(0)",
    "noise": f"{RECORD}os.write(3, os.urandom(100_000))\n{SPLIT}",
    "a record without an end": f"{RECORD}os.write(3, struct.pack('!IQ', 2, 2**62))\n{SPLIT}",
    "an object that equals all": EQUAL,
    "a patched library": f"import numpy as np\nnp.allclose = lambda *a, **k: True\n{WRONG}",
    "the checks' own reference": IMPORTED,
}


def test_a_forged_result_earns_nothing_or_is_held_for_a_person(judge):
    counted = {}
    for name, source in FORGERIES.items():
        outcome = asked(source)
        report = judge.report("slices", outcome.called)
        if report.earned and not outcome.review:
            counted[name] = report
    assert counted == {}
    held = asked(FORGERIES["the checks' own reference"])
    assert held.review[0].startswith("it reaches for the checks (")
    assert "of split" in held.review[0]


def test_no_exercise_needs_what_is_suspected():
    editions = [
        path for part in ("solutions", "exercises") for path in (ROOT / part).glob("*.ipynb")
    ]
    assert len(editions) >= 36
    assert {path: why for path in editions if (why := suspicions(cells_of(path)))} == {}
