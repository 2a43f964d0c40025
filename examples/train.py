"""One training script. It runs unchanged alone and on every engine that starts processes.

    python examples/train.py                                   # this process alone
    distlab launch --workers 2 examples/train.py               # two processes of this machine
    distlab launch --workers 2 --evaluator examples/train.py   # and one that evaluates beside
    distlab bench examples/train.py                            # how its step scales here
    sbatch examples/slurm/train.sbatch                         # Slurm
    kubectl apply -f examples/kubernetes/tfjob.yaml            # Kubernetes, by Kubeflow's operator
    python examples/ray_train.py                               # Ray Train

What an engine says of the cluster is in the environment, and `make_strategy("auto")` reads it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import distlab as dl


def build():
    """Returns a compiled model, written as for one device."""
    import keras  # after distlab, which sets what Keras reads while it loads

    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


def data(batch_size: int):
    """Returns the training images in batches, of which each worker gets its share."""
    images, _ = dl.load_dataset("digits", batch_size=batch_size)
    return images


def train(*, epochs: int, folder: str | Path) -> float:
    """Trains, or goes on where an earlier process was stopped, and returns the final loss.

    Args:
        epochs: Epochs in all, those of earlier processes included.
        folder: For the checkpoints. Every host must see the same folder.
    """
    strategy = dl.make_strategy("auto")  # first: it fixes TensorFlow's devices and connections
    dl.set_seed(42)
    batches = data(32)  # 32 over all workers, however many
    model = dl.distribute(build, strategy)
    resume = dl.Resume(folder)
    history = model.fit(batches, epochs=epochs, callbacks=[resume], shuffle=False, verbose=0)
    loss = history.history["loss"][-1]
    if dl.describe(strategy).is_chief:  # the loss is the same on all: one tells it
        print(f"loss after {epochs} epochs on {strategy.num_replicas_in_sync} replicas: {loss:.6f}")
    return loss


def evaluate(*, epochs: int, folder: str | Path) -> None:
    """Prints what each checkpoint of the training is worth on the test data, as it comes.

    Args:
        epochs: As for `train`.
        folder: As for `train`.
    """
    _, test = dl.load_dataset("digits", batch_size=32)
    from distlab.training.side_car import evaluate_checkpoints

    evaluate_checkpoints(build, test, folder=folder, epochs=epochs)


def is_evaluator() -> bool:
    """Tells whether this process is the cluster's evaluator, which takes no part in training."""
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
    return task.get("type") == "evaluator"


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns what the command line asks for.

    Args:
        arguments: What follows the script's name; by default this process's.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", default="checkpoints", help="seen by every host")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = read_options()
    run = evaluate if is_evaluator() else train
    run(epochs=options.epochs, folder=options.folder)
