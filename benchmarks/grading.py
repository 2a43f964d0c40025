"""What grading costs: beside the answers' own time, and how many of each exercise in an hour.

    python benchmarks/grading.py [--submissions 40] [--secs 2]     # the grader's own cost
    python benchmarks/grading.py --rates [STEM ...]                # submissions in an hour

For the first, every submission has one answer, which trains with TensorFlow for so many seconds.
`distlab grade` grades them, in the middle of the same answers run bare: forked from the same kind
of warm process, as many at a time, without limits, judge or gradebook. For the second, the
solutions of each exercise are graded, twice as many as run at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat

from distlab.cluster.warm.process import shared_server, task_environment
from distlab.course.checks.registry import stems

ROOT = Path(__file__).resolve().parent.parent
STEM, CHECK, FUNCTION = "01_mirrored_strategy", "combine_shares", "combine"
SEEDS = (1, 2, 3)
ANSWER = """# task: {check}
import distlab as dl
dl.split_devices(4)
import time
import tensorflow as tf

def _train(secs):
    end, weights = time.monotonic() + secs, tf.Variable(tf.zeros((64, 64)))
    examples = tf.random.stateless_normal((256, 64), (1, 2))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((examples @ weights - examples) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    while time.monotonic() < end:
        step()

{solution}
_train({secs})
"""
BARE = """
import json, pathlib, sys
from distlab.course.checks.registry import find_check
from distlab.course.checks.run_check import call_check
source, check, function, seeds = json.loads(pathlib.Path(sys.argv[1]).read_text())
found = {}
exec(source, found)
for seed in seeds:
    assert call_check(find_check(check), found[function], seed).failure is None
"""


def answer_of(check: str, stem: str) -> str:
    """The solution's cell of a check."""
    notebook = nbformat.read(ROOT / "solutions" / f"{stem}.ipynb", 4)
    cells = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    return next(source for source in cells if source.startswith(f"# task: {check}\n"))


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def grade(folder: Path, out: Path, jobs: int) -> float:
    """Seconds that the command takes, its start and its warm process included."""
    command = [sys.executable, "-m", "distlab.cli", "grade", str(folder), "--out", str(out)]
    command += ["--jobs", str(jobs), "--seed", "1", "--allow-root"]
    return timed(lambda: subprocess.run(command, check=True, capture_output=True))


def run_bare(source: str, *, times: int, jobs: int) -> float:
    """Seconds that the same answers take without the grader."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("r+b") as null:
        given = Path(folder, "given.json")
        given.write_text(json.dumps([source, CHECK, FUNCTION, SEEDS]))

        def one(_: int) -> None:
            streams = {"stdin": null, "stdout": null, "stderr": null}
            argv, env = ["-c", BARE, str(given)], task_environment({})
            task = shared_server().spawn(argv, env=env, cwd=folder, **streams)
            assert task.wait(timeout_secs=600) == 0

        with ThreadPoolExecutor(jobs) as pool:
            return timed(lambda: list(pool.map(one, range(times))))


def own_cost(submissions: int, secs: float, jobs: int) -> None:
    """Prints what the grader takes beside the answers."""
    source = ANSWER.format(check=CHECK, solution=answer_of(CHECK, STEM), secs=secs)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    with tempfile.TemporaryDirectory() as folder:
        handed_in, out = Path(folder, "handed-in"), Path(folder, "out")
        for number in range(submissions):
            learner = handed_in / f"learner-{number:03d}"
            learner.mkdir(parents=True)
            nbformat.write(notebook, learner / f"{STEM}.ipynb")
        run_bare(source, times=jobs, jobs=jobs)  # the keeper warms
        half = submissions // 2
        bare = run_bare(source, times=half, jobs=jobs)
        graded = grade(handed_in, out, jobs)
        bare += run_bare(source, times=submissions - half, jobs=jobs)
        details = (out / "details.csv").read_text()
    assert details.count(",passed,") == submissions, details
    print(f"{submissions} answers that train {secs:g} s, {jobs} at a time")
    print(f"bare    {bare:6.1f} s, {bare / submissions:.2f} s each")
    print(f"graded  {graded:6.1f} s, {graded / submissions:.2f} s each")
    print(
        f"graded takes {graded / bare:.2f} times as long; 200 in {200 * graded / submissions:.0f} s"
    )


def rates(wanted: list[str], jobs: int) -> None:
    """Prints how many solutions of each exercise are graded in an hour."""
    for stem in wanted or stems():
        with tempfile.TemporaryDirectory() as folder:
            handed_in, out = Path(folder, "handed-in"), Path(folder, "out")
            for number in range(2 * jobs):
                learner = handed_in / f"learner-{number}"
                learner.mkdir(parents=True)
                name = f"{stem}.ipynb"
                (learner / name).write_bytes((ROOT / "solutions" / name).read_bytes())
            secs = grade(handed_in, out, jobs) / (2 * jobs)
        print(f"{stem:28} {secs:6.1f} s each {3600 / secs:7.0f} in an hour", flush=True)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=40)
    parser.add_argument("--secs", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rates", nargs="*", metavar="STEM")
    options = parser.parse_args()
    if options.rates is None:
        own_cost(options.submissions, options.secs, options.jobs)
    else:
        rates(options.rates, options.jobs)


if __name__ == "__main__":
    main()
