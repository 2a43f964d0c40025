"""What tasks of `distlab launch` say comes out in whole lines, each with its task's name."""

import contextlib
import os
import pathlib
import pty
import random
import re
import time

import pytest

from distlab.cluster.launch.task_output import LONGEST_LINE, PROGRESS_SECS, Lines
from tests.support.launched import Launch, are_gone, launched, write


def cut(data, sizes=(1 << 16,), **options):
    """Returns the lines of `data`, which arrives in pieces of the given sizes, over and over."""
    lines, place, found = Lines(**options), 0, []
    for index in range(len(data)):
        if place >= len(data):
            break
        size = sizes[index % len(sizes)]
        found += lines.feed(data[place : place + size])
        place += size
    return found + lines.rest()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"no end", [b"no end"]),
        (b"\n\n", [b"", b""]),
        (b"dos\r\nlines\r\n", [b"dos", b"lines"]),
        (b"\r 1/3\r 2/3\r 3/3\nnext\n", [b" 3/3", b"next"]),
        (b"\r 1/3\r 2/3\r", [b" 2/3"]),
        (b"1/3\b\b\b\r2/3\b\b\b\r3/3\n", [b"3/3"]),
        (b"\x1b[1mbold\x1b[0m\x1b[A\x1b[2K\x1b[?25l\n", [b"\x1b[1mbold\x1b[0m"]),
        (b"\xff\xfe \x80\n", [b"\xff\xfe \x80"]),
    ],
)
def test_lines_are_what_a_terminal_shows_in_the_end(data, lines):
    assert cut(data) == lines


def test_lines_do_not_depend_on_how_they_arrive():
    text = b"a\nbar \r1/2\b\b\b\r2/2\r\nlong" + b"x" * 300 + b"\n\r\r\n\x1b[2Kend\r"
    whole = cut(text)
    for seed in range(300):
        draw = random.Random(seed)
        assert cut(text, [draw.randint(1, 12) for _ in range(50)]) == whole, seed


def test_a_progress_bar_is_shown_now_and_then():
    now = 0.0
    lines = Lines(clock=lambda: now)
    shown = []
    for step in range(100):
        now = step * PROGRESS_SECS / 20
        shown += lines.feed(b"\r%3d/100" % step)
    assert shown == [b" 20/100", b" 40/100", b" 60/100", b" 80/100"]
    assert lines.feed(b"\r100/100\n") == [b"100/100"]


def test_neither_a_line_nor_a_bar_without_an_end_takes_memory():
    lines = Lines(clock=lambda: 0.0)
    pieces = [line for _ in range(100) for line in lines.feed(b"x" * 10_000)]
    assert b"".join([*pieces, *lines.rest()]) == b"x" * 1_000_000
    assert max(map(len, pieces)) <= LONGEST_LINE + 10_000
    for _ in range(1000):
        assert lines.feed(b"\r" + b"y" * 1000) == []
    assert lines.rest() == [b"y" * 1000]


def test_each_stream_goes_to_its_own_with_the_tasks_name(tmp_path):
    script = write(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)")
    run = launched(["--workers", 2, "--chief", script], tmp_path)
    names = ["chief:0 ", "worker:0", "worker:1"]
    assert sorted(run.out.splitlines()) == [f"{name} | out" for name in names]
    assert [line for line in sorted(run.err.splitlines()) if " | " in line] == [
        f"{name} | err" for name in names
    ]


def test_what_has_no_end_of_line_and_what_is_no_text_comes_out(tmp_path):
    script = write(
        tmp_path,
        r"""
        import os, sys
        os.write(1, b"\xff\xfe\n")
        print("no end", end="")
        sys.stderr.write("nor here")
        """,
    )
    run = launched([script], tmp_path)
    assert run.out.encode(errors="surrogateescape") == (b"worker:0 | \xff\xfe\nworker:0 | no end\n")
    assert run.err.endswith("worker:0 | nor here\n")


def test_a_line_is_there_as_soon_as_it_is_printed(tmp_path):
    script = write(tmp_path, "import time; print('begun'); time.sleep(600)")
    with Launch([script], tmp_path) as run:
        run.wait_for(r"worker:0 \| begun")


def test_megabytes_from_all_tasks_keep_their_lines_and_take_no_memory(tmp_path):
    count, workers = 30_000, 2
    script = write(
        tmp_path,
        f"""
        import json, os, sys
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        sys.stdout.reconfigure(line_buffering=False)
        for number in range({count}):
            print(index, number, str(index) * 100)
        """,
    )
    with Launch(["--workers", workers, script], tmp_path) as run:
        run.wait_for(r"worker:. \|")
        before = after = peak_mib(run.pid)
        while run.is_running():
            after = peak_mib(run.pid) or after
            time.sleep(0.02)  # between looks
    assert after - before < 10, (before, after)
    lines = run.out.splitlines()
    for index in range(workers):
        mine = [line for line in lines if line.startswith(f"worker:{index}")]
        text = str(index) * 100
        assert mine == [f"worker:{index} | {index} {n} {text}" for n in range(count)]
    assert len(lines) == count * workers


def peak_mib(pid):
    """Returns the most memory that a process had; None when it has ended."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return peak and int(peak[1]) / 1024


def test_a_reader_that_is_slow_gets_all(tmp_path):
    script = write(
        tmp_path,
        """
        import os, sys
        print(f"pid {os.getpid()} end", file=sys.stderr)
        print("x" * 100_000)
        print("last")
        """,
    )
    read, written = os.pipe()
    with Launch([script], tmp_path, stdout=written) as run:
        os.close(written)
        task = int(run.wait_for(r"pid (\d+) end")[1])
        assert are_gone([task], timeout_secs=60)
        time.sleep(2)  # longer than it waits for what a task leaves behind
        assert run.is_running()  # for we have not read a byte
        with os.fdopen(read, "rb") as stream:
            said = stream.read()
    assert run.code == 0 and said.endswith(b"worker:0 | last\n") and said.count(b"x") == 100_000


@pytest.mark.parametrize("no_colour", [False, True])
def test_names_have_colours_on_a_terminal_only(no_colour, tmp_path):
    script = write(tmp_path, "import sys; print('said'); print('said', file=sys.stderr)")
    terminal, theirs = pty.openpty()
    env = {"NO_COLOR": "1" if no_colour else "", "TERM": "xterm"}
    with Launch(["--workers", 2, script], tmp_path, stdout=theirs, env=env) as run:
        run.wait()
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so at the end
        while data := os.read(terminal, 1 << 16):
            shown += data
    os.close(terminal)
    if no_colour:
        expected = [b"worker:0 | said", b"worker:1 | said"]
    else:
        expected = [b"\x1b[0;33mworker:1 | \x1b[0msaid", b"\x1b[0;36mworker:0 | \x1b[0msaid"]
    assert sorted(shown.split(b"\r\n")[:-1]) == sorted(expected)
    assert "worker:0 | said\n" in run.err  # a pipe


def test_each_task_has_a_log_too_which_grows_from_run_to_run(tmp_path):
    script = write(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)")
    for _ in range(2):
        launched(["--workers", 2, "--log-dir", "logs/of/it", script], tmp_path)
    logs = {path.name: path.read_text() for path in (tmp_path / "logs/of/it").iterdir()}
    assert set(logs) == {"worker-0.log", "worker-1.log"}
    assert all(sorted(text.split()) == ["err", "err", "out", "out"] for text in logs.values())


def test_keras_progress_bars_come_out_as_one_line_an_epoch(tmp_path):
    script = write(
        tmp_path,
        """
        import keras, numpy as np
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((64, 3)), np.ones((64, 1)), epochs=2, batch_size=1)
        """,
    )
    run = launched([script], tmp_path)
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in run.out.splitlines()]
    assert [line.split(" ━")[0] for line in lines] == [
        "worker:0 | Epoch 1/2",
        "worker:0 | 64/64",
        "worker:0 | Epoch 2/2",
        "worker:0 | 64/64",
    ]
    assert all("loss: " in line for line in lines if "64/64" in line)
