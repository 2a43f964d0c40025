"""How long a step of `fit` takes: Keras's own against a distributed model's, side by side.

    python benchmarks/fit.py [--replicas 2] [--rounds 7]

Both train the same MLP (784-256-128-10, global batch 128) under the same MirroredStrategy, in
turns, in one process. The times drift with whatever else the machine does; the ratio of the two
halves of a round does not. Keras against itself is the control: its ratio should be 1.
"""

from __future__ import annotations

import argparse
import statistics
import time

import distlab as dl

STEPS, BATCH = 100, 128


def main() -> None:
    """Prints the median time of a step and the median ratio of each pair."""
    parser = argparse.ArgumentParser(description="Time a step of fit, with and without distlab.")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    dl.split_devices(options.replicas)
    dl.set_seed(0)

    import keras
    import numpy as np
    import tensorflow as tf

    def build(steps_per_execution: int = 1) -> keras.Model:
        layers = [keras.layers.Dense(units, activation="relu") for units in (256, 128)]
        model = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
        model.compile(
            optimizer=keras.optimizers.SGD(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )
        return model

    strategy = dl.make_strategy("mirrored")

    def plain(steps_per_execution: int = 1) -> keras.Model:
        with strategy.scope():
            return build(steps_per_execution)

    draw = np.random.default_rng(0)
    x = draw.normal(size=(STEPS * BATCH, 784)).astype("float32")
    y = draw.integers(0, 10, STEPS * BATCH)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).cache().prefetch(2)

    def time_step_ms(model: keras.Model) -> float:
        start = time.perf_counter()
        model.fit(data, epochs=1, verbose=0)
        return (time.perf_counter() - start) / STEPS * 1000

    models = {
        "Keras fit": plain(),
        "Keras fit again (control)": plain(),
        "distribute": dl.distribute(build, strategy),
        "Keras fit, 20 steps an execution": plain(20),
        "distribute, 20 steps an execution": dl.distribute(lambda: build(20), strategy),
    }
    for model in models.values():
        time_step_ms(model)  # traces, and fills the cache
    rounds = [{name: time_step_ms(m) for name, m in models.items()} for _ in range(options.rounds)]
    print(f"{options.replicas} replicas, median of {options.rounds} rounds")
    for name in models:
        milliseconds = statistics.median(one[name] for one in rounds)
        ratio = statistics.median(one[name] / one["Keras fit"] for one in rounds)
        print(f"{name:<36}{milliseconds:6.2f} ms/step   {ratio:5.2f} of Keras fit")


if __name__ == "__main__":
    main()
