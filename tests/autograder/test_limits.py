import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from distlab.autograder.isolation.limits import Limits, Sampler
from distlab.autograder.isolation.stack_dump import lines_in
from distlab.autograder.isolation.stops import Stop, StopReason
from distlab.errors import InvalidArgument
from distlab.results.failures import Failure, FailureKind
from distlab.warm.process import can_fork
from tests.support.questions import SPLIT, asked, working_in

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

MIB = 2**20
BEGIN = """
import os, sys, time, subprocess

def forked(count, then):
    for _ in range(count):
        if not os.fork():
            open(f"pid{os.getpid()}", "w").write(str(os.getpid()))
            then()
            os._exit(0)

def rest():
    time.sleep(600)
"""


def is_stopped(outcome, says):
    assert outcome.stopped == says
    assert outcome.called[-1].failure.error == f"Stopped: {says}"
    assert outcome.called[-1].failure.kind is FailureKind.ERROR
    return True


def has_no_end(outcome, secs):
    assert outcome.stopped == f"it was still running after {secs:g} seconds"
    assert outcome.called[-1].failure.error == f"It was stopped after {secs:g} seconds."
    assert outcome.called[-1].failure.kind is FailureKind.TIMED_OUT
    return True


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (
            "def split(e, r):\n    while True:\n        pass",
            ("line 2 in split:", "line 3 in split:"),
        ),
        ("import time\ntime.sleep(600)", ("line 2 in split: time.sleep(600)",)),
        (
            "def split(e, r):\n    while True:\n        try:\n            split(e, r)\n"
            "        except BaseException: pass",
            ("line ",),
        ),
        ("import signal\nsignal.pthread_sigmask(0, range(1, 65))\nwhile True: pass", ("", "line")),
    ],
)
def test_an_answer_without_an_end_is_ended_and_its_line_told(source, lines):
    outcome = asked(source, secs=1)
    assert has_no_end(outcome, 1)
    assert "".join(outcome.called[-1].failure.lines).startswith(lines)
    assert outcome.secs < 10


def test_the_line_of_a_hang_is_the_innermost_of_the_learners():
    printed = (
        b"x\nCurrent thread 0x7f (most recent call first):\n"
        b'  File "/lib/json.py", line 1 in loads\n'
        b'  File "<nowhere>", line 1 in f\n  File "<a cell>", line 9 in f\n'
        b'  File "<a cell>", line 2 in inner\n  File "<a cell>", line 1 in outer\n'
    )
    assert lines_in(printed, [("a cell", "outer()\n  inner()\n")]) == ("line 2 in inner: inner()",)
    assert lines_in(b"", [("a cell", "outer()")]) == ()


def test_memory_is_limited():
    source = "kept = []\nwhile True: kept.append(bytearray(10_000_000))"
    outcome = asked(source, memory_bytes=900 * MIB)
    assert is_stopped(outcome, "it used more than 900 MiB of memory")


def test_memory_of_all_processes_counts_together(tmp_path):
    each = "bytearray(os.urandom(1000) * 150_000), time.sleep(600)"
    source = f"{BEGIN}\nforked(8, lambda: [{each}])\nrest()"
    outcome = asked(source, memory_bytes=900 * MIB, folder=tmp_path)
    assert is_stopped(outcome, "it used more than 900 MiB of memory")
    assert working_in(tmp_path) == []


def test_memory_that_processes_share_counts_once(tmp_path):
    source = f"{BEGIN}\nshared = bytearray(200_000_000)\nforked(6, lambda: time.sleep(1))"
    assert asked(source + "\nos.wait()\n" + SPLIT, memory_bytes=900 * MIB).stopped == ""


def test_memory_far_beyond_the_limit_is_refused_at_once():
    outcome = asked("def split(e, r):\n    return bytearray(40 * 2**30)")
    assert outcome.called[0].failure == Failure(
        FailureKind.ERROR, "MemoryError", ("line 2 in split: return bytearray(40 * 2**30)",)
    )


@pytest.mark.parametrize(
    "bomb",
    [
        "for _ in range(5): os.fork()\n"
        "open(f'pid{os.getpid()}', 'w').write(str(os.getpid()))\nrest()",
        "[subprocess.Popen(['sleep', '600'], start_new_session=True) for _ in range(24)]\n"
        "open('pid', 'w').write(str(os.getpid()))\nrest()",
        "forked(24, rest)\nrest()",
    ],
)
def test_processes_are_limited_and_none_is_left(bomb, tmp_path):
    outcome = asked(BEGIN + bomb, processes=16, folder=tmp_path)
    assert is_stopped(outcome, "it started more than 16 processes")
    assert working_in(tmp_path) == []


def test_what_forks_without_end_is_counted_while_it_goes_on(tmp_path):
    # So much memory is mapped by all that the exact sum, which takes its time, is asked for.
    bomb = "end = time.monotonic() + 30\nwhile time.monotonic() < end: os.fork()\nos._exit(0)"
    outcome = asked(BEGIN + bomb, memory_bytes=2**30, folder=tmp_path)
    assert is_stopped(outcome, "it started more than 64 processes")
    assert working_in(tmp_path) == []


@pytest.mark.parametrize(
    "printing",
    [
        "print('for ever')",
        "print('for ever', file=sys.stderr)",
        "sys.__stdout__.write('for ever\\n')",
        "os.write(1, b'for ever' * 100)",
        "subprocess.run(['seq', '100000'])",
    ],
)
@pytest.mark.parametrize("where", ["in a cell", "in the function"])
def test_what_is_printed_is_limited(printing, where):
    code = (
        f"def split(e, r):\n    while True:\n        try: {printing}\n        except OSError: pass"
    )
    source = f"{BEGIN}\n{code}\n" + ("split(1, 2)" if where == "in a cell" else "")
    outcome = asked(source, printed_bytes=100_000)
    assert is_stopped(outcome, "it printed more than 100,000 characters")


def test_printing_within_the_limit_is_no_matter():
    source = (
        SPLIT
        + "    \ndef split(e, r, right=split):\n    print('x' * 10_000)\n    return right(e, r)"
    )
    assert asked(source, printed_bytes=50_000).stopped == ""


def test_one_file_without_an_end_is_an_error_at_their_line():
    source = "with open('big', 'wb', 0) as file:\n    while True: file.write(bytes(1_000_000))"
    outcome = asked(source, written_bytes=5_000_000)
    assert outcome.called[0].failure == Failure(
        FailureKind.ERROR,
        "OSError: [Errno 27] File too large",
        ("line 2 in split: while True: file.write(bytes(1_000_000))",),
    )


@pytest.mark.parametrize(
    ("writing", "says"),
    [
        ("open(f'f{n}', 'wb').write(bytes(1_000_000))", "it wrote more than 30 MB"),
        ("open(f'f{n}', 'wb')", "it wrote more than 10,000 files"),
    ],
)
def test_many_files_without_an_end_are_stopped(writing, says):
    source = f"import itertools\nfor n in itertools.count(): {writing}"
    assert is_stopped(asked(source, written_bytes=30_000_000), says)


def test_an_answer_that_is_too_large_is_refused():
    source = "import numpy as np\ndef split(e, r): return np.zeros(9_000_000)"
    assert is_stopped(asked(source), "its answer is too large to be sent")


def test_what_one_answer_does_costs_no_other_one_anything():
    bombs = [
        f"{BEGIN}\nforked(24, rest)\nrest()",
        "while True: print('for ever')",
        "kept = []\nwhile True: kept.append(bytearray(10_000_000))",
    ]
    limits = {"processes": 16, "printed_bytes": 10_000, "memory_bytes": 900 * MIB}
    ended = {}

    def run(number, source):
        ended[number] = asked(source, **limits)

    sources = [*bombs, SPLIT, SPLIT]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(sources)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [bool(ended[number].stopped) for number in range(5)] == [True] * 3 + [False] * 2
    assert all(c.failure is None for number in (3, 4) for c in ended[number].called)


def test_rlimits_stand_behind_the_samples():
    code = (
        "import json, resource as r; from distlab.autograder.isolation.limits import Limits, hold;"
        "hold(Limits(secs=10, written_bytes=1000, processes=5));"
        "names = ['CORE', 'CPU', 'FSIZE', 'NOFILE', 'AS', 'NPROC'];"
        "print(json.dumps([r.getrlimit(getattr(r, 'RLIMIT_' + name)) for name in names]))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    core, cpu, size, files, memory, processes = json.loads(done.stdout)
    assert core == [0, 0]
    assert cpu == [10 * os.cpu_count() + 10] * 2
    assert size == [1000, 1000]
    assert files[1] <= 1024
    assert 12 * 2**30 < memory[1] < 20 * 2**30
    assert 320 < processes[1] < 320 + 100_000


def test_a_lower_limit_of_the_system_stays():
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (100, 100));"
        "from distlab.autograder.isolation.limits import Limits, hold; hold(Limits());"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"100\n"


def test_a_sample_of_nothing_exceeds_nothing(tmp_path):
    sampler = Sampler(Limits(secs=0.05), tmp_path)
    assert sampler.exceeded() is None
    time.sleep(0.06)
    assert str(sampler.exceeded()) == "it was still running after 0.05 seconds"


def test_the_size_of_the_folder_counts_where_the_system_does_not_count_what_is_written(tmp_path):
    sampler = Sampler(Limits(written_bytes=30_000_000), tmp_path)
    (tmp_path / "below").mkdir()
    with (tmp_path / "below" / "file").open("wb") as file:
        file.truncate(31_000_000)  # which writes nothing
    assert "it wrote more than 30 MB" in [str(sampler.exceeded()) for _ in range(5)]


def test_what_is_written_elsewhere_counts_as_far_as_the_system_counts_it(tmp_path):
    def counted():
        return int(Path("/proc/self/io").read_text().split()[11])  # write_bytes

    (tmp_path / "work").mkdir()
    sampler, before = Sampler(Limits(written_bytes=30_000_000), tmp_path / "work"), counted()
    (tmp_path / "elsewhere").write_bytes(bytes(31_000_000))
    is_counted = counted() - before > 30_000_000  # not in a file system in memory
    stop = Stop(StopReason.WRITTEN, "30") if is_counted else None
    assert sampler.exceeded() == stop


def test_what_is_written_into_memory_that_looks_like_files_is_limited(tmp_path):
    part = f"/dev/shm/{tmp_path.name}-{os.getpid()}-"
    source = f"import itertools\nfor n in itertools.count(): open({part!r} + str(n), 'wb').write("
    try:
        outcome = asked(source + "bytes(1_000_000))", written_bytes=2_000_000)
    finally:
        for file in Path("/dev/shm").glob(Path(part).name + "*"):
            file.unlink()
    assert is_stopped(outcome, "it wrote more than 2 MB")


@pytest.mark.parametrize("limit", ["secs", "memory_bytes", "processes", "printed_bytes"])
def test_limits_that_cannot_be_kept_are_refused(limit):
    with pytest.raises(InvalidArgument) as caught:
        Limits(**{limit: 0})
    assert str(caught.value) == (
        f"Limits({limit}=0)\n  found: {limit}=0\n  to do: give a number above 0"
    )
