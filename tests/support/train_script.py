"""Runs examples/train.py as an engine would: once in each environment, all at once.

    said = run_tasks([{"TF_CONFIG": one}, {"TF_CONFIG": other}], tmp_path)
    loss_in(said[0])                       # (replicas, loss)

The processes are forked from the warm one where that can be done.
"""

import re

from distlab.cluster.warm.process import shared_server, task_environment
from tests.support.repository import ROOT

TRAIN = ROOT / "examples" / "train.py"
EPOCHS = 2


def arguments(folder):
    """What the script is asked for."""
    return ["--epochs", str(EPOCHS), "--folder", str(folder / "checkpoints")]


def run_tasks(environments, folder, *, network_of=None):
    """Returns what each process printed; `network_of` names for each whose network it is in."""
    places = network_of or [None] * len(environments)
    logs = [folder / f"{rank}.log" for rank in range(len(environments))]
    tasks = []
    try:
        for environ, place, path in zip(environments, places, logs, strict=True):
            env = task_environment({"TF_CONFIG": None, **environ})
            with path.open("w") as log:
                tasks.append(
                    shared_server().spawn(
                        [str(TRAIN), *arguments(folder)],
                        env=env,
                        cwd=folder,
                        stdout=log,
                        stderr=log,
                        network_of=place,
                    )
                )
        codes = [task.wait(timeout_secs=120) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    said = [path.read_text() for path in logs]
    assert not any(codes), "\n---\n".join(said)
    return said


def loss_in(text):
    """On how many replicas, and which loss, one process told; the same if it is told twice."""
    told = re.findall(rf"loss after {EPOCHS} epochs on (\d) replicas: ([0-9.]+)", text)
    assert told, text[-4000:]
    ((replicas, loss),) = set(told)
    return int(replicas), float(loss)
