"""`distlab launch`: a script on real tasks, watched over, and what they print passed on."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from distlab import cli
from distlab.cluster.exit_status import exit_code
from distlab.cluster.launch import launcher
from distlab.cluster.launch.task_output import shown
from distlab.cluster.ports import is_free
from distlab.cluster.warm.process import shared_server, task_environment
from tests.support.launched import Launch, are_gone, launched, own_lines, said_by
from tests.support.limits import HANG_SECS
from tests.support.local_tasks import late_once, wait_until

# Which task this is, and how often it was started: in a file of its own.
TASK = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
name = f"{config['task']['type']}:{config['task']['index']}"
log = pathlib.Path("attempts-" + name)
with log.open("a") as file:
    file.write("x")
attempt = len(log.read_text())

def wait_for(*paths):
    while not all(map(os.path.exists, paths)):
        time.sleep(0.01)

def sleep():
    time.sleep(3600)

"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder that each test starts in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(text):
    """Writes a script that knows which task it is, and returns its name."""
    Path("train.py").write_text(TASK + text)
    return "train.py"


def attempts():
    """Returns how often each task was started, and forgets it."""
    logs = sorted(Path().glob("attempts-*"))
    counts = {path.name.removeprefix("attempts-"): len(path.read_text()) for path in logs}
    for path in logs:
        path.unlink()
    return counts


# What a task is given, and what its script sees and prints.


def test_each_task_has_its_part_in_one_cluster_and_its_name_before_its_lines(capfd):
    text = r"""
print(os.environ["TF_CONFIG"])
os.write(1, b"\xff\xfe\n")
print("no end", end="", flush=True)
print("problem", file=sys.stderr)
pathlib.Path("said-" + name).touch()
if name == "chief:0":
    wait_for(*("said-" + task for task in ("worker:0", "worker:1", "ps:0", "evaluator:0")))
elif name != "evaluator:0":
    sleep()
"""
    run = launched(["--workers", 2, "--ps", 1, "--evaluator", script(text)], capfd)
    tasks = ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
    configs = {task: json.loads(said_by(task, run.out)[0]) for task in tasks}
    jobs = configs["chief:0"]["cluster"]
    counts = {job: len(set(addresses)) for job, addresses in jobs.items()}
    assert counts == {"chief": 1, "worker": 2, "ps": 1}
    for task, config in configs.items():
        job, index = task.split(":")
        assert config["cluster"] == jobs and config["task"] == {"type": job, "index": int(index)}
        assert said_by(task, run.out)[1:] == ["\ufffd\ufffd", "no end"]  # as text; bytes pass
        assert said_by(task, run.err) == ["problem"]
    names = {line.partition(" | ")[0] for line in run.out.splitlines()}
    assert names == {f"{task:11}" for task in tasks}
    first = run.err.splitlines()[0]
    assert re.match(r"distlab launch: chief:0 on 127\.0\.0\.1:\d+, worker:0 on ", first)
    assert "listen on every network interface without authentication" in first


def test_each_task_has_a_gpu_of_its_own_and_too_few_cores_are_noted(monkeypatch, capfd):
    monkeypatch.setattr(launcher, "visible_gpus", lambda: ["4", "6"])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    run = launched(["--workers", 2, script("print(os.environ['CUDA_VISIBLE_DEVICES'])")], capfd)
    assert [said_by(f"worker:{index}", run.out) for index in (0, 1)] == [["4"], ["6"]]
    assert "distlab launch: 2 tasks share 1 cores\n" in run.err


FACTS = """
import json, multiprocessing, sys
def double(number):
    return 2 * number
if __name__ == "__main__":
    print(json.dumps([__name__, __file__, __spec__ is None, __doc__, __package__, sys.argv,
                      sys.path[0], sys.modules["__main__"].__dict__ is globals(), __cached__,
                      type(__loader__).__name__, __builtins__ is sys.modules["builtins"]]))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2, 3]))
"""
ENDS = {
    FACTS: 0,
    "def f():\n    raise ValueError('no')\nf()\n": 1,
    "print(\n": 1,
    "import sys\nsys.exit(7)\n": 7,
    "import sys\nsys.exit('cannot go on')\n": 1,
    "import sys\nsys.excepthook = lambda *a: print('hooked', a[0])\n1 / 0\n": 1,
    "def f():\n    raise KeyboardInterrupt\nf()\n": 130,
}


def test_a_script_runs_and_ends_as_it_would_with_python(folder):
    (folder / "package").mkdir()
    (folder / "package/__init__.py").touch()
    (folder / "package/beside.py").write_text("WORD = 'beside'")
    (folder / "package/train.py").write_text("from .beside import WORD; print(WORD)")
    arguments = ["--epochs", "3", "--", "-m", "x", "--workers", "9"]
    commands = {("-m", "package.train", *arguments): 0}
    for number, (text, code) in enumerate(ENDS.items()):
        (folder / f"{number}.py").write_text(text)
        commands[f"{number}.py", *arguments] = code
    wrong = []
    for command, code in commands.items():
        plain = subprocess.run([sys.executable, *command], capture_output=True)
        argv = ["-m", "distlab.cluster.launch.script", "0", *command]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            options = {"env": task_environment({}), "cwd": folder, "stdout": out, "stderr": err}
            ended = shared_server().spawn(argv, **options).wait(timeout_secs=HANG_SECS)
        ours = (ended, (folder / "out").read_bytes(), (folder / "err").read_bytes())
        if ours != (exit_code(plain.returncode), plain.stdout, plain.stderr) or ended != code:
            wrong.append((command, ours, plain))
    assert wrong == []


def test_a_setting_that_a_fork_would_not_heed_starts_a_new_python(folder, capfd, monkeypatch):
    text = """
os.environ["PYTHONHASHSEED"] = "3"          # too late for any Python
os.environ["KERAS_BACKEND"] = "tensorflow"  # as it is
print("tensorflow" in sys.modules)
os.environ["TF_USE_LEGACY_KERAS"] = "1"
print("tensorflow" in sys.modules)
"""
    run = launched([script(text)], capfd)
    assert said_by("worker:0", run.out) == ["True", "False", "False"]
    assert "the script sets TF_USE_LEGACY_KERAS" in run.err
    monkeypatch.setenv("MPLCONFIGDIR", str(folder))  # from outside
    run = launched([script("print('tensorflow' in sys.modules)")], capfd)
    assert said_by("worker:0", run.out) == ["False"]


def test_devices_are_split_before_the_script(capfd):
    text = "import tensorflow as tf\nprint(len(tf.config.list_logical_devices()))"
    run = launched(["--devices-per-worker", 2, script(text)], capfd)
    assert said_by("worker:0", run.out) == ["2"]


# Failures.

WORKER_1_FAILS = "if name == 'worker:1':\n    {}\nsleep()\n"
LOST_A_PEER = """
if name == "worker:0":
    wait_for("ended")
    # Left out of what is shown, and still a sign that it failed because of another.
    print("E0000 00:00:17 1 x.cc:1] UNAVAILABLE: Connection reset by peer", file=sys.stderr)
    sys.exit(9)
import atexit
atexit.register(sleep)
atexit.register(pathlib.Path("ended").touch)
raise ValueError("no")
"""


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (WORKER_1_FAILS.format("os.kill(os.getpid(), 9)"), 137, "worker:1 was ended by SIGKILL"),
        # The cause is worker:1, though it does not come to its end.
        (LOST_A_PEER, 1, "worker:1 ended with exit code 1 (ValueError: no)"),
    ],
)
def test_the_first_failure_is_named_and_gives_the_code(text, code, line, capfd):
    run = launched(["--workers", 2, script(text)], capfd, code=code)
    assert own_lines(run) == [f"{line}; the others were ended"]


# How a script can fail, and what the last line of all says.
FAILURES = {
    "int('no')": "1 (ValueError: invalid literal for int() with base 10: 'no')",
    "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise OSError('a\\nb')": "1 (OSError: a)",
    "import distlab\ndistlab.plan_batch(global_batch=0, replicas=2)": "1 (distlab.errors.Invalid"
    "Argument: plan_batch(global_batch=0); found: global_batch=0)",
    "print('to do: nothing')\nsys.exit('cannot go on')": "1 (cannot go on)",
    "import argparse\nargparse.ArgumentParser(prog='x').parse_args(['--y'])": "2 (x: error: "
    "unrecognized arguments: --y)",
    "def f():\n    f(\n": "1 (SyntaxError: '(' was never closed)",
    "print('fine')\nsys.exit(3)": "3",
    "raise ValueError('x' * 1000)": f"1 (ValueError: {'x' * 288}...)",
}


def test_after_a_failure_the_last_line_names_the_cause(capfd):
    for text, ended in FAILURES.items():
        run = launched([script(text)], capfd, code=int(ended[0]))
        last = run.err.splitlines()[-1]
        assert last == f"distlab launch: worker:0 ended with exit code {ended}", text


SURVIVES = """
if name == "worker:1":
    wait_for("midway")
    os.kill(os.getpid(), 9)
"""
# worker:0 shows an error, and is ended by the launcher in the middle of it.
BY_LINES = """
print('Traceback (most recent call last):\\n  File "x.py", line 1, in f', file=sys.stderr)
pathlib.Path("midway").touch()
sleep()
"""
AT_ONCE = """
class Slow(Exception):
    def __str__(self):  # Python asks for it when it has written the frames
        pathlib.Path("midway").touch()
        sleep()
raise Slow
"""


def test_a_survivor_shows_its_whole_error_or_none_of_it(capfd):
    cut_off = "(a traceback that was cut off, since the task was ended meanwhile)"
    for text, shows in ((BY_LINES, [cut_off]), (AT_ONCE, [])):
        Path("midway").unlink(missing_ok=True)
        run = launched(["--workers", 2, script(SURVIVES + text)], capfd, code=137)
        assert said_by("worker:0", run.err) == shows
        last = run.err.splitlines()[-1]
        assert last == "distlab launch: worker:1 was ended by SIGKILL; the others were ended"


# What native code writes of a peer that was lost, what it writes everywhere, and what is shown.
LOGGED = """E0000 00:00:1795910725.64 27772 cuda_platform.cc:52] failed call to cuInit: INTERNAL
E0000 00:00:1795910740.60 28768 executor.cc:252] StartAbort UNAVAILABLE: Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling:
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Connection reset by peer"}
2026-01-31 10:00:00.123456: E tensorflow/core/x.cc:1] Aborting RingGather: Socket closed
E0000 00:00:1795910740.60 28768 allocator.cc:9] out of memory
Additional GRPC error information that an error quotes
Connection reset by peer, says a script"""


def test_what_native_code_logs_of_every_machine_and_of_a_lost_peer_is_left_out(capfd):
    run = launched([script(f"os.write(2, {LOGGED.encode()!r})")], capfd)
    assert said_by("worker:0", run.err) == LOGGED.splitlines()[-3:]


def test_the_same_traceback_of_several_tasks_is_shown_once_and_in_one_piece(capfd):
    text = """
import traceback
try:
    int(name if name == "worker:2" else "no number")
except ValueError:
    traceback.print_exc()
"""
    run = launched(["--workers", 3, script(text)], capfd)
    error = r"worker:\d \| ValueError: invalid literal for int\(\) with base 10: "
    whole = r"(worker:\d) \| Traceback .*\n(?:\1 \|   .*\n)+" + error
    assert re.findall(whole + "'worker:2'", run.err) == ["worker:2"]
    (first,) = re.findall(whole + "'no number'", run.err)
    as_first = error.replace("ValueError", f"as {first}: ValueError") + "'no number'"
    assert len(re.findall(as_first, run.err)) == 1


def test_after_a_failure_all_start_again_in_the_same_cluster(capfd):
    text = """
print(os.environ["TF_CONFIG"])
if attempt < 3:
    if name == "worker:1":
        raise ValueError(f"failure {attempt}")
    sleep()
"""
    args = ["--workers", 2, "--max-restarts", 2, script(text)]
    run = launched(args, capfd)
    assert attempts()["worker:1"] == 3
    failed, again = "worker:1 ended with exit code 1", "all are started again (restart"
    errors = [f"{failed} (ValueError: failure {number})" for number in (1, 2)]
    assert own_lines(run) == [
        f"{error}; {again} {number} of 2)" for number, error in enumerate(errors, 1)
    ]
    assert len({line for line in said_by("worker:1", run.out) if "cluster" in line}) == 1
    # What failed is seen each time, and before the launcher speaks of it.
    said = [re.split(r";| \(", line)[0] for line in run.err.splitlines()[1:]]
    order = [line for line in said if "ValueError: fail" in line or failed in line]
    ours, theirs = f"distlab launch: {failed}", "worker:1 | ValueError: failure"
    assert order == [f"{theirs} 1", ours, f"{theirs} 2", ours]
    args[3] = 1  # restarts have an end
    run = launched(args, capfd, code=1)
    assert own_lines(run)[1:] == [f"{errors[1]}; the others were ended"]


def test_a_preempted_task_is_started_again_and_the_others_may_save(capfd, monkeypatch):
    monkeypatch.setattr(launcher, "_LOST_SECS", 0)  # for a task that cannot save
    monkeypatch.setattr(launcher, "_PREEMPTED_SECS", HANG_SECS)
    text = """
def save(*_):
    print("saved")
    sys.exit(143)
if attempt == 1 and name == "worker:1":
    wait_for("listening")
    sys.exit(143)
if attempt == 1:
    signal.signal(signal.SIGTERM, save)
    pathlib.Path("listening").touch()
    sleep()
"""
    run = launched(["--workers", 2, "--max-restarts", 1, script(text)], capfd)
    assert attempts() == {"worker:0": 2, "worker:1": 2}
    assert said_by("worker:0", run.out) == ["saved"]
    preempted = "worker:1 ended with exit code 143 (preempted; it has saved)"
    assert own_lines(run) == [f"{preempted}; all are started again (restart 1 of 1)"]


def test_a_coordinator_goes_on_without_a_worker_but_not_without_a_server(capfd):
    text = """
def counts():
    logs = pathlib.Path().glob("attempts-*")
    return {path.name.removeprefix("attempts-"): len(path.read_text()) for path in logs}
lost, expected = sys.argv[1], json.loads(sys.argv[2])
if name == "chief:0":
    while counts() != expected:
        time.sleep(0.01)
    sys.exit(0)
if attempt == 1 and name == lost:
    while len(counts()) < len(expected):
        time.sleep(0.01)
    sys.exit(0) if name == "worker:1" else os.kill(os.getpid(), 9)
sleep()
"""
    args = ["--workers", 2, "--ps", 1, "--max-restarts", 1, script(text)]
    all_twice = dict.fromkeys(["chief:0", "ps:0", "worker:0", "worker:1"], 2)
    for lost, how, started in (
        (
            "worker:1",
            "ended with exit code 0; it is",
            {**dict.fromkeys(all_twice, 1), "worker:1": 2},
        ),
        ("ps:0", "was ended by SIGKILL; all are", all_twice),
    ):
        run = launched([*args, lost, json.dumps(started)], capfd)
        assert attempts() == started
        assert own_lines(run) == [f"{lost} {how} started again (restart 1 of 1)"]


def test_an_evaluator_may_go_on_for_a_while_when_training_has_ended(capfd, monkeypatch):
    succeed = launcher._Launcher._on_success

    def note_and_succeed(supervisor):
        Path("training-has-ended").touch()
        return succeed(supervisor)

    monkeypatch.setattr(launcher._Launcher, "_on_success", note_and_succeed)
    text = """
if name != "evaluator:0":
    sys.exit(0)
wait_for("training-has-ended")
print("last evaluation")
sys.exit(5)
"""
    run = launched(["--evaluator", script(text)], capfd)
    assert said_by("evaluator:0", run.out) == ["last evaluation"]
    assert own_lines(run) == ["evaluator:0 ended with exit code 5; training had ended before"]


def test_when_the_time_is_over_it_is_shown_where_each_task_was(folder, capfd, monkeypatch):
    text = """
def waits_for_the_other():
    pathlib.Path("waits-" + name).touch()
    sleep()
waits_for_the_other()
"""
    times = late_once(lambda: len(list(folder.glob("waits-*"))) == 2)
    monkeypatch.setattr(launcher, "time", times)
    run = launched(["--workers", 2, "--timeout", 5000, script(text)], capfd, code=124)
    for task in ("worker:0", "worker:1"):
        assert any(line.endswith("in waits_for_the_other") for line in said_by(task, run.err))
    late = "not ended after 5000 s: worker:0, worker:1; their stacks are above"
    assert own_lines(run) == [f"{late}, all tasks were ended"]


# The end from outside, in a process of its own.

PID = "print('pid', os.getpid(), flush=True)\n"


def pids(run, count):
    run.wait_for(rf"(?s)(pid \d+\n.*){{{count}}}")
    return [int(pid) for pid in re.findall(r"pid (\d+)", run.out)]


def test_an_interrupt_ends_all_also_those_that_ignore_it():
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    text = f"{deaf}{PID}sleep()"
    with Launch(["--workers", 2, "--max-restarts", 5, script(text)]) as run:
        tasks = pids(run, 2)
        run.signal(signal.SIGINT)
        run.wait()
    assert run.code == 130 and are_gone(tasks)
    assert own_lines(run) == ["all tasks were ended by SIGINT"]


SAVES = f"""
def save(*_):
    if name == "chief:0":
        pathlib.Path("saves").touch()
        wait_for("saving-ends")
        print("saved")
    print("left at", time.time())
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
{PID}
sleep()
"""


def test_a_request_to_end_is_passed_on_and_what_saves_is_waited_for():
    with Launch(["--ps", 1, "--max-restarts", 5, script(SAVES)]) as run:
        tasks = pids(run, 3)
        run.signal(signal.SIGTERM)
        wait_until(Path("saves").exists)
        Path("saving-ends").touch()
        run.wait()
    assert run.code == 143 and are_gone(tasks)
    assert said_by("chief:0", run.out)[1] == "saved"
    left = {name: float(at) for name, at in re.findall(r"(\S+) +\| left at (\S+)", run.out)}
    assert len(left) == 3 and min(left, key=left.get) == "chief:0"  # servers outlive it
    assert set(attempts().values()) == {1}


def test_what_saves_for_too_long_is_ended():
    with Launch(["--chief", "--grace-secs", 0.5, script(SAVES)]) as run:
        tasks = pids(run, 2)
        run.signal(signal.SIGTERM)
        run.wait()
    assert run.code == 143 and are_gone(tasks)


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number, folder):
    temporary = folder / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), "DISTLAB_WARM": "0"}  # nothing is imported: a quick start
    args = ["--workers", 2, script(PID + ("sleep()" if number else "wait_for('go')"))]
    with Launch(args, env=env, own_keeper=True) as run:
        tasks = pids(run, 2)
        keepers = [child.pid for child in psutil.Process(run.pid).children()]
        if number:
            run.signal(number)
        (folder / "go").touch()
        run.wait()
    assert keepers and are_gone(tasks + keepers)
    assert [path.name for path in temporary.iterdir()] == [f"distlab-ports-{os.getuid()}"]
    for path in temporary.glob("*/*"):
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where someone has it
    ports = [int(port) for port in re.findall(r":(\d{5})\b", run.err.splitlines()[0])]
    assert len(ports) == 2 and all(map(is_free, ports))


# What cannot be meant.

ASKED_WRONGLY = [
    ([], "distlab launch\n  found: no script and no module\n  to do: name a script, "),
    (["none.py", "x"], "distlab launch none.py\n  found: no such file: {folder}/none.py\n  to do:"),
    (["-m", "no_such_package.x"], "-m no_such_package.x\n  found: no module 'no_such_package'"),
    (
        ["--workers", "0", "t.py"],
        "--workers 0\n  found: --workers 0\n  to do: choose a number of at least 1",
    ),
    (["--devices-per-worker", "65", "t.py"], "found: --devices-per-worker 65\n"),
    (["--ps", "1", "--devices-per-worker", "2", "t.py"], "found: with parameter servers a "),
    (["--grace-secs", "nan", "t.py"], "found: --grace-secs nan\n  to do: choose a number of"),
]


def test_what_cannot_be_meant_is_said(folder, monkeypatch, capsys):
    (folder / "t.py").touch()
    for args, text in ASKED_WRONGLY:
        assert cli.main(["launch", *args]) == 2, args
        assert text.format(folder=folder) in capsys.readouterr().err, args
    for args in (["--worker", "2", "t.py"], ["--bogus", "t.py"], ["--ps", "x"]):
        with pytest.raises(SystemExit) as end:
            cli.main(["launch", *args])
        assert end.value.code == 2 and args[0] in capsys.readouterr().err
    monkeypatch.delattr(os, "fork")
    assert cli.main(["launch", "t.py"]) == 2
    text = "where no process can be forked\n  to do: on Windows run it under WSL2"
    assert text in capsys.readouterr().err


def test_what_follows_the_script_is_the_scripts(monkeypatch):
    seen = []
    monkeypatch.setattr(launcher, "launch", lambda *given: seen.append(given) or 0)
    after = ["--workers", "9", "--", "-m", "x"]
    for args, command, workers in [
        (["t.py", *after], ["t.py", *after], 1),
        (["--workers", "2", "--", "t.py", "--version"], ["t.py", "--version"], 2),
        (["--workers", "2", "-m", "a.b", *after], ["-m", "a.b", *after], 2),
    ]:
        assert cli.main(["launch", *args]) == 0
        assert (seen[-1][0], seen[-1][1].layout.workers) == (command, workers)


# How lines are passed on.

SHOWN = {
    b"no end": b"no end",
    b"\n": b"",
    b"dos\r\n": b"dos",
    b"\r 1/3\r 2/3\r 3/3\n": b" 3/3",
    b"1/3\b\b\b\r2/3\b\b\b\r3/3\n": b"3/3",
    b"\x1b[1mbold\x1b[0m\x1b[A\x1b[2K\x1b[?25l\n": b"\x1b[1mbold\x1b[0m",
    b"\xff\xfe \x80\n": b"\xff\xfe \x80",
}


def test_a_line_is_what_a_terminal_shows_in_the_end():
    assert {line: shown(line) for line in SHOWN} == SHOWN


def test_a_reader_that_is_slow_gets_all_and_one_that_has_gone_ends_it():
    text = "open('pid', 'w').write(f'{os.getpid()}\\n')\nprint('x' * 100_000)\nprint('last')"
    read, written = os.pipe()
    with Launch([script(text)], stdout=written) as run:
        os.close(written)
        wait_until(lambda: Path("pid").is_file() and Path("pid").read_text().endswith("\n"))
        assert are_gone([int(Path("pid").read_text())])
        # For we have not read a byte. It waits for one second for what a task leaves behind.
        assert not are_gone([run.pid], timeout_secs=2)
        with os.fdopen(read, "rb") as stream:
            said = stream.read()
    assert run.code == 0 and said.endswith(b"worker:0 | last\n") and said.count(b"x") == 100_000
    read, written = os.pipe()
    with Launch([script("while True: print('x' * 100)")], stdout=written) as run:
        os.close(written)
        assert os.read(read, 8) == b"worker:0"
        os.close(read)
        run.wait()
    assert run.code == 141
