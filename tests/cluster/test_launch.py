"""`distlab launch`: a script on real tasks, watched over."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from distlab import cli
from distlab.cluster.exit_status import exit_code, first_cause, has_lost_a_peer, how_it_ended
from distlab.cluster.launch import launching
from distlab.cluster.launch.launching import LaunchOptions, launch
from distlab.cluster.ports import is_free
from distlab.cluster.spec import TaskName
from distlab.errors import InvalidArgument
from tests.support.launched import Launch, are_gone, launched, own_lines, write
from tests.support.local_tasks import wait_until

# How often this task was started, in a file of its own.
ATTEMPT = """
import json, os, pathlib, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}:{task['index']}"
log = pathlib.Path(f"attempts-{task['type']}-{task['index']}")
with log.open("a") as file:
    file.write("x")
attempt = len(log.read_text())
print("attempt", attempt)
"""


def attempts(folder):
    """Returns how often each task was started."""
    return {
        path.name.removeprefix("attempts-"): len(path.read_text())
        for path in sorted(folder.glob("attempts-*"))
    }


def said_by(name, text):
    return [line.partition(" | ")[2] for line in text.splitlines() if line.startswith(name)]


# What a task is told, and its script sees.


def test_each_task_has_its_own_part_in_one_cluster(tmp_path):
    script = write(tmp_path, "import os; print(os.environ['TF_CONFIG'])")
    run = launched(["--workers", 2, script], tmp_path)
    configs = [json.loads(said_by(f"worker:{index}", run.out)[0]) for index in (0, 1)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 2
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]


def test_one_worker_is_a_cluster_of_one(tmp_path):
    script = write(tmp_path, "import os; print(os.environ['TF_CONFIG'])")
    config = json.loads(said_by("worker:0", launched([script], tmp_path).out)[0])
    assert len(config["cluster"]["worker"]) == 1 and config["task"]["index"] == 0


def test_parameter_servers_imply_a_chief_and_an_evaluator_is_no_part_of_the_cluster(tmp_path):
    serve = "if name[0] in 'wp':\n    time.sleep(600)"
    script = write(tmp_path, ATTEMPT + "print(os.environ['TF_CONFIG'])\n" + serve)
    run = launched(["--workers", 2, "--ps", 1, "--evaluator", script], tmp_path)
    config = json.loads(said_by("chief:0", run.out)[-1])
    assert {job: len(tasks) for job, tasks in config["cluster"].items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }


def test_it_is_said_that_the_servers_are_open_to_all(tmp_path):
    run = launched(["--workers", 2, write(tmp_path, "")], tmp_path)
    first = run.err.splitlines()[0]
    assert re.match(r"distlab launch: worker:0 on 127\.0\.0\.1:\d+, worker:1 on ", first)
    assert "listen on every network interface without authentication" in first


def test_more_tasks_than_cores_are_noted(tmp_path):
    tasks = os.cpu_count() + 1
    run = launched(["--workers", tasks, write(tmp_path, "")], tmp_path)
    assert f"{tasks} tasks share {os.cpu_count()} cores" in run.err


@pytest.mark.parametrize(
    ("gpus", "seen", "note"),
    [
        (["0", "1"], ["0", "1"], None),
        (["0"], ["-1", "-1"], "1 GPU for 2 tasks: all of them run on the CPU"),
    ],
)
def test_each_task_has_a_gpu_of_its_own_or_all_run_on_the_cpu(
    gpus, seen, note, tmp_path, monkeypatch, capfd
):
    script = write(tmp_path, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    monkeypatch.setattr(launching, "visible_gpus", lambda: gpus)
    assert launch([str(tmp_path / script)], LaunchOptions(workers=2)) == 0
    said = capfd.readouterr()
    assert [said_by(f"worker:{index}", said.out)[0] for index in (0, 1)] == seen
    assert (f"distlab launch: {note}" in said.err) == (note is not None)


FACTS = """
import json, sys
print(json.dumps([__name__, __file__, __spec__ is None, __doc__, __package__, sys.argv,
                  sys.path[0], sys.modules["__main__"].__dict__ is globals(), __cached__,
                  type(__loader__).__name__, __builtins__ is sys.modules["builtins"]]))
"""


@pytest.mark.parametrize("where", [".", "sub"])
def test_a_script_sees_what_python_would_show_it(where, tmp_path):
    folder = tmp_path / where
    folder.mkdir(exist_ok=True)
    write(folder, FACTS)
    command = [f"{where}/train.py", "--epochs", "3", "--", "-m", "x", "--workers", "9"]
    plain = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    run = launched(command, tmp_path)
    assert json.loads(said_by("worker:0", run.out)[0]) == json.loads(plain.stdout)


ENDS = {
    "an error": ("def f():\n    raise ValueError('no')\nf()\n", 1),
    "an error that came of another": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('no') from e\n",
        1,
    ),
    "no Python": ("print(\n", 1),
    "a code": ("import sys\nsys.exit(7)\n", 7),
    "a text": ("import sys\nsys.exit('cannot go on')\n", 1),
    "the script's own hook": (
        "import sys\nsys.excepthook = lambda *a: print('hooked', a[0])\nraise ValueError('no')\n",
        1,
    ),
    "an interrupt": ("def f():\n    raise KeyboardInterrupt\nf()\n", 130),
    "what is left for the end": ("import atexit\natexit.register(print, 'bye')\n1 / 0\n", 1),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_it_would_with_python(name, tmp_path):
    text, code = ENDS[name]
    script = write(tmp_path, text)
    plain = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    run = launched([script], tmp_path, code=code)
    assert exit_code(plain.returncode) == code
    assert said_by("worker:0", run.out) == plain.stdout.splitlines()
    assert said_by("worker:0", run.err) == plain.stderr.splitlines()


def test_a_script_can_spawn_processes_of_its_own(tmp_path):
    script = write(
        tmp_path,
        """
        import multiprocessing

        def double(number):
            return 2 * number

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2, 3]))
        """,
    )
    run = launched([script], tmp_path)
    assert said_by("worker:0", run.out) == ["[2, 4, 6]"]


def test_a_module_runs_as_python_m_would_run_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    write(package, "", "__init__.py")
    write(package, "WORD = 'found'", "beside.py")
    write(package, "import sys; from .beside import WORD; print(WORD, __name__, sys.argv[1:])")
    run = launched(["-m", "package.train", "--workers", "3"], tmp_path)
    assert said_by("worker:0", run.out) == ["found __main__ ['--workers', '3']"]


def test_a_setting_that_the_script_makes_too_late_for_a_fork_is_heeded(tmp_path):
    script = write(
        tmp_path,
        """
        import os
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tensorflow as tf
        print(tf.keras.layers.Dense.__module__, len(tf.config.list_logical_devices("CPU")))
        """,
    )
    run = launched(["--devices-per-worker", 3, script], tmp_path)
    assert said_by("worker:0", run.out) == ["tf_keras.src.layers.core.dense 3"]
    assert "the script sets TF_USE_LEGACY_KERAS" in run.err


def test_a_setting_that_changes_nothing_costs_no_new_start(tmp_path):
    script = write(
        tmp_path,
        """
        import os, sys
        os.environ["PYTHONHASHSEED"] = "3"          # too late for any Python
        os.environ["KERAS_BACKEND"] = "tensorflow"  # as it is
        print("tensorflow" in sys.modules)
        import tensorflow as tf
        tf.zeros(1)
        os.environ["TF_USE_LEGACY_KERAS"] = "1"     # too late here too
        print("on")
        """,
    )
    assert said_by("worker:0", launched([script], tmp_path).out) == ["True", "on"]


def test_a_setting_from_outside_is_heeded_by_a_new_python(tmp_path):
    script = write(tmp_path, "import os, sys; print(os.getenv('MPLCONFIGDIR'), len(sys.modules))")
    run = launched([script], tmp_path, env={"MPLCONFIGDIR": str(tmp_path)})
    folder, modules = said_by("worker:0", run.out)[0].split()
    assert folder == str(tmp_path) and int(modules) < 500


def test_devices_are_split_before_the_script(tmp_path):
    script = write(
        tmp_path,
        "import tensorflow as tf; print(len(tf.config.list_logical_devices()), flush=True)",
    )
    run = launched(["--devices-per-worker", 2, script], tmp_path)
    assert said_by("worker:0", run.out) == ["2"]


# Failures.


def test_the_first_failure_is_named_and_gives_the_code(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT + "if name == 'worker:1':\n    sys.exit(3)\ntime.sleep(600)",
    )
    run = launched(["--workers", 3, script], tmp_path, code=3)
    assert own_lines(run) == ["worker:1 ended with exit code 3; the others were ended"]


def test_a_task_that_a_signal_ended_gives_the_code_of_shells(tmp_path):
    script = write(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    run = launched([script], tmp_path, code=137)
    assert own_lines(run) == ["worker:0 was ended by SIGKILL"]


def test_a_task_that_only_lost_its_peer_is_not_the_cause(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
if name == "worker:0":
    print("UnavailableError: Connection reset by peer", file=sys.stderr)
    sys.exit(1)
time.sleep(0.3)
sys.exit(9)
""",
    )
    run = launched(["--workers", 2, script], tmp_path, code=9)
    assert own_lines(run) == ["worker:1 ended with exit code 9; the others were ended"]


def test_an_error_of_its_own_is_the_cause_also_where_its_task_does_not_come_to_its_end(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
import atexit
if name == "worker:0":
    print("UnavailableError: Socket closed", file=sys.stderr)
    sys.exit(9)
atexit.register(time.sleep, 600)
raise ValueError("no")
""",
    )
    run = launched(["--workers", 2, script], tmp_path, code=1)
    assert own_lines(run) == ["worker:1 ended with exit code 1; the others were ended"]


# As TensorFlow 2.21 says it, in a task that lost another and in one that failed by itself.
LOST = [
    "errors_impl.UnavailableError: Graph execution error:",
    "errors_impl.AbortedError: {{function}} Collective ops is aborted by: [distlab] worker:0 stopp",
    "ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: Socket closed",
    'grpc_message:"recvmsg:Connection reset by peer", grpc_status:14',
    "The following tasks are unhealthy (stopped sending heartbeats):",
]
ITS_OWN = [
    "",
    "ValueError: bad thing",
    "StartAbort ABORTED: [distlab] worker:1 stopped: ValueError: bad thing "
    "[type.googleapis.com/tensorflow.CoordinationServiceError='']",
]


def test_a_lost_peer_is_known_by_what_tensorflow_says():
    assert [has_lost_a_peer(text) for text in LOST + ITS_OWN] == [True] * 5 + [False] * 3


def test_of_failures_seen_at_once_the_cause_is_found():
    one, two = TaskName("worker", 0), TaskName("worker", 1)
    lost = {one: "UnavailableError: Socket closed", two: "ValueError: no"}
    assert first_cause({one: 1, two: 1}, lost.get) == (two, True)
    assert first_cause({one: 1, two: -9}, {one: "ValueError", two: ""}.get) == (two, True)
    assert first_cause({one: 1}, lost.get) == (one, False)
    assert first_cause({one: 2, two: 3}, {one: "", two: ""}.get) == (one, True)


def test_ends_in_words_and_codes():
    codes = [0, 3, 143, -9, -64]
    assert [exit_code(code) for code in codes] == [0, 3, 143, 137, 192]
    assert [how_it_ended(code) for code in codes] == [
        "ended with exit code 0",
        "ended with exit code 3",
        "ended with exit code 143 (preempted; it has saved)",
        "was ended by SIGKILL",
        f"was ended by {signal.Signals(64).name}",
    ]


# Restarts.


def test_after_a_failure_all_start_again_in_the_same_cluster(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
print(os.environ["TF_CONFIG"])
if attempt < 3:
    if name == "worker:1":
        raise ValueError(f"failure {attempt}")
    time.sleep(600)
""",
    )
    run = launched(["--workers", 2, "--max-restarts", 2, script], tmp_path)
    assert attempts(tmp_path) == {"worker-0": 3, "worker-1": 3}
    assert own_lines(run) == [
        f"worker:1 ended with exit code 1; all are started again (restart {number} of 2)"
        for number in (1, 2)
    ]
    assert len({line for line in said_by("worker:1", run.out) if "cluster" in line}) == 1
    # What failed is seen each time, and before the launcher speaks of it.
    said = run.err.splitlines()[1:]
    order = [line.split(";")[0] for line in said if "or: fail" in line or ";" in line]
    assert order == [
        "worker:1 | ValueError: failure 1",
        "distlab launch: worker:1 ended with exit code 1",
        "worker:1 | ValueError: failure 2",
        "distlab launch: worker:1 ended with exit code 1",
    ]


def test_restarts_have_an_end(tmp_path):
    script = write(tmp_path, ATTEMPT + "sys.exit(4)")
    run = launched(["--max-restarts", 2, script], tmp_path, code=4)
    assert attempts(tmp_path) == {"worker-0": 3}
    assert own_lines(run)[-1] == "worker:0 ended with exit code 4"


def test_a_preempted_task_is_started_again_and_the_others_may_save(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
import signal
if attempt == 1 and name == "worker:1":
    sys.exit(143)
if attempt == 1:
    def save(*_):
        time.sleep(1)
        print("saved")
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    time.sleep(600)
""",
    )
    run = launched(["--workers", 2, "--max-restarts", 1, script], tmp_path)
    assert attempts(tmp_path) == {"worker-0": 2, "worker-1": 2}
    assert "saved" in said_by("worker:0", run.out)
    assert own_lines(run) == [
        "worker:1 ended with exit code 143 (preempted; it has saved); all are started again "
        "(restart 1 of 1)"
    ]


SERVERS = (
    ATTEMPT
    + """
if name == "chief:0":
    until = pathlib.Path("attempts-" + sys.argv[1])
    while not until.exists() or len(until.read_text()) < 2:
        time.sleep(0.01)
    sys.exit(0)
if attempt == 1 and name == sys.argv[1].replace("-", ":"):
    time.sleep(0.3)
    sys.exit(0) if len(sys.argv) > 2 else os.kill(os.getpid(), 9)
time.sleep(600)
"""
)


@pytest.mark.parametrize(
    ("lost", "line", "started"),
    [
        (
            "worker-1",
            "worker:1 was ended by SIGKILL; it is started again (restart 1 of 1)",
            {"chief-0": 1, "ps-0": 1, "worker-0": 1, "worker-1": 2},
        ),
        (
            "ps-0",
            "ps:0 was ended by SIGKILL; all are started again (restart 1 of 1)",
            {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2},
        ),
    ],
)
def test_a_coordinator_goes_on_without_a_worker_but_not_without_a_server(
    lost, line, started, tmp_path
):
    script = write(tmp_path, SERVERS)
    run = launched(["--workers", 2, "--ps", 1, "--max-restarts", 1, script, lost], tmp_path)
    assert attempts(tmp_path) == started
    assert own_lines(run) == [line]


def test_a_server_that_leaves_before_the_training_ends_is_lost_too(tmp_path):
    script = write(tmp_path, SERVERS)
    command = [script, "worker-0", "with 0"]
    run = launched(["--ps", 1, "--max-restarts", 1, *command], tmp_path)
    line = "worker:0 ended with exit code 0"
    assert own_lines(run) == [f"{line}; it is started again (restart 1 of 1)"]
    for log in tmp_path.glob("attempts-*"):
        log.unlink()
    run = launched(["--ps", 1, *command], tmp_path, code=1)
    assert own_lines(run) == [f"{line}; the others were ended"]


def test_an_evaluator_may_end_by_itself_when_training_has_ended(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
if name == "evaluator:0":
    while not pathlib.Path("done").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    print("last evaluation")
else:
    pathlib.Path("done").touch()
""",
    )
    run = launched(["--evaluator", script], tmp_path)
    assert "last evaluation" in said_by("evaluator:0", run.out)


def test_an_evaluator_that_fails_after_the_training_is_named(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
if name == "evaluator:0":
    time.sleep(1)
    sys.exit(5)
""",
    )
    run = launched(["--evaluator", script], tmp_path)
    assert own_lines(run) == ["evaluator:0 ended with exit code 5; training had ended before"]


def test_an_evaluator_that_does_not_end_is_ended(tmp_path):
    script = write(tmp_path, ATTEMPT + "if name == 'evaluator:0':\n    time.sleep(600)")
    launched(["--evaluator", "--grace-secs", 0.2, script], tmp_path, timeout_secs=20)


# Ports.


def test_a_port_that_another_process_took_is_replaced_without_counting(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
import socket, subprocess
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
if attempt == 1 and name == "worker:0":
    taker = socket.create_server(("", int(config["cluster"]["worker"][0].rpartition(":")[2])))
tf.distribute.MultiWorkerMirroredStrategy()
print(sorted(config["cluster"]["worker"]))
""",
    )
    run = launched(["--workers", 2, script], tmp_path)
    assert own_lines(run) == ["another process was first on a port; all start again on other ports"]
    assert attempts(tmp_path) == {"worker-0": 2, "worker-1": 2}


def test_ports_are_not_tried_for_ever(tmp_path):
    script = write(tmp_path, ATTEMPT + "sys.exit('Address already in use')")
    run = launched([script], tmp_path, code=1)
    assert attempts(tmp_path) == {"worker-0": 6}
    assert own_lines(run)[-1] == "worker:0 ended with exit code 1"


# The end from outside.

ASLEEP = ATTEMPT + "print('pid', os.getpid(), flush=True)\ntime.sleep(600)\n"


def pids(launch, count):
    launch.wait_for(rf"(?s)(pid.*){{{count}}}")
    return [int(pid) for pid in re.findall(r"pid (\d+)", launch.out)]


def test_an_interrupt_ends_all_also_those_that_ignore_it(tmp_path):
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    script = write(tmp_path, deaf + ASLEEP)
    with Launch(["--workers", 2, "--max-restarts", 5, script], tmp_path) as run:
        tasks = pids(run, 2)
        run.signal(signal.SIGINT)
        run.wait(10)
    assert run.code == 130 and are_gone(tasks)
    assert own_lines(run) == ["all tasks were ended by SIGINT"]


def warm_servers(launch):
    """The warm process that a launch has started, once it is there."""
    found = []

    def are_there():
        for one in psutil.Process(launch.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.extend([one] if "distlab.warm.server" in one.cmdline() else [])
        return bool(found)

    wait_until(are_there)
    return found


def test_an_interrupt_does_not_wait_for_the_warm_process(tmp_path):
    script = write(tmp_path, "")
    with Launch([script], tmp_path, own_keeper=True) as run:
        run.wait_for("without authentication")
        stopped = warm_servers(run)
        for server in stopped:
            server.suspend()  # it is never ready
        try:
            run.signal(signal.SIGINT)
            run.wait_for("all tasks were ended by SIGINT")
        finally:
            for server in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    server.resume()
        run.wait()
    assert run.code == 130 and are_gone([server.pid for server in stopped])


SAVES = (
    """
import signal
def save(*_):
    time.sleep(float(sys.argv[1]))
    print("saved")
    sys.exit(143)
"""
    + ATTEMPT
    + """
signal.signal(signal.SIGTERM, save)
print("pid", os.getpid())
time.sleep(600)
"""
)


def test_a_request_to_end_is_passed_on_and_what_saves_is_waited_for(tmp_path):
    script = write(tmp_path, SAVES)
    with Launch(["--workers", 2, "--max-restarts", 5, script, 0.5], tmp_path) as run:
        tasks = pids(run, 2)
        run.signal(signal.SIGTERM)
        run.wait(20)
    assert run.code == 143 and are_gone(tasks)
    assert run.out.count("saved") == 2
    assert attempts(tmp_path) == {"worker-0": 1, "worker-1": 1}


@pytest.mark.parametrize("second", [None, signal.SIGINT])
def test_what_saves_for_too_long_is_ended(second, tmp_path):
    script = write(tmp_path, SAVES)
    grace_secs = 0.5 if second is None else 600
    with Launch(["--grace-secs", grace_secs, script, 600], tmp_path) as run:
        tasks = pids(run, 1)
        run.signal(signal.SIGTERM)
        run.wait_for(r"have .* to save")
        if second:
            run.signal(second)
        run.wait(20)
    assert run.code == 143 and are_gone(tasks)


def test_servers_outlive_a_coordinator_that_saves(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
import signal
def save(*_):
    if name == "chief:0":
        time.sleep(0.5)
    print("left at", time.time())
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("pid", os.getpid())
time.sleep(600)
""",
    )
    with Launch(["--ps", 1, script], tmp_path) as run:
        pids(run, 3)
        run.signal(signal.SIGTERM)
        run.wait(20)
    left = {name: float(at) for name, at in re.findall(r"(\S+) +\| left at (\S+)", run.out)}
    assert run.code == 143 and len(left) == 3
    assert min(left, key=left.get) == "chief:0"


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number, tmp_path):
    script = write(tmp_path, ASLEEP if number else ASLEEP.replace("600", "1"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), "DISTLAB_WARM": "0"}  # nothing is imported: a quick start
    with Launch(["--workers", 2, script], tmp_path, env=env, own_keeper=True) as run:
        tasks = pids(run, 2)
        keepers = [child.pid for child in psutil.Process(run.pid).children()]
        if number:
            run.signal(number)
        run.wait(20)
    assert keepers and are_gone(tasks + keepers)
    assert [path.name for path in temporary.iterdir()] == [f"distlab-ports-{os.getuid()}"]
    for path in temporary.glob("*/*"):
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where someone has it
    ports = [int(port) for port in re.findall(r":(\d{5})\b", run.err.splitlines()[0])]
    assert len(ports) == 2 and all(map(is_free, ports))


def test_when_the_time_is_over_it_is_shown_where_each_task_was(tmp_path):
    script = write(
        tmp_path,
        ATTEMPT
        + """
def waits_for_the_other():
    time.sleep(600)
if name == "worker:1":
    waits_for_the_other()
""",
    )
    run = launched(["--workers", 2, "--timeout", 1.5, script], tmp_path, code=124)
    stack = said_by("worker:1", run.err)
    assert any(line.endswith("in waits_for_the_other") for line in stack)
    assert own_lines(run) == [
        "not ended after 1.5 s: worker:1; their stacks are above, all tasks were ended"
    ]


def test_a_reader_that_has_gone_ends_it(tmp_path):
    script = write(tmp_path, "while True: print('x' * 100)")
    read, written = os.pipe()
    with Launch([script], tmp_path, stdout=written) as run:
        os.close(written)
        assert os.read(read, 8) == b"worker:0"
        os.close(read)
        run.wait(20)
    assert run.code == 141


# What cannot be meant.


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "distlab launch\n  found: nothing to launch\n  to do: name a script, "),
        (["-m"], "distlab launch\n  found: nothing to launch\n  to do: name a script, "),
        (
            ["none.py", "x"],
            "distlab launch none.py\n  found: no such file: {folder}/none.py\n  to do:",
        ),
        (["sub"], "distlab launch sub\n  found: a folder, not a file: {folder}/sub\n  to do"),
        (["-m", "no_such_package.x"], "-m no_such_package.x\n  found: no module 'no_such_package'"),
        (["--workers", "0", "t.py"], "--workers 0\n  found: a number below 1\n  to do: give a"),
        (["--workers", "0", "--ps", "1", "t.py"], "--workers 0\n  found: a number below 1"),
        (["--ps", "-1", "t.py"], "--ps -1\n  found: a number below 0"),
        (["--max-restarts", "-1", "t.py"], "--max-restarts -1\n  found: a number below 0"),
        (
            ["--devices-per-worker", "0", "t.py"],
            "--devices-per-worker 0\n  found: a number below",
        ),
        (["--devices-per-worker", "65", "t.py"], "--devices-per-worker 65\n  found: more than 64"),
        (
            ["--ps", "1", "--devices-per-worker", "2", "t.py"],
            "distlab launch --ps 1 --devices-per-worker 2\n  found: with parameter servers a ",
        ),
        (["--timeout", "-3", "t.py"], "--timeout -3.0\n  found: a number below 0"),
        (["--grace-secs", "nan", "t.py"], "--grace-secs nan\n  found: no number"),
        (["--log-dir", "t.py/x", "t.py"], "--log-dir t.py/x\n  found: [Errno 20] Not a directory"),
    ],
)
def test_what_cannot_be_meant_is_said(args, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    write(tmp_path, "", "t.py")
    assert cli.main(["launch", *args]) == 2
    assert text.format(folder=tmp_path) in capsys.readouterr().err


def test_a_script_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    script = tmp_path / write(tmp_path, "")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)  # root may read all
    with pytest.raises(InvalidArgument, match="found: a file that you may not read"):
        launch([str(script)], LaunchOptions())


@pytest.mark.parametrize("args", [["--worker", "2", "t.py"], ["--bogus", "t.py"], ["--ps", "x"]])
def test_an_unknown_option_before_the_script_is_an_error(args, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["launch", *args])
    assert end.value.code == 2
    assert args[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (["t.py", "--workers", "9", "--", "-m", "x"], ["t.py", "--workers", "9", "--", "-m", "x"]),
        (["--workers", "2", "t.py", "-h"], ["t.py", "-h"]),
        (["--workers", "2", "--", "t.py", "--version"], ["t.py", "--version"]),
        (["--workers", "2", "-m", "a.b", "--", "--workers", "9"], None),
    ],
)
def test_what_follows_the_script_is_the_scripts(args, command, monkeypatch):
    seen = []
    monkeypatch.setattr(launching, "launch", lambda *given: seen.append(given) or 0)
    assert cli.main(["launch", *args]) == 0
    assert seen[0][0] == (command or args[2:])
    assert seen[0][1].workers == (2 if args[0] == "--workers" else 1)


def test_where_no_process_can_be_forked_it_says_so(monkeypatch, capsys):
    monkeypatch.delattr(os, "fork")
    assert cli.main(["launch", "t.py"]) == 2
    assert "where no process can be forked\n  to do: on Windows run it under WSL2" in (
        capsys.readouterr().err
    )
