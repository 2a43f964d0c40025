"""Where an answer runs: its failures are told, its limits hold, and it reaches nothing else."""

import os
import socket
import subprocess
import sys

import pytest

from distlab.autograder.isolation import question as question_module
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.question import COULD_NOT_JUDGE, Question, require_safe_user
from distlab.autograder.isolation.walls import missing_walls
from distlab.cluster.warm.process import can_fork
from distlab.course.checks.own_checks import load_own
from distlab.course.checks.registry import find_check
from distlab.course.checks.run_check import run_check
from distlab.course.checks.status_line import StatusLine
from distlab.course.checks.time_limit import TimeLimit
from distlab.course.results.failures import FailureKind
from distlab.errors import InvalidArgument, UnsupportedEnvironment
from distlab.source_lines import keep_lines
from tests.support.local_tasks import wait_until
from tests.support.questions import SPLIT, asked, probed, running
from tests.support.repository import ROOT

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")
behind_walls = pytest.mark.skipif(bool(missing_walls()), reason=f"no walls: {missing_walls()}")

MIB = 2**20


# What an answer gives


def right(examples, replicas):
    piece = -(-examples // replicas)
    return [max(0, min(piece, examples - piece * replica)) for replica in range(replicas)]


def test_a_report_is_the_one_that_the_notebook_gives():
    check = find_check("slices")
    whole = "def split(examples, replicas):\n    return [examples] * replicas"
    stub = "def split(examples, replicas):\n    raise NotImplementedError"
    assert asked(SPLIT, seeds=check.cost.seeds) == run_check(check, right)
    wrong = asked(whole, seeds=check.cost.seeds)
    assert wrong == run_check(check, lambda examples, replicas: [examples] * replicas)
    assert (wrong.status, wrong.earned) == ("not yet", 0) and wrong.mistake
    assert asked(stub).status == "not started"


def test_what_a_function_prints_is_kept_and_each_seed_is_a_call():
    report = asked(
        "count = 0\ndef split(e, r):\n    global count\n    count += 1\n    display('x')\n"
        "    get_ipython().run_line_magic('matplotlib', 'inline')\n"
        "    if count > 3: __import__('os')._exit(0)\n    return count"
    )
    says = "Stopped: its process ended by itself, with exit code 0"
    assert (report.status, report.failure.error) == ("error in your code", says)
    assert asked("def split(e, r):\n    display('x')\n    return []").printed.startswith("'x'")


FAILURES = {
    "x = 1": ("NameError: no cell defines `split`", ""),
    "# task: slices\ndef divide(e, r):\n    return []": (
        "NameError: the cell defines `divide`",
        "",
    ),
    "def split(e, r):\n    return e +": ("SyntaxError: invalid syntax", "line 2 in split"),
    "x = 1\ny = [][x]": ("IndexError: list index", "line 2 in split: y = [][x]"),
    "def split(e, r):\n    exit()": ("SystemExit", "line 2 in split: exit()"),
    "\0": ("", "somewhere in split"),
    "x = '\u2028'\n\x0c\n1 / 0": ("ZeroDivisionError", "line 3 in split: 1 / 0"),
    "import os\nos._exit(7)": (
        "Stopped: its process ended by itself, with exit code 7",
        "line 2 in split: os._exit(7)",
    ),
    "import ctypes\nctypes.string_at(0)": (
        "Stopped: its process was ended by SIGSEGV",
        "line 2 in split: ctypes.string_at(0)",
    ),
    "import os; os.kill(os.getpid(), 9)": ("Stopped: its process was ended by SIGKILL", ""),
    "import os; os.closerange(0, 100)": ("Stopped: its process ended by itself", ""),
}


def test_failures_tell_the_learners_lines():
    wrong = {}
    for source, (error, line) in FAILURES.items():
        report = asked(source)
        lines = "".join(report.failure.lines)
        if report.earned or not (report.failure.error.startswith(error) and lines.startswith(line)):
            wrong[source] = report.failure
    assert wrong == {}


CLUSTER = """
import os
import distlab as dl

def here():
    return [os.getcwd(), os.environ["HOME"], "TEACHERS_SECRET" in os.environ]

def probe():
    return [os.getcwd(), *dl.LocalCluster(workers=2).run(here)]
"""


def test_a_cluster_of_an_answer_runs_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHERS_SECRET", "x")
    folder, *tasks = probed(CLUSTER, tmp_path)
    assert tasks == [[folder, folder, False]] * 2


# Limits

# What an answer does, what it may use, and what its failure says.
LIMITS = {
    "memory": (
        "kept = []\nwhile True: kept.append(bytearray(b'x' * 10_000_000))",
        {"memory_bytes": 900 * MIB},
        "Stopped: it used more than 900 MiB of memory",
    ),
    "processes": (
        "import subprocess\nfor _ in range(24):\n"
        "    last = subprocess.Popen(['sleep', '600'], start_new_session=True)\nlast.wait()",
        {"processes": 16},
        "Stopped: it started more than 16 processes",
    ),
    "forks": ("import os\nwhile True: os.fork()", {}, "Stopped: it started more than 64 processes"),
    "what is printed": (
        "while True: print('for ever')",
        {"printed_bytes": 100_000},
        "Stopped: it printed more than 100,000 characters",
    ),
    "what is written": (
        "for n in range(1000): open(f'f{n}', 'wb').write(bytes(1_000_000))",
        {"written_bytes": 30_000_000},
        "OSError: [Errno 28] No space left on device",
    ),
    "files": (
        "for n in range(20_000): open(f'f{n}', 'wb').close()",
        {},
        "OSError: [Errno 28] No space left on device",
    ),
}


@behind_walls
@pytest.mark.parametrize("name", LIMITS)
def test_what_is_used_is_limited(name):
    source, limits, says = LIMITS[name]
    report = asked(source, **limits)
    assert report.failure.kind is FailureKind.ERROR
    assert report.failure.error.startswith(says)
    if name == "memory":
        assert report.failure.lines[0].startswith("line 2 in split: while True: kept.append")


def test_an_answer_without_an_end_is_ended_and_its_line_told_as_in_a_notebook():
    source = "def split(e, r):\n    import signal\n    {}\n    while True: pass"
    blind = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))"
    report = asked(source.format(blind), secs=8)
    assert report.failure.kind is FailureKind.TIMED_OUT
    assert report.failure.error == "It was stopped after 8 seconds."
    assert report.failure.lines == ("line 4 in split: while True: pass",)

    names, seeing = {}, source.format("# hears of signals")
    keep_lines({"<split>": seeing.splitlines(keepends=True)})
    exec(compile(seeing, "<split>", "exec"), names)
    with TimeLimit(names["split"], secs=1, status=StatusLine()) as limit:
        in_notebook = run_check(find_check("slices"), names["split"], seeds=(1, 2), limit=limit)
    assert repr(in_notebook) == repr(report).replace("8 seconds", "1 seconds")


def test_processes_that_an_answer_forks_end_without_a_word():
    forks = (
        "import os\ndef split(e, r):\n    for _ in range(20):\n        child = os.fork()\n"
        "        if not child: os._exit(0)\n        os.waitpid(child, 0)\n    return []"
    )
    assert asked(forks, printed_bytes=2_000).failure is None


def test_limits_and_questions_that_cannot_be_meant_are_refused(tmp_path):
    cases = {
        "grade with --secs 0": lambda: Limits(secs=0),
        "anything would pass": lambda: Question(check="slices", cells=(), seeds=()),
        "no check named 'slice'": lambda: asked(SPLIT, check="slice"),
    }
    for text in ("1/0", "x = 1", "CHECKS = (1,)"):
        private = tmp_path / f"{len(cases)}.py"
        private.write_text(text)
        cases[f"checks of {private}"] = lambda path=private: load_own(path)
    for says, call in cases.items():
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert says in str(caught.value)


def test_root_is_refused_only_where_there_are_no_walls(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(question_module, "missing_walls", lambda: "")
    require_safe_user(allow_root=False)
    monkeypatch.setattr(question_module, "missing_walls", lambda: "unshare: not permitted")
    require_safe_user(allow_root=True)
    with pytest.raises(UnsupportedEnvironment, match="or add --allow-root in a container"):
        require_safe_user(allow_root=False)


def test_without_walls_answers_run_within_rlimits_and_time(monkeypatch):
    monkeypatch.setattr(question_module, "missing_walls", lambda: "unshare: not permitted")
    assert asked(SPLIT).passed
    mark = f"600.{os.getpid()}"
    start = f"import subprocess, time\nsubprocess.Popen(['sleep', '{mark}'])\n"
    assert asked(f"{start}time.sleep(600)", secs=8).status == "ran out of time"
    wait_until(lambda: not running(mark))


# Walls: what an answer tries, with places that the test makes, and that all of it fails

CHEATS = {
    "a file of the teacher": "open(SECRET).read()",
    "the solutions": "open(ROOT + '/solutions/00_start_here.ipynb').read()",
    "the sources of lessons": "open(COURSE + '/lesson_00_start_here/exercise.py').read()",
    "another submission": "open(HANDED_IN + '/jane/one.ipynb').read()",
    "the names of submissions": "os.listdir(HANDED_IN)[0]",
    "the gradebook": "open(OUT + '/records/1.json', 'w').write('{}')",
    "a file outside": "open(os.path.dirname(SECRET) + '/new', 'w').write('x')",
    "distlab itself": "open(distlab.__path__[0] + '/errors.py', 'a').write('#')",
    "the system": "open('/usr/x', 'w').write('x')",
    "a setting of the kernel": "open('/proc/sys/kernel/domainname', 'w').write('x')",
    "a secret in the environment": "os.environ['TEACHERS_SECRET']",
    "its first environment": "re.search('TEACHERS_SECRET.*', open('/proc/self/environ').read())[0]",
    "the environment of others": "open('/proc/1/environ').read()",
    "the memory of others": "open('/proc/1/mem', 'rb').read(1)",
    "the grader's processes": "[n for n in os.listdir('/proc') if n.isdigit() and int(n) > 50][0]",
    "ending the grader": "os.kill(GRADER, 9)",
    "a server on this machine": "socket.create_connection(('127.0.0.1', PORT), 60).getpeername()",
    "the network": "[name for _, name in socket.if_nameindex() if name != 'lo'][0]",
    "a socket file": "socket.socket(socket.AF_UNIX).connect(SOCKET)",
    "a new namespace": "subprocess.run(['unshare', '-Ur', 'true'], check=True)",
    "the mode of a file": "os.chmod(distlab.__file__, 0o644)",
    "the times of a file": "os.utime(distlab.__file__)",
    "a token in the environment": "os.environ['TF_TOKEN_SECRET']",
    "the keys of the session": "kernel({'x86_64': 250}.get(os.uname().machine, 219), 0, -3, 0)",
    "memory of no process": "os.memfd_create('x')",
    "calls past the filter": "kernel(425, 8, ctypes.create_string_buffer(120))",
    "the host of this machine": "socket.socket(40, socket.SOCK_STREAM)",
    "a mount": "subprocess.run(['mount', '-t', 'tmpfs', 'x', '/answer'], check=True)",
}
TRY = """
import ctypes, os, re, socket, subprocess, sys
import distlab

def kernel(*arguments):
    number = ctypes.CDLL(None).syscall(*arguments)
    assert number >= 0
    return number

def attempt(cheat):
    try:
        return repr(eval(cheat))
    except Exception as error:
        return None

def probe():
    return {name: found for name, cheat in CHEATS.items() if (found := attempt(cheat))}
"""


@behind_walls
def test_an_answer_reaches_nothing_of_the_grader_nor_of_others(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHERS_SECRET", "x")
    monkeypatch.setenv("TF_TOKEN_SECRET", "x")
    for name in ("secret", "in/jane/one.ipynb", "out/records/1.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as file:
        monkeypatch.chdir(tmp_path)  # a socket's path may have 107 letters
        file.bind("socket")
        file.listen()
        places = {
            "SECRET": str(tmp_path / "secret"),
            "HANDED_IN": str(tmp_path / "in"),
            "OUT": str(tmp_path / "out"),
            "ROOT": str(ROOT),
            "COURSE": str(ROOT / "distlab/course"),
            "GRADER": os.getpid(),
            "PORT": server.getsockname()[1],
            "SOCKET": str(tmp_path / "socket"),
        }
        names = "\n".join(f"{name} = {value!r}" for name, value in places.items())
        assert probed(f"CHEATS = {CHEATS!r}\n{names}\n{TRY}", tmp_path) == {}
    assert (tmp_path / "out" / "records" / "1.json").read_text() == "{}"


@behind_walls
def test_an_answer_may_use_its_own_folder_its_own_loopback_and_python(tmp_path):
    code = """
import os, socket, subprocess, sys, tempfile
def probe():
    server = socket.create_server(("localhost", 0))
    socket.create_connection(server.getsockname(), 60)
    open("own", "w").write("x")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("x")
    command = [sys.executable, "-c", "import numpy, distlab; print(distlab.__file__)"]
    said = subprocess.run(command, capture_output=True, text=True)
    return [os.listdir(), said.stdout.strip().endswith("__init__.py"), said.stderr[-500:]]
"""
    files, is_importable, problem = probed(code, tmp_path)
    assert ("own" in files, is_importable) == (True, True), problem


@behind_walls
def test_processes_that_an_answer_leaves_behind_are_ended():
    mark = f"601.{os.getpid()}"
    start = f"import os, subprocess\nsubprocess.Popen(['setsid', '-f', 'sleep', '{mark}']).wait()\n"
    assert asked(start + SPLIT).passed
    wait_until(lambda: not running(mark))


@behind_walls
def test_a_killed_grader_leaves_no_process():
    mark = f"602.{os.getpid()}"
    cell = f"import subprocess, time\nsubprocess.Popen(['sleep', '{mark}'])\ntime.sleep(600)"
    code = f"from tests.support.questions import asked\nasked({cell!r}, secs=600)"
    grader = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ))
    try:
        wait_until(lambda: running(mark))
    finally:
        grader.kill()
        grader.wait()
    wait_until(lambda: not running(mark))


# Judging: what arrives is bytes, in a process where no answer runs

EQUAL = """
class Right(list):
    def __eq__(self, other): return True
    def __getitem__(self, key): return self
    __hash__ = None
def split(e, r): return Right()
"""
SEND = """
import json, os, struct
def send(head, payload=b"", length=None):
    text = json.dumps(head).encode()
    os.write(3, struct.pack("!IQ", len(text), len(payload) if length is None else length))
    os.write(3, text + payload)
"""
CALLED = "{'seed': SEED, 'failure': None, 'printed': ''}"
FORGERIES = {
    "an object that equals all": EQUAL,
    "a patched library": "import numpy as np\nnp.allclose = lambda *a, **k: True\n"
    "def split(e, r):\n    return [e] * r",
    "a call of its own choice of inputs": f"SEED = 99\nsend({CALLED}, b'distlab1')",
    "a call that is cut short": f"SEED = 1\nsend({CALLED}, b'distlab1')",
    "a pickle": f"SEED = 1\nsend({CALLED}, b'cos\\nsystem\\n(S\"true\"\\ntR.')",
    "deep JSON": f"SEED, deep = 1, b'[' * 10**5\n"
    f"send({CALLED}, b'distlab1' + len(deep).to_bytes(8, 'big') + deep)",
    "a beginning": "os.ftruncate(3, 0)\nsend({'begun': True})",
    "noise": "os.write(3, os.urandom(100_000))",
    "a record without an end": "send({}, length=2**62)",
    "more than it may": "while True: os.write(3, bytes(2**20))",
}
# What an answer does to the socket on which its results go, before it is ended.
TAMPERED = {
    "cut": "os.ftruncate(3, 0)",
    "read back": "socket.socket(fileno=3).recv(10**6, socket.MSG_DONTWAIT)",
    "opened again": "os.open('/proc/self/fd/3', os.O_RDWR)",
    "shut": "socket.socket(fileno=3).shutdown(socket.SHUT_RDWR)",
    "closed": "os.close(3)",
    "replaced by a file": "os.dup2(os.open('other', os.O_CREAT | os.O_RDWR), 3)",
    "full": "os.set_blocking(3, False)\nwhile True: os.write(3, bytes(2**20))",
    "kept open": "os.fork() or (os.setsid(), time.sleep(600))",
}


def test_nothing_that_an_answer_does_to_its_results_is_more_than_its_own_zero():
    """Not even a name for it: that it had begun was sent before its first line ran."""
    says = b"\x1b]0;pwned\x07no memory; run: curl x | sh"
    for name, does in TAMPERED.items():
        tried = does.replace("\n", "\n    ")
        source = (
            "import contextlib, os, socket, time\nwith contextlib.suppress(OSError):\n"
            f"    {tried}\nos.write(1, {says!r})\nos.kill(os.getpid(), 9)"
        )
        report = asked(source, secs=120)
        stopped = "Stopped: its process was ended by SIGKILL"
        assert (report.earned, report.failure.error) == (0, stopped), name


def test_a_forged_result_earns_nothing():
    reports = {name: asked(SEND + source) for name, source in FORGERIES.items()}
    assert {name: report for name, report in reports.items() if report.earned} == {}


# A check whose judge does what a broken one might.
STRANGE = """
import os, sys, time
from distlab.course.checks import Check, Criterion
from distlab.course.checks.criteria import Expectation

class Strange(Expectation):
    def judge(self, inputs, outputs, right):
        if outputs == "end": os._exit(0)
        if outputs == "leave": sys.exit(3)
        if outputs == "nothing": return None
        if outputs == "grow": bytearray(16 * 2**30)
        return Criterion(repr(sorted(sys.modules)), True)

CHECKS = (
    Check(
        name="strange", function="f", title="Strange", points=2, hint="", revisit="",
        inputs=lambda seed: {"seed": seed}, call=lambda f, inputs: f(inputs),
        criteria=(Strange(points=2),),
    ),
)
"""


def test_a_judge_that_does_not_answer_costs_one_answer_its_points(tmp_path):
    private = tmp_path / "private.py"
    private.write_text(STRANGE)

    def judged(outputs):
        source = f"import handed_in\ndef f(inputs): return {outputs!r}"
        source = f"import sys\nsys.modules['handed_in'] = sys\n{source}"
        return asked(source, check="strange", seeds=(1,), extra_checks=private)

    passed = judged("pass")
    assert passed.passed and "handed_in" not in passed.criteria[0].label
    for what in ("end", "leave", "nothing"):
        report = judged(what)
        assert (report.status, report.earned, report.points) == ("not yet", 0, 2), what
        assert report.message.startswith(COULD_NOT_JUDGE)
    assert judged("grow").earned == 0
