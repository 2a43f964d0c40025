"""What happens on the two workers of lesson 11's last check: one is killed, and both resume."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.checks.check import Inputs, Plain
from distlab.coursework.cluster_calls import call_on_workers
from distlab.coursework.worker_kill import killing

EXAMPLES, BATCH, EPOCHS, KEEP = 24, 4, 3, 2
# A life takes one or two seconds; a machine may be slow, or busy.
_TIMEOUT_SECS = 30.0


def train_twice(train: Callable[..., Any], inputs: Inputs) -> Plain:
    """Returns how a training went without a kill, and with one."""
    undisturbed = _trained(train, {**inputs, "killed": None})
    return {"undisturbed": undisturbed, "recovered": _trained(train, inputs)}


def _trained(train: Callable[..., Any], inputs: Inputs) -> Plain:
    index = inputs["killed"]
    with tempfile.TemporaryDirectory() as place:
        last_step = Path(place, f"seen-{index}-0", str(inputs["killed in"]))
        order = (train, inputs, place)
        with killing(Path(place, f"process-{index}"), when=last_step):
            workers = call_on_workers(_train, *order, timeout_secs=_TIMEOUT_SECS, restarts=1)
        return {"workers": workers, "lives": _lives(Path(place))}


def _train(strategy: Any, train: Callable[..., Any], inputs: Inputs, place: str) -> Plain:
    import tensorflow as tf

    import distlab as dl

    index = strategy.cluster_resolver.task_id
    of_chief, mine = Path(place, "worker-0"), Path(place, f"worker-{index}")
    life = len(list(Path(place).glob(f"seen-{index}-*")))
    # Each has its own folder, with what the chief saved: so it shows which worker has written.
    wrote = [] if index == 0 else _files(mine)
    if index and life:
        shutil.rmtree(mine, ignore_errors=True)
        shutil.copytree(of_chief, mine)
    mine.mkdir(exist_ok=True)
    given = set(_files(mine))
    strategy.reduce("SUM", tf.constant(0.0), axis=None)  # no worker saves before all have copied
    dl.set_seed(inputs["seed"] + life, deterministic=True)
    seen = Path(place, f"seen-{index}-{life}")
    seen.mkdir()
    Path(place, f"process-{index}").write_text(str(os.getpid()))
    is_killed = life == 0 and inputs["killed"] == index
    build = _builder(inputs, seen, killed_in=inputs["killed in"] if is_killed else -1)
    built: list[Any] = []

    def noting() -> Any:
        model = build()
        built.append(_weights_of(model))
        return model

    model = train(strategy, noting, _batches_of(inputs), EPOCHS, str(mine), inputs["every"], KEEP)
    if not hasattr(model, "get_weights"):
        raise TypeError(f"the model was asked for; yours is {model!r}"[:200])
    now, weights = _files(mine), _weights_of(model)
    return {
        "weights": weights,
        "trained": not any(np.array_equal(weights, before) for before in built),
        "iterations": int(model.optimizer.iterations.numpy()),
        "seeds": model.layers[1].seed_generator.state.numpy(),
        "wrote": [*wrote, *(name for name in now if index and name not in given)],
        "files": now,
    }


def _weights_of(model: Any) -> Any:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _builder(inputs: Inputs, seen: Path, *, killed_in: int) -> Callable[[], Any]:
    import keras
    import tensorflow as tf

    step = tf.Variable(0)  # on this worker alone

    def note(ids: Any) -> Any:
        """Once a step on this worker; in its last one it waits in the middle, to be killed."""
        now = step.assign_add(1)
        numbers = tf.strings.reduce_join(tf.as_string(tf.cast(ids, tf.int32)), separator=" ")
        path = tf.strings.join([str(seen), "/", tf.as_string(now)])
        with tf.control_dependencies([tf.io.write_file(path, numbers)]):
            return tf.while_loop(lambda n: tf.equal(now, killed_in), lambda n: [n], [now])

    class Watch(keras.layers.Layer):  # type: ignore[misc]
        """Takes the number of each example off, and notes it in training."""

        def call(self, x: Any, training: bool = False) -> Any:
            if not training:
                return x[:, 1:]
            with tf.control_dependencies(note(x[:, 0])):
                return tf.identity(x[:, 1:])

    def build() -> Any:
        # Named as in every new process: a worker that lives on counts its layers further.
        dropout = keras.layers.Dropout(0.4, seed=inputs["seed"], name="dropout")
        layers = [Watch(name="watch"), dropout, keras.layers.Dense(3, name="dense")]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(keras.optimizers.Adam(0.05))
        return model

    return build


def _batches_of(inputs: Inputs) -> Callable[[int], Any]:
    numbered = np.concatenate([np.arange(EXAMPLES)[:, None], inputs["x"]], axis=1)

    def batches_of(epoch: int) -> Any:
        import tensorflow as tf

        order = inputs["orders"][epoch]
        examples = (numbered[order].astype("float32"), inputs["y"][order])
        return tf.data.Dataset.from_tensor_slices(examples).batch(BATCH)

    return batches_of


def _lives(place: Path) -> list[list[list[int]]]:
    """For each life, for each of its steps, the examples that any worker has seen."""
    lives: list[list[list[int]]] = []
    while folders := sorted(place.glob(f"seen-*-{len(lives)}")):
        of_workers = [_steps_in(folder) for folder in folders]
        # The step in which one is killed is not noted by all: it never was.
        whole = min(map(len, of_workers))
        lives.append([sorted(i for one in of_workers for i in one[n]) for n in range(whole)])
    return lives


def _steps_in(folder: Path) -> list[list[int]]:
    files = sorted(folder.iterdir(), key=lambda file: int(file.name))
    return [[int(number) for number in file.read_text().split()] for file in files]
