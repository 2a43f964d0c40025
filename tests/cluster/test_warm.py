"""The warm server: a fork of it is like a fresh Python, and ends with whoever asked for it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from distlab.cluster.warm.process import WarmServer, can_fork
from distlab.cluster.warm.server import settings
from distlab.errors import ProcessError
from tests.support.limits import HANG_SECS

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

LIGHT = ("json", "wave")
SLEEP = "import time; print('asleep', flush=True); time.sleep(3600)"


@pytest.fixture(scope="module")
def warm():
    with WarmServer(preload=LIGHT) as server:
        yield server


def output(warm, argv=(), *, expected=0, **options):
    read, write = os.pipe()
    with os.fdopen(read) as lines:
        try:
            task = warm.spawn(argv, stdout=write, **options)
        finally:
            os.close(write)
        text = lines.read()
    assert task.wait(timeout_secs=HANG_SECS) == expected
    return text


def asleep(warm, *, code=SLEEP, **options):
    """Returns a task that sleeps, once it does."""
    read, write = os.pipe()
    task = warm.spawn(["-c", code], stdout=write, **options)
    os.close(write)
    with os.fdopen(read) as lines:
        assert lines.readline() == "asleep\n"
    return task


def is_gone(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=HANG_SECS)
    return not psutil.pid_exists(pid)


def test_a_command_sees_its_own_argv_folder_environment_streams_and_main(warm, tmp_path):
    code = (
        "import atexit, json, os, sys, __main__; kept = 5\n"
        "print(json.dumps([sys.argv, os.getcwd(), sys.path[0], dict(os.environ), __main__.kept,"
        " sys.stdin.read(), os.getsid(0) == os.getpid(), 'wave' in sys.modules]))\n"
        "atexit.register(print, 'bye'); print('wrong', file=sys.stderr)"
    )
    env = settings(os.environ) | {"ONLY": "this"}
    (tmp_path / "in").write_text("typed")
    with (tmp_path / "in").open() as stdin, (tmp_path / "err").open("w") as err:
        streams = {"stdin": stdin, "stderr": err}
        text = output(warm, ["-c", code, "--epochs", "3"], env=env, cwd=tmp_path, **streams)
    facts, bye = text.splitlines()
    argv, cwd, path, environ, kept, typed, leads, imported = json.loads(facts)
    assert (argv, environ, kept) == (["-c", "--epochs", "3"], env, 5)
    assert cwd == path == str(tmp_path)
    assert (typed, leads, imported, bye) == ("typed", True, True, "bye")
    assert (tmp_path / "err").read_text() == "wrong\n"


def test_scripts_modules_functions_and_exit_codes_are_those_of_a_fresh_python(warm, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    text = "import sys; print(__name__, sys.argv[1:], sys.path[0])"
    (folder / "named.py").write_text(text)
    (folder / "added.py").write_text("def show(a, b): print(a + b['c'])")
    expected = f"__main__ ['a'] {folder}\n"
    assert output(warm, ["-m", "named", "a"], cwd=folder) == expected
    assert output(warm, [str(folder / "named.py"), "a"], cwd=tmp_path) == expected
    assert output(warm, call="added:show", args=[1, {"c": 2}], cwd=folder) == "3\n"
    ends = {
        "pass": 0,
        "import sys; sys.exit(3)": 3,
        "import sys; sys.exit('why')": 1,
        "1/0": 1,
        "import os; os._exit(7)": 7,
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": -signal.SIGSEGV,
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT,
    }
    tasks = {code: warm.spawn(["-c", code], stderr=subprocess.DEVNULL) for code in ends}
    assert {code: task.wait(timeout_secs=HANG_SECS) for code, task in tasks.items()} == ends
    draw = ["-c", "import random; print(random.random())"]
    assert output(warm, draw) != output(warm, draw)


def test_a_task_ends_with_what_the_imported_modules_do_then(tmp_path):
    (tmp_path / "at_the_end.py").write_text("import atexit; atexit.register(print, 'at the end')")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with WarmServer(preload=["at_the_end"], env=env) as server:
        code = "import sys; print('at_the_end' in sys.modules)"
        assert output(server, ["-c", code], env=env) == "True\nat the end\n"


def test_what_is_read_once_makes_a_task_a_new_python_that_is_kept_all_the_same(warm):
    code = "import os, sys; print('wave' in sys.modules, os.environ['KERAS_BACKEND'])"
    other = os.environ | {"KERAS_BACKEND": "other"}
    assert output(warm, ["-c", code], env=other) == "False other\n"
    task = asleep(warm, env=other)
    pid = task.pid
    del task  # nobody holds it any more
    assert is_gone(pid)


def test_signals_reach_a_task_or_all_it_started(warm):
    for number in (signal.SIGTERM, signal.SIGKILL):  # however early they come
        task = warm.spawn(["-c", SLEEP], stdout=subprocess.DEVNULL)
        task.send_signal(number)
        assert task.wait(timeout_secs=HANG_SECS) == -number
    code = (
        "import os, signal, sys\n"
        "from subprocess import PIPE, Popen\n"
        # Not print: the signal may come while 'asleep' is still being printed.
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'heard\\n'))\n"
        "child = Popen(['cat'], stdin=PIPE, stdout=PIPE)\n"
        "print('asleep', child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "child.stdin.write(b'alive\\n'); child.stdin.flush()\n"
        "os.write(1, child.stdout.readline())"
    )
    read, write = os.pipe()
    stdin, finish = os.pipe()
    task = warm.spawn(["-c", code], stdin=stdin, stdout=write)
    os.close(write)
    os.close(stdin)
    with os.fdopen(read) as lines:
        word, child = lines.readline().split()
        task.send_signal(signal.SIGUSR1, to_group=False)
        assert (word, lines.readline()) == ("asleep", "heard\n")
        assert task.poll() is None
        with pytest.raises(TimeoutError, match=r"still runs after 0\.01 s"):
            task.wait(timeout_secs=0.01)
        os.close(finish)
        assert lines.readline() == "alive\n"  # its child, which the signal would have ended
    assert task.wait(timeout_secs=HANG_SECS) == 0
    assert is_gone(int(child))  # though it waits for more
    task.kill()  # nothing happens to a task that has ended


def test_closing_or_killing_the_server_ends_tasks_and_leaves_nothing():
    with WarmServer(preload=LIGHT) as warm:
        task, folder = asleep(warm), warm.folder
        assert folder.stat().st_mode & 0o777 == 0o700
    assert task.wait(timeout_secs=HANG_SECS) == -signal.SIGKILL and is_gone(task.pid)
    assert not folder.exists()
    warm.close()  # a second time does nothing
    with pytest.raises(ProcessError, match="start another server"):
        warm.spawn(["-c", ""])
    with WarmServer(preload=LIGHT) as warm:
        server = int(output(warm, ["-c", "import os; print(os.getppid())"]))
        task = asleep(warm)
        os.kill(server, signal.SIGKILL)
        assert task.wait(timeout_secs=HANG_SECS) == -signal.SIGKILL and is_gone(task.pid)
        warm._process.wait(HANG_SECS)
        assert warm.has_ended


# The tasks of a program, from a server of its own or from another's.
OWNER = r"""
import sys, time
from concurrent.futures import ThreadPoolExecutor
from distlab.cluster.warm import process
process.WarmServer.__init__.__kwdefaults__["preload"] = ("json",)
with ThreadPoolExecutor(8) as pool:  # as %load_ext does beside the first cluster
    [server] = set(pool.map(lambda _: process.shared_server(), range(8)))
env = process.task_environment({"ADDED": "yes", "HOME": None})
print(server.folder, flush=True)
code = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.fork()\n"
    "facts = os.getpid(), os.getppid(), os.environ['ADDED'], 'HOME' in os.environ\n"
    "os.write(1, (' '.join(map(str, facts)) + chr(10)).encode())\n"
    "time.sleep(3600)"
)
task = server.spawn(["-c", code], env=env)
time.sleep(3600)
"""


@pytest.mark.parametrize("case", ["its own", "another's", "off"])
def test_tasks_end_when_the_process_that_asked_for_them_is_killed(warm, case):
    environ = os.environ | ({"DISTLAB_WARM_ADDRESS": warm.address} if case == "another's" else {})
    environ |= {"DISTLAB_WARM": "0"} if case == "off" else {}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as owner:
        folder = Path(owner.stdout.readline().strip())
        assert folder.is_dir()
        lines = [owner.stdout.readline().split() for _ in range(2)]
        owner.kill()
    assert [rest for _, _, *rest in lines] == [["yes", "False"]] * 2
    pids, parents = ({int(pid) for pid in column} for column in list(zip(*lines, strict=True))[:2])
    [server] = parents - pids
    assert (server == json.loads(output(warm, ["-c", "import os; print(os.getppid())"]))) == (
        case == "another's"
    )
    assert all(map(is_gone, pids))
    assert case == "another's" or (is_gone(server) and not folder.exists())


def test_nothing_is_forked_where_it_is_turned_off_or_unsafe(monkeypatch):
    monkeypatch.setenv("DISTLAB_WARM", "0")
    assert not can_fork()
    with WarmServer(preload=LIGHT) as warm:
        assert output(warm, ["-c", "import sys; print('wave' in sys.modules)"]) == "False\n"
    monkeypatch.delenv("DISTLAB_WARM")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not can_fork()
