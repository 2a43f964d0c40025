import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from distlab.autograder.intake.private_checks import check_named, load_checks
from distlab.autograder.isolation import run_isolated
from distlab.autograder.isolation.messages import BadRecord, Records, called_of, head_of, pack
from distlab.autograder.isolation.run_isolated import Question, ask
from distlab.checks.run_check import Called
from distlab.errors import InvalidArgument, UnsupportedEnvironment
from distlab.results.failures import Failure, FailureKind
from distlab.results.plain_values import decode
from distlab.warm.keeper import shared_keeper
from distlab.warm.process import can_fork
from tests.support.questions import (
    PROBE,
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


def only_failure(source, **options):
    (called,) = asked(source, **options).called
    assert called.payload == b""
    return called.failure


def test_an_answer_is_called_once_for_each_seed():
    outcome = asked("print('hello')\n" + SPLIT, seeds=(5, 6, 7))
    assert [called.seed for called in outcome.called] == [5, 6, 7]
    assert all(called.failure is None for called in outcome.called)
    assert set(decode(outcome.called[0].payload)) == {"equal", "smaller", "nothing"}
    assert (outcome.stopped, outcome.review) == ("", ())
    assert 0 < outcome.secs < 60


def test_an_untouched_exercise_is_not_started():
    cells = cells_of("exercises/00_start_here.ipynb")
    (called,) = ask(Question(check="slices", cells=cells), allow_root=True).called
    assert called.failure.kind is FailureKind.NOT_STARTED


def test_what_is_printed_is_kept_with_the_call():
    outcome = asked(SPLIT + "    print('no')\ndef split(*_): print('some text')")
    assert outcome.called[0].printed == "some text\n" * 3


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("x = 1", Failure(FailureKind.NOT_STARTED, "NameError: no cell defines `split`")),
        ("split = 3", Failure(FailureKind.UNUSABLE, "`split` is a int, not a function")),
        ("def split(e, r):\n    return e +", ("SyntaxError: invalid syntax", "line 2 in split")),
        ("x = 1\ny = [][x]", ("IndexError: list index out of range", "line 2 in split: y = [][x]")),
        ("import sys\nsys.exit(0)", ("SystemExit: 0", "line 2 in split: sys.exit(0)")),
        ("def split(e, r):\n    exit()", ("SystemExit", "line 2 in split: exit()")),
        ("def split(e, r):\n    return 1 / 0", ("ZeroDivisionError", "line 2 in split: return 1 ")),
        ("raise KeyboardInterrupt", ("KeyboardInterrupt", "line 1 in split: raise Keyboard")),
        ("def split(e, r):\n    raise KeyboardInterrupt", ("KeyboardInterrupt", "line 2 in split")),
        ("\0", ("", "somewhere in split")),
        ("x = '\ud800'", ("UnicodeEncodeError: ", "somewhere in split")),
        ("x = '\u2028'\n\x0c\n1 / 0", ("ZeroDivisionError", "line 3 in split: 1 / 0")),
    ],
)
def test_failures_tell_the_learners_lines(source, failure):
    found = only_failure(source)
    if isinstance(failure, Failure):
        assert found == failure
        return
    error, line = failure
    assert found.error.startswith(error)
    assert "".join(found.lines).startswith(line)


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        ("os._exit(0)", "its process ended by itself, with exit code 0"),
        ("os._exit(7)", "its process ended by itself, with exit code 7"),
        ("os.kill(os.getpid(), 9)", "its process was ended by SIGKILL"),
        ("os.abort()", "its process was ended by SIGABRT"),
        ("os.closerange(0, 100)", "its process ended by itself, with exit code 1"),
    ],
)
@pytest.mark.parametrize("where", ["in a cell", "in the function"])
def test_an_end_of_the_process_is_said_in_words(ending, says, where):
    source = f"import os\ndef split(e, r):\n    {ending}"
    outcome = asked(source + ("\nsplit(1, 2)" if where == "in a cell" else ""))
    assert outcome.stopped == says
    assert [called.failure for called in outcome.called] == [
        Failure(FailureKind.ERROR, f"Stopped: {says}")
    ]


def test_calls_before_the_end_are_kept():
    source = "count = 0\ndef split(e, r):\n    global count\n    count += 1\n"
    outcome = asked(source + "    if count > 3: __import__('os')._exit(0)\n    return count")
    first, second = outcome.called
    assert decode(first.payload) == {"equal": 1, "smaller": 2, "nothing": 3}
    assert second.failure.error.startswith("Stopped: ")


def test_the_learners_code_has_its_own_folder_and_nothing_of_the_graders(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHERS_SECRET", "x")
    code = """
import os, sys
def probe():
    fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    here = [os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"], sys.path[0]]
    return {
        "fds": fds, "here": here, "files": os.listdir(), "names": list(os.environ),
        "stdin": sys.stdin.read(), "leads": os.getsid(0) == os.getpid(),
        "keeper": os.environ["DISTLAB_WARM_ADDRESS"],
        "main": sorted(name for name in vars(sys.modules["__main__"]) if name[:2] != "__"),
    }
"""
    found, _ = probed(code, tmp_path)
    assert set(found["fds"]) <= {"0", "1", "2", "3"}
    assert len(set(found["here"])) == 1
    assert not Path(found["here"][0]).exists()  # removed
    assert found["files"] == []
    assert not {name for name in found["names"] if "SECRET" in name}
    assert found["keeper"] != shared_keeper().address
    assert not Path(found["keeper"]).exists()
    assert found["stdin"] == ""
    assert found["leads"]
    assert found["main"] == ["os", "probe", "sys"]


def test_a_folder_that_was_given_is_left_as_the_answer_leaves_it(tmp_path):
    asked("open('left', 'w').write('x')\n" + SPLIT, folder=tmp_path)
    assert (tmp_path / "left").read_text() == "x"


def test_answers_draw_other_random_numbers_each_time(tmp_path):
    code = (
        "import random\nimport numpy as np\ndef probe(): return [random.random(), np.random.rand()]"
    )
    (first, second), _ = probed(code, tmp_path)
    (third, fourth), _ = probed(code, tmp_path)
    assert len({first, second, third, fourth}) == 4


def test_a_teachers_check_leaves_its_judge_and_its_path_behind(tmp_path):
    private = tmp_path / "private.py"
    private.write_text(PROBE)
    assert check_named("probe", private).judge({}, 42).passed
    code = "import sys\ndef probe(): return [str(m) for m in sys.modules.values()]"
    found, _ = probed(code, tmp_path)
    assert not [text for text in found if "private" in text and str(tmp_path) in text]


def test_where_learners_code_runs_no_check_can_judge(tmp_path):
    code = """
import sys
def probe():
    frame = sys._getframe()
    while "check" not in frame.f_locals:
        frame = frame.f_back
    check = frame.f_locals["check"]
    try:
        return str(check.judge({}, 42))
    except AssertionError as error:
        return [str(error), len(check.mistakes), check.hint]
"""
    found, _ = probed(code, tmp_path)
    assert found == ["nothing is judged where learners' code runs", 0, ""]


def test_a_hidden_process_shows_its_memory_to_no_other_of_its_user():
    code = (
        "import ctypes, os; from distlab.autograder.isolation.process_tree import hide\n"
        "for hidden in (True, False):\n"
        "    hide(hidden); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"0\n1\n"


def test_processes_that_an_answer_leaves_behind_are_ended(tmp_path):
    outcome = asked(LEAVES_CHILDREN + "start()\n" + SPLIT, folder=tmp_path)
    assert outcome.stopped == ""
    assert len(pids_in(tmp_path)) == 2
    assert working_in(tmp_path) == []
    assert are_gone(pids_in(tmp_path))


def test_an_answer_that_kills_what_watches_it_is_held_and_leaves_nothing(tmp_path):
    code = LEAVES_CHILDREN + "start()\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)"
    outcome = asked(code, folder=tmp_path)
    assert working_in(tmp_path) == []
    assert outcome.stopped == "the process that watches over it was ended"
    assert outcome.review == ("the process that watches over it was ended",)
    assert [called.failure.kind for called in outcome.called] == ["error"]
    assert are_gone(pids_in(tmp_path))


def parent_of(name):
    return f"int(open(f'/proc/{{{name}}}/stat').read().rpartition(')')[2].split()[1])"


def test_an_answer_that_stops_what_watches_it_is_ended_at_once(tmp_path):
    code = LEAVES_CHILDREN + "start()\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)"
    outcome = asked(code, folder=tmp_path)
    assert outcome.review == ("the process that watches over it was ended",)
    assert are_gone(pids_in(tmp_path))
    assert outcome.called[0].failure.kind is FailureKind.ERROR


def test_an_answer_that_stops_all_above_it_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run_isolated, "_GRACE_SECS", 3)
    above = f"watching = os.getppid()\nabove = {parent_of('watching')}\n"
    stop = "for pid in (above, watching): os.kill(pid, signal.SIGSTOP)\ntime.sleep(600)"
    note = "open('pid', 'w').write(str(os.getpid())); open('pid2', 'w').write(str(watching))\n"
    outcome = asked(LEAVES_CHILDREN + "start()\n" + above + note + stop, folder=tmp_path, secs=1)
    assert outcome.stopped == "the process that watches over it was ended"
    assert len(pids_in(tmp_path)) == 4
    wait_until(lambda: are_gone(pids_in(tmp_path)))


def test_folders_too_deep_for_python_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
    assert asked(code + SPLIT).called[0].failure is None
    assert list(tmp_path.iterdir()) == []


def test_folders_that_may_not_be_entered_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0); os.chmod('a', 0)"
    assert asked(f"{code}\n{SPLIT}").called[0].failure is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_notebook_shows_can_be_shown():
    outcome = asked("def split(e, r):\n    display(e, 'x')\n    return [e]")
    assert outcome.called[0].failure is None
    assert outcome.called[0].printed.splitlines()[1::2] == ["'x'"] * 3


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
        wait_until(lambda: (work / "pid").exists() and len(pids_in(work)) == 3, secs=60)
    finally:
        grader.kill()
        grader.wait()
    wait_until(lambda: are_gone(pids_in(work)))


CLUSTER = """
import os
import distlab as dl

def here():
    return [os.getcwd(), os.environ["HOME"], "TEACHERS_SECRET" in os.environ, os.getpid()]

def probe():
    from distlab.warm.keeper import shared_keeper

    cluster = dl.LocalCluster(workers=2)
    forked = shared_keeper().address == os.environ["DISTLAB_WARM_ADDRESS"]
    env = dict(os.environ)
    code = shared_keeper().spawn(["-c", "raise SystemExit(5)"], env=env).wait(timeout_secs=60)
    return [forked, code, os.getcwd(), *cluster.run(here)]
"""


def test_a_cluster_gets_its_tasks_from_what_is_imported_and_leaves_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHERS_SECRET", "x")
    (forked, code, folder, *tasks), outcome = probed(CLUSTER, tmp_path)
    assert forked
    assert code == 5
    assert [task[:3] for task in tasks] == [[folder, folder, False]] * 2
    assert are_gone({task[3] for task in tasks})
    assert (outcome.stopped, outcome.review) == ("", ())


def test_limits_hold_for_the_tasks_of_a_cluster(tmp_path):
    source = CLUSTER.replace("return [os.getcwd(), os", "[os.fork() for _ in range(5)]; return [os")
    _, outcome = probed(source, tmp_path, processes=16)
    assert outcome.stopped == "it started more than 16 processes"


def test_a_fork_of_the_answer_is_not_the_answer():
    source = "import os\npid = os.fork()\n" + SPLIT
    source += "    return [] if pid == 0 else [1]\nif pid == 0: split = lambda e, r: 0"
    outcome = asked(source)
    assert [called.failure for called in outcome.called] == [None, None]
    assert outcome.review == ()


def test_root_is_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UnsupportedEnvironment) as caught:
        ask(Question(check="slices", cells=()))
    assert str(caught.value) == (
        "run submissions as root\n"
        "  found: user root: limits do not hold for root\n"
        "  to do: run it as a different user, or add --allow-root in a container of its own"
    )


def test_another_user_is_not_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    cells = (("split", SPLIT),)
    assert ask(Question(check="slices", cells=cells)).called[0].failure is None


def test_questions_that_cannot_be_asked_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"seeds=\(\)\)\n.*anything would pass\n.*one seed"):
        Question(check="slices", cells=(), seeds=())
    with pytest.raises(InvalidArgument, match="check of that name"):
        asked(SPLIT, check="slice")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match=r"a folder with files\n  to do: make an empty one"):
        asked(SPLIT, folder=tmp_path)
    with pytest.raises(InvalidArgument, match="no such folder"):
        asked(SPLIT, folder=tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("x = 1", "no tuple CHECKS of checks"),
        ("CHECKS = [1]", "no tuple CHECKS of checks"),
        ("CHECKS = (1,)", "no tuple CHECKS of checks"),
    ],
)
def test_a_file_of_checks_that_cannot_be_used_is_refused(tmp_path, text, found):
    private = tmp_path / "private.py"
    private.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        load_checks(private)
    assert str(caught.value) == (
        f"the checks of {private}\n  found: {found}\n"
        "  to do: write it like a module of distlab.checks: CHECKS = (Check(...),)"
    )


def test_records_come_whole_whatever_the_pieces():
    called = Called(3, b"payload", None, "printed")
    broken = Called(4, b"", Failure(FailureKind.ERROR, "ValueError: \ud800", ("line 1",)), "")
    data = b"".join(pack(head_of(one), one.payload) for one in (called, broken))
    records, found = Records(), []
    for position in range(len(data)):
        records.feed(data[position : position + 1])
        if (record := records.pop()) is not None:
            found.append(called_of(*record))
    assert found == [called, broken]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 12,
        pack({}, b"x" * 11),
        pack({})[:-2] + b"]]",
        pack({})[:-2] + b"\xff\xff",
        pack({})[:3] + b"\x06" + pack({})[4:-2] + b"[[[[[1",
        pack({})[:3] + b"\x02" + pack({})[4:-2] + b"[]",
    ],
)
def test_other_bytes_are_no_records(data):
    records = Records(largest_bytes=10)
    records.feed(data)
    with pytest.raises(BadRecord):
        records.pop()


@pytest.mark.parametrize(
    "head",
    [
        None,
        {},
        {"seed": 1, "printed": ""},
        {"seed": "1", "printed": "", "failure": None},
        {"seed": True, "printed": "", "failure": None},
        {"seed": 1, "printed": 2, "failure": None},
        {"seed": 1, "printed": "", "failure": 3},
        {"seed": 1, "printed": "", "failure": {"kind": "passed", "error": "", "lines": []}},
        {"seed": 1, "printed": "", "failure": {"kind": "error", "error": 1, "lines": []}},
        {"seed": 1, "printed": "", "failure": {"kind": "error", "error": "", "lines": [1]}},
        {"seed": 1, "printed": "", "failure": {"kind": ["error"], "error": "", "lines": []}},
    ],
)
def test_records_of_no_call_are_refused(head):
    with pytest.raises(BadRecord):
        called_of(head, b"")
