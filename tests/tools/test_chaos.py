"""A training whose tasks are killed at random steps recovers; and chaos would notice if not."""

# ruff: noqa: T201 (a test that fails shows its seed)
import random
import secrets

import numpy as np
import pytest

from tools import chaos

CLUSTERS = {"two workers": (chaos.TWO_WORKERS, 3), "parameter servers": (chaos.SERVERS, 2)}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_training_recovers_from_kills_at_random_steps(name, tmp_path):
    cluster, kills = CLUSTERS[name]
    seed = secrets.randbelow(10**6)
    print(f"{name}, {kills} kills, seed {seed}")
    found = chaos.recoveries(cluster, kills, seed, tmp_path)
    print(chaos.report(found, 1))
    assert len(found) == kills


def test_a_plan_is_its_seeds():
    for cluster in (chaos.TWO_WORKERS, chaos.SERVERS):
        plans = [chaos.plan(cluster, 50, random.Random(seed)) for seed in (1, 1, 2)]
        assert plans[0] == plans[1] != plans[2]
        assert {kill.task for kill in plans[0]} == set(cluster.tasks)
        assert {kill.number for kill in plans[0]} == set(chaos.SIGNALS)
        assert plans[0] == sorted(plans[0], key=lambda kill: kill.step)


@pytest.mark.parametrize(
    ("trained", "to_the_bit", "wrong"),
    [
        ({}, True, ""),
        ({"weight": [1.0, 2.0000002]}, True, "weight"),
        ({"more": [1.0]}, True, "more"),
        ({"weight": [7.0, 7.0]}, False, ""),
        ({"loss": [9.0, 1.6]}, False, "the loss is 1.60 times as high"),
        ({"loss": [9.0, 0.5]}, False, "the loss is 0.50 times as high"),
        ({"loss": [9.0, float("nan")]}, False, "the loss is nan times as high"),
        ({"steps": 19}, False, "19 steps for 20"),
        ({"loss": [1.0]}, False, "20 steps for 20"),
    ],
)
def test_what_was_trained_is_compared(trained, to_the_bit, wrong):
    run = {"weight": [1.0, 2.0], "loss": [9.0, 1.0], "steps": 20}
    sides = [{key: np.asarray(value) for key, value in one.items()} for one in (run, run | trained)]
    assert chaos.differences(*sides, to_the_bit=to_the_bit) == wrong


# Steps as the real script takes them, without TensorFlow.
LIGHT = """
import json, os, pathlib, subprocess, sys, time
import numpy as np
folder, steps, secs = pathlib.Path(sys.argv[1]), int(sys.argv[3]), float(sys.argv[5])
is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
print("pid", os.getpid())
time.sleep(0.2)
checkpoints = folder / "checkpoints"
checkpoints.mkdir(parents=True, exist_ok=True)
started = folder / f"started-{{is_chief}}"
is_again = started.exists()
started.touch()
begin = max((int(path.name[-8:]) for path in checkpoints.iterdir()), default=0)
{before}
print("goes on from", begin)
for step in range(begin + 1, steps + 1):
    time.sleep(secs)
    if is_chief:
        (checkpoints / f"epoch-0000-step-{{step:08d}}").mkdir(exist_ok=True)
    print("step", step)
if is_chief:
    np.savez(folder / "trained.npz", weight={weight})
{after}
"""


@pytest.mark.parametrize(
    ("before", "weight", "after", "error"),
    [
        ("", "3", "", None),
        ("begin = 0", "3", "", r"step \d+ was saved, and it went on from 0\n"),
        ("", "is_again", "", "not as an undisturbed run: weight"),
        (
            "",
            "3",
            "subprocess.Popen(['sleep', '20'], start_new_session=True)",
            "processes are left",
        ),
        ("if is_again: sys.exit(1)", "3", "", "it ended too early"),
    ],
)
def test_what_is_no_recovery_is_noticed(before, weight, after, error, tmp_path, monkeypatch):
    script = tmp_path / "light.py"
    script.write_text(LIGHT.format(before=before, weight=weight, after=after))
    monkeypatch.setattr(chaos, "SCRIPT", script)
    if error is None:
        assert len(chaos.recoveries(chaos.TWO_WORKERS, 2, 3, tmp_path)) == 2
        return
    with pytest.raises(chaos.NotRecovered, match=error):
        chaos.recoveries(chaos.TWO_WORKERS, 2, 3, tmp_path)
