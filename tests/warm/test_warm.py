import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from distlab.errors import InvalidArgument, ProcessError, UnsupportedEnvironment
from distlab.warm import wire
from distlab.warm.client import ForkedProcess, ForkRefused, WarmClient
from distlab.warm.forked_process import settings
from distlab.warm.keeper import Keeper
from distlab.warm.process import WarmProcess, can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

LIGHT = ("json",)
SLEEP = "import time; print('asleep', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def warm():
    with WarmProcess(preload=LIGHT) as process:
        yield process


def output(warm, argv=None, **options):
    read, write = os.pipe()
    with os.fdopen(read) as lines:
        try:
            task = warm.spawn(argv, stdout=write, **options)
        finally:
            os.close(write)
        text = lines.read()
    assert task.wait(timeout_secs=30) == 0
    return text


def asleep(spawn, *, code=SLEEP, **options):
    """Returns a task that sleeps, once it does."""
    read, write = os.pipe()
    task = spawn(["-c", code], stdout=write, **options)
    os.close(write)
    with os.fdopen(read) as lines:
        assert lines.readline() == "asleep\n"
    return task


def is_gone(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=30)
    return not psutil.pid_exists(pid)


def test_a_command_sees_its_own_argv_folder_environment_and_main(warm, tmp_path):
    code = (
        "import json, os, sys, __main__; kept = 5\n"
        "print(json.dumps([sys.argv, os.getcwd(), sys.path[0], dict(os.environ),"
        " __main__.kept, hasattr(__main__, '_Server')]))"
    )
    env = settings(os.environ) | {"ONLY": "this"}
    argv, cwd, path, environ, kept, has_server = json.loads(
        output(warm, ["-c", code, "--epochs", "3"], env=env, cwd=tmp_path)
    )
    assert argv == ["-c", "--epochs", "3"]
    assert cwd == path == str(tmp_path)
    assert environ == env
    assert kept == 5
    assert not has_server


def test_a_module_and_a_script_run_as_main(warm, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    text = "import sys; print(__name__, sys.argv[1:], sys.path[0])"
    (folder / "named.py").write_text(text)
    expected = f"__main__ ['a'] {folder}\n"
    assert output(warm, ["-m", "named", "a"], cwd=folder) == expected
    assert output(warm, [str(folder / "named.py"), "a"], cwd=tmp_path) == expected


def test_a_function_gets_its_arguments(warm, tmp_path):
    (tmp_path / "added.py").write_text("def show(a, b): print(a + b['c'])")
    assert output(warm, call="added:show", args=[1, {"c": 2}], cwd=tmp_path) == "3\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("1/0", 1),
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    ],
)
def test_exit_codes_are_those_of_a_fresh_process(warm, code, expected):
    assert warm.spawn(["-c", code], stderr=subprocess.DEVNULL).wait(timeout_secs=30) == expected


def test_what_a_task_registers_for_its_exit_is_run(warm):
    code = "import atexit; atexit.register(print, 'bye'); print('hello')"
    assert output(warm, ["-c", code]) == "hello\nbye\n"


def test_streams_are_the_ones_given(warm, tmp_path):
    (tmp_path / "in").write_text("typed")
    code = "import sys; sys.stdout.write(sys.stdin.read()); print('wrong', file=sys.stderr)"
    with (tmp_path / "in").open() as stdin, (tmp_path / "out").open("w") as out:
        task = warm.spawn(["-c", code], stdin=stdin, stdout=out, stderr=subprocess.STDOUT)
        assert task.wait(timeout_secs=30) == 0
    assert sorted((tmp_path / "out").read_text().split("wrong\n")) == ["", "typed"]


def test_a_task_holds_no_descriptor_of_the_warm_process(warm):
    asleep_meanwhile = asleep(warm.spawn)
    listed = json.loads(output(warm, ["-c", "import os; print(os.listdir('/proc/self/fd'))"])
                        .replace("'", '"'))  # fmt: skip
    asleep_meanwhile.kill()
    assert set(listed) <= {"0", "1", "2", "3"}  # 3 is the listing's own


def test_a_task_leads_its_own_session(warm):
    assert output(warm, ["-c", "import os; print(os.getsid(0) == os.getpid())"]) == "True\n"


def test_each_task_draws_other_random_numbers(warm):
    code = "import random; print(random.random())"
    assert output(warm, ["-c", code]) != output(warm, ["-c", code])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_a_task_however_early_it_comes(warm, number):
    task = warm.spawn(["-c", SLEEP], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    task.send_signal(number)
    assert task.wait(timeout_secs=30) == -number


def test_an_exit_that_is_told_along_with_the_start_is_heard():
    ours, theirs = socket.socketpair()
    wire.send(theirs, {"pid": 1})
    wire.send(theirs, {"exit": 3})
    inbox = wire.Inbox()
    inbox.read(ours)
    assert ForkedProcess(ours, inbox, inbox.pop()["pid"]).wait(timeout_secs=1) == 3


def test_messages_that_arrive_in_pieces_are_read_whole():
    written, read = socket.socketpair()
    wire.send(written, {"exit": 3})
    wire.send(written, {"pid": 4})
    sent = read.recv(1000)
    ours, theirs = socket.socketpair()
    inbox, found = wire.Inbox(), []
    for place in range(len(sent)):
        theirs.sendall(sent[place : place + 1])
        inbox.read(ours)
        found.append(inbox.pop())
    assert [message for message in found if message] == [{"exit": 3}, {"pid": 4}]
    assert found[-1] == {"pid": 4}


def test_wait_says_that_a_task_still_runs(warm):
    task = asleep(warm.spawn)
    assert task.poll() is None
    with pytest.raises(TimeoutError, match=r"still runs after 0\.01 s"):
        task.wait(timeout_secs=0.01)
    task.kill()
    assert task.wait(timeout_secs=30) == -signal.SIGKILL
    task.kill()  # nothing happens to a task that has ended


def test_a_task_ends_with_the_processes_it_started(warm):
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " stdout=subprocess.DEVNULL).pid)"
    )
    assert is_gone(int(output(warm, ["-c", code])))


def test_many_tasks_at_once(warm):
    with ThreadPoolExecutor(8) as pool:
        codes = pool.map(
            lambda code: warm.spawn(["-c", f"raise SystemExit({code})"]).wait(60), range(32)
        )
    assert list(codes) == list(range(32))


def test_a_task_ends_when_the_process_that_asked_for_it_is_killed(warm):
    code = (
        "import sys, time; from distlab.warm.client import WarmClient\n"
        "print(WarmClient(sys.argv[1]).spawn(['-c', 'import time; time.sleep(600)']).pid,"
        " flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, warm.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        pid = int(client.stdout.readline())
        client.kill()
    assert is_gone(pid)


def test_all_end_when_the_owner_is_killed():
    code = (
        "import time; from distlab.warm.process import WarmProcess\n"
        "warm = WarmProcess(preload=('json',)).start()\n"
        "task = warm.spawn(['-c', 'import signal, time; signal.signal(15, signal.SIG_IGN);"
        " time.sleep(600)'])\n"
        "print(warm.pid, task.pid, warm.address, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        server, task, address = owner.stdout.readline().split()
        owner.kill()
    assert is_gone(int(task))
    assert is_gone(int(server))
    assert not Path(address).parent.exists()


def test_tasks_end_when_the_warm_process_is_killed():
    with WarmProcess(preload=LIGHT) as warm:
        task = asleep(warm.spawn)
        os.kill(warm.pid, signal.SIGKILL)
        assert task.wait(timeout_secs=30) == -signal.SIGKILL
        assert is_gone(task.pid)


def test_closing_ends_tasks_and_leaves_nothing():
    with WarmProcess(preload=LIGHT) as warm:
        task = asleep(warm.spawn)
        folder = Path(warm.address).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert task.wait(timeout_secs=30) == -signal.SIGKILL
    assert not folder.exists()
    warm.close()  # a second time does nothing
    with pytest.raises(ProcessError, match="start a fresh process, or a new WarmProcess"):
        warm.spawn(["-c", ""])


def test_closing_while_it_warms_does_not_wait(tmp_path):
    (tmp_path / "never.py").write_text("import time; time.sleep(600)")
    warm = WarmProcess(preload=["never"], env=os.environ | {"PYTHONPATH": str(tmp_path)})
    with warm:
        pid = warm.pid
    assert is_gone(pid)


def test_requests_wait_until_it_is_warm(tmp_path):
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "gated.py").write_text(f"kept = open({str(tmp_path / 'gate')!r}).read()")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with WarmProcess(preload=["gated"], env=env) as warm:
        seen = []
        code = "import sys; print(sys.modules['gated'].kept)"
        asking = threading.Thread(target=lambda: seen.append(output(warm, ["-c", code], env=env)))
        asking.start()
        (tmp_path / "gate").write_text("open")
        asking.join()
    assert seen == ["open\n"]


def test_a_module_that_is_missing_or_broken_costs_only_itself(tmp_path):
    (tmp_path / "broken_one.py").write_text("1/0")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with WarmProcess(preload=["broken_one", "no_such_module", "wave"], env=env) as warm:
        assert output(warm, ["-c", "import sys; print('wave' in sys.modules)"], env=env) == "True\n"


def test_a_setting_that_was_read_before_the_fork_is_refused(warm):
    with pytest.raises(ForkRefused, match="KERAS_BACKEND differ from the warm process's own"):
        warm.spawn(["-c", ""], env=os.environ | {"KERAS_BACKEND": "other"})


@pytest.mark.parametrize("argv", [None, [], ["-m"], ["-X", "dev", "script.py"]])
def test_what_is_no_command_is_refused(warm, argv):
    with pytest.raises(InvalidArgument, match="give argv as"):
        warm.spawn(argv)


def test_a_missing_folder_is_refused(warm, tmp_path):
    with pytest.raises(InvalidArgument, match="is no folder"):
        warm.spawn(["-c", ""], cwd=tmp_path / "none")


def test_one_switch_turns_it_off(monkeypatch):
    monkeypatch.setenv("DISTLAB_WARM", "0")
    assert not can_fork()
    with pytest.raises(UnsupportedEnvironment, match="DISTLAB_WARM=0"):
        WarmProcess().start()


def test_nothing_is_forked_on_macos(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not can_fork()


def test_an_address_where_nothing_listens_is_told(tmp_path):
    with pytest.raises(ProcessError, match="No such file"):
        WarmClient(str(tmp_path / "socket")).spawn(["-c", ""])


# Fresh tasks, networks, signals to one process, and the keeper of clusters


def test_a_fresh_task_is_a_new_python_that_is_kept_all_the_same(warm):
    loaded = "import sys; print('wave' in sys.modules, sys.argv[1:])"
    with WarmProcess(preload=("wave",)) as other:
        assert output(other, ["-c", loaded, "a"]) == "True ['a']\n"
        assert output(other, ["-c", loaded, "a"], fresh=True) == "False ['a']\n"
        task = asleep(other.spawn, fresh=True)
        task.kill()
        assert task.wait(timeout_secs=30) == -signal.SIGKILL
        kept = asleep(other.spawn, fresh=True)
    assert kept.wait(timeout_secs=30) == -signal.SIGKILL


def test_a_fresh_task_may_differ_in_what_is_read_only_once(warm):
    env = os.environ | {"PYTHONHASHSEED": "7", "KERAS_BACKEND": "other"}
    code = "import os; print(os.environ['KERAS_BACKEND'])"
    assert output(warm, ["-c", code], env=env, fresh=True) == "other\n"


def test_a_fresh_task_may_call_a_function(warm, tmp_path):
    (tmp_path / "added.py").write_text("def show(a, b): print(a + b['c'])")
    given = {"call": "added:show", "args": [1, {"c": 2}], "cwd": tmp_path, "fresh": True}
    assert output(warm, **given) == "3\n"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_task_runs_in_the_network_of_a_process(warm, fresh):
    code = (
        "import ctypes, os, time; ctypes.CDLL(None).unshare(0x40000000) and "
        "ctypes.CDLL(None).unshare(0x10000000 | 0x40000000); print('asleep', flush=True);"
        "time.sleep(600)"
    )
    holder = asleep(warm.spawn, code=code)
    there = f"/proc/{holder.pid}/ns/net"
    seen = output(
        warm,
        ["-c", f"import os; print(os.readlink('/proc/self/ns/net'), os.readlink({there!r}))"],
        network_of=holder.pid,
        fresh=fresh,
    ).split()
    holder.kill()
    assert seen[0] == seen[1] != str(Path("/proc/self/ns/net").readlink())


def test_a_network_that_is_not_there_is_told_by_the_task(warm, tmp_path):
    with (tmp_path / "err").open("w") as err:
        task = warm.spawn(["-c", ""], network_of=2**22 + 1, stderr=err)
        assert task.wait(timeout_secs=30) == 1
    assert "No such file or directory" in (tmp_path / "err").read_text()


def test_a_signal_may_reach_the_task_alone(warm):
    code = (
        "import os, signal, sys\n"
        "from subprocess import PIPE, Popen\n"
        # Not print: the signal may come while 'asleep' is still being printed.
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'heard\\n'))\n"
        "child = Popen(['cat'], stdin=PIPE, stdout=PIPE)\n"
        "print('asleep', flush=True)\n"
        "sys.stdin.read()\n"
        "print(child.communicate(b'alive')[0].decode(), flush=True)"
    )
    read, write = os.pipe()
    stdin, finish = os.pipe()
    task = warm.spawn(["-c", code], stdin=stdin, stdout=write)
    os.close(write)
    os.close(stdin)
    with os.fdopen(read) as lines:
        assert lines.readline() == "asleep\n"
        task.send_signal(signal.SIGUSR1, to_group=False)
        assert lines.readline() == "heard\n"
        os.close(finish)
        assert lines.readline() == "alive\n"  # its child, which the signal would have ended
    assert task.wait(timeout_secs=30) == 0


KEEPER = r"""
import os, sys, time
from distlab.warm.keeper import shared_keeper, task_environment
keeper = shared_keeper()
assert keeper is shared_keeper()
env = task_environment({"ADDED": "yes", "HOME": None})
print(keeper.folder, flush=True)
code = (
    "import os, time\n"
    "print(os.getpid(), os.getppid(), os.environ['ADDED'], 'HOME' in os.environ, flush=True)\n"
    "time.sleep(600)"
)
tasks = [keeper.spawn(["-c", code], env=env) for _ in range(2)]
time.sleep(600)
"""


@pytest.mark.parametrize("warm_address", [False, True])
def test_the_keeper_ends_tasks_when_their_owner_is_killed(warm, warm_address):
    environ = os.environ | {"DISTLAB_WARM": "0"}
    if warm_address:
        environ = os.environ | {"DISTLAB_WARM_ADDRESS": warm.address}
    command = [sys.executable, "-c", KEEPER]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as owner:
        folder = Path(owner.stdout.readline().strip())
        assert folder.is_dir()
        told = [owner.stdout.readline().split() for _ in range(2)]
        owner.kill()
    assert all(rest == ["yes", "False"] for _, _, *rest in told)
    [keeper] = {int(parent) for _, parent, *_ in told}
    assert (keeper == warm.pid) == warm_address
    assert all(is_gone(int(pid)) for pid, *_ in told)
    assert warm_address or (is_gone(keeper) and not folder.exists())


def test_an_address_where_nobody_answers_costs_the_keeper_nothing(tmp_path):
    environ = os.environ | {"DISTLAB_WARM_ADDRESS": str(tmp_path / "socket")}
    code = (
        "import os\n"
        "from distlab.warm import keeper\n"
        "keeper._PRELOAD = ('json',)\n"
        "one = keeper.shared_keeper()\n"
        "print(one.spawn(['-c', 'raise SystemExit(3)'], env=keeper.task_environment({})).wait(60))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "3\n", done.stderr


def test_a_setting_that_differs_makes_the_keeper_start_a_new_python(warm):
    keeper = Keeper(WarmClient(warm.address), can_fork=True)
    env = os.environ | {"KERAS_BACKEND": "other"}
    code = "import sys, os; raise SystemExit(5 if 'distlab.warm.server' in sys.modules else 6)"
    assert keeper.spawn(["-c", code], env=env).wait(timeout_secs=60) == 6
