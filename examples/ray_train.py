"""train.py under Ray Train: Ray starts the workers and sets TF_CONFIG, and nothing else changes.

    pip install "distlab[data,ray]"
    python examples/ray_train.py --workers 2

On a cluster: `ray job submit --working-dir examples -- python ray_train.py --folder /shared/run`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train_on_worker(config: dict) -> None:
    """Runs on every worker.

    Args:
        config: What `train.train` takes.
    """
    import train  # beside this file; here, where Ray has set TF_CONFIG

    train.train(**config)


def main() -> None:
    """Starts Ray, or joins the cluster that this job was sent to, and trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--max-restarts", type=int, default=3)
    options = parser.parse_args()
    folder = options.folder.resolve()  # a worker starts in another folder

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = {"num_cpus": options.workers, "object_store_memory": 100 * 1024**2}
    # RAY_ADDRESS names the cluster that a job was sent to; without, a small one is started here.
    ray.init(**({} if "RAY_ADDRESS" in os.environ else here), include_dashboard=False)
    try:
        trainer = TensorflowTrainer(
            train_on_worker,
            train_loop_config={"epochs": options.epochs, "folder": folder},
            scaling_config=ScalingConfig(num_workers=options.workers),
            # A worker that dies takes the others down: Ray starts all again, and Resume goes on.
            run_config=RunConfig(
                storage_path=str(folder / "ray"),
                failure_config=FailureConfig(max_failures=options.max_restarts),
            ),
        )
        trainer.fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
