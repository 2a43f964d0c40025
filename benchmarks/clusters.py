"""How long a cluster takes: to the first all-reduce of its workers, after a kill, and to its end.

    python benchmarks/clusters.py [--starts 100] [--workers 2]

Every cluster is new: started, asked for a sum over its workers, bereft of one by SIGKILL in the
middle of a run that `restart=1` then begins anew, and closed. The warm process that the tasks are
forked from stands before the first; how long it took to warm is printed apart.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

import distlab as dl
from distlab.cluster.warm.process import shared_server, task_environment


def all_reduce(marker: str | None = None) -> float:
    """Sums one over the workers; the last worker kills itself where the marker is not there yet."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def total() -> tf.Tensor:
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
        )

    value = float(total())
    config = json.loads(os.environ["TF_CONFIG"])
    if marker and not Path(marker).exists():
        if config["task"]["index"] == len(config["cluster"]["worker"]) - 1:
            Path(marker).write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        value = float(total())
    return value


def measure(workers: int, times: dict[str, list[float]]) -> None:
    """Starts, uses and closes one cluster."""
    began = time.perf_counter()
    cluster = dl.LocalCluster(workers=workers, restart=1)
    times["start"].append(time.perf_counter() - began)
    assert cluster.run(all_reduce, timeout_secs=60) == [workers] * workers
    times["start to first all-reduce"].append(time.perf_counter() - began)
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder, "killed")
        cluster.restart()
        assert cluster.run(all_reduce, str(marker), timeout_secs=60) == [workers] * workers
        times["kill to next all-reduce"].append(time.time() - float(marker.read_text()))
    began = time.perf_counter()
    cluster.close()
    times["close"].append(time.perf_counter() - began)


def main() -> None:
    """Prints the least, the median and the most of each time."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--starts", type=int, default=20)
    asked.add_argument("--workers", type=int, default=2)
    options = asked.parse_args()
    began = time.perf_counter()
    shared_server().spawn(["-c", ""], env=task_environment({})).wait(600)
    print(f"warm after {time.perf_counter() - began:.2f} s")
    names = ("start", "start to first all-reduce", "kill to next all-reduce", "close")
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.starts):
        with contextlib.redirect_stdout(io.StringIO()):  # what the cluster says
            measure(options.workers, times)
    print(f"{options.starts} clusters of {options.workers} workers: minimum, median, maximum")
    for name, secs in times.items():
        row = (min(secs), statistics.median(secs), max(secs))
        print(f"  {name:<26}" + "".join(f"{value:>8.2f} s" for value in row))


if __name__ == "__main__":
    main()
