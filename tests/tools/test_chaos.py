"""`make chaos` kills tasks of real trainings; here it is held that it would notice a failure."""

import contextlib
import os
import random
import signal

import numpy as np
import pytest

from tools import chaos


def test_a_plan_repeats_with_its_seed_and_names_every_task():
    for cluster in (chaos.TWO_WORKERS, chaos.SERVERS):
        plans = [chaos.plan(cluster, 50, random.Random(seed)) for seed in (1, 1, 2)]
        assert plans[0] == plans[1] != plans[2]
        assert {kill.task for kill in plans[0]} == set(cluster.tasks)


# What a disturbed run left, whether bits are compared, and what is said of it.
COMPARED = [
    ({}, True, ""),
    ({"weight": [1.0, 2.0000002]}, True, "weight"),
    ({"weight": [7.0, 7.0]}, False, ""),
    ({"loss": [9.0, float("nan")]}, False, "the loss is nan times as high"),
    ({"steps": 19}, False, "19 steps for 20"),
]


def test_the_results_of_both_runs_are_compared():
    undisturbed = {"weight": [1.0, 2.0], "loss": [9.0, 1.0], "steps": 20}
    for changes, to_the_bit, text in COMPARED:
        runs = [undisturbed, undisturbed | changes]
        sides = [{key: np.asarray(value) for key, value in run.items()} for run in runs]
        assert chaos.differences(*sides, to_the_bit=to_the_bit) == text, changes


# Steps as the real script takes them, without TensorFlow. The chief alone says its steps, each
# after it was saved, and the disturbed run does not end before the chief was started twice.
LIGHT = """
import json, os, pathlib, subprocess, sys, time
import numpy as np
folder, steps, secs = pathlib.Path(sys.argv[1]), int(sys.argv[3]), float(sys.argv[5])
is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
checkpoints = folder / "checkpoints"
checkpoints.mkdir(parents=True, exist_ok=True)
starts = len(list(folder.glob("start-*")))
if is_chief:
    (folder / f"start-{starts}").touch()
print("pid", os.getpid())
begin = max((int(path.name[-8:]) for path in checkpoints.iterdir()), default=0)
BEFORE
print("goes on from", begin)
for step in range(begin + 1, steps + 1):
    time.sleep(secs)
    if is_chief:
        (checkpoints / f"epoch-0000-step-{step:08d}").mkdir(exist_ok=True)
        print("step", step)
while folder.name == "disturbed" and not (folder / "start-1").exists():
    time.sleep(0.01)
if is_chief:
    np.savez(folder / "trained.npz", weight=3)
AFTER
"""
LEFT = """
left = subprocess.Popen(['sleep', '3600'], start_new_session=True)
pathlib.Path(__file__).with_name(f"left-{left.pid}").touch()
"""
# What the script does before its steps and after them, and the error.
SCRIPTS = {
    "starts again from the beginning": ("begin = 0", "", r"was saved, and it went on from 0"),
    "leaves a process": ("", LEFT, r"processes are left"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_that_does_not_recover_is_noticed(name, tmp_path, monkeypatch):
    before, after, error = SCRIPTS[name]
    script = tmp_path / "light.py"
    script.write_text(LIGHT.replace("BEFORE", before).replace("AFTER", after))
    monkeypatch.setattr(chaos, "SCRIPT", script)
    try:
        with pytest.raises(chaos.NotRecovered, match=error):
            chaos.disturb(chaos.TWO_WORKERS, 1, 3, tmp_path)
    finally:
        for left in tmp_path.glob("left-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(left.name.partition("-")[2]), signal.SIGKILL)
