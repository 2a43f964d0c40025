"""What the workers of a cluster do for test_distribute_workers.py, each in a process of its own.

`PARITY` are trainings that workers do together and one device alone: `make(build)` distributes the
model or just builds it. `ON_WORKERS` are what only workers do; each returns what the tests look at.
"""

import functools
import json
import os
import pathlib
import pickle
import re
import time
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.errors import DistlabError
from distlab.training import fit_session
from distlab.training.workers import agreement
from distlab.training.workers.workers import workers_of
from tests.support.distribution import BATCH, EPOCHS, EXAMPLES, LOSS, X, Y, builder, train

FEW = slice(0, BATCH + 1)  # the last batch has one example
EVEN = slice(0, BATCH + 8)  # the last batch has 8: equal shares, smaller than those before
WEIGHTS = np.linspace(0.5, 1.5, EXAMPLES, dtype="float32")
TOKENS = np.random.default_rng(1).integers(0, 5, (EXAMPLES, 6))
TOKENS[np.arange(6) >= 1 + np.arange(EXAMPLES)[:, None] % 6] = 0  # padding, more or less of it


def batches(*arrays, size=BATCH):
    return tf.data.Dataset.from_tensor_slices(arrays or (X, Y)).batch(size)


def fit(model, *data, **options):
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **options}
    history = model.fit(*data, **options)
    return history.history, [weight.numpy() for weight in model.weights]


def normalised():
    keras.utils.set_random_seed(3)
    norm = keras.layers.BatchNormalization(synchronized=True)
    hidden = keras.layers.Dense(6, use_bias=False)
    model = keras.Sequential([keras.Input((8,)), hidden, norm, keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS(), metrics=["accuracy"])
    return model


def masked():
    keras.utils.set_random_seed(3)
    embedding = keras.layers.Embedding(5, 6, mask_zero=True)
    model = keras.Sequential([keras.Input((6,)), embedding, keras.layers.Dense(5)])
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    model.compile(keras.optimizers.Adam(1e-2), LOSS(), metrics=metrics)
    return model


def pooled():
    """Its layers cannot take a batch of nothing."""
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Reshape((4, 2, 1)),
        keras.layers.Conv2D(3, 2, padding="same"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(4, dtype="float64"),  # gradients of two types
    ]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.SGD(0.1), LOSS(), weighted_metrics=["accuracy"])
    return model


def unknown_length(make):
    """Keras alone takes a step more than there are batches."""
    model, data = make(builder()), batches().take(2)
    if model.distribute_strategy.num_replicas_in_sync > 1:
        data = data.filter(lambda x, y: True)
    return fit(model, data, validation_data=(X, Y))


def shuffled_arrays(make):
    dl.set_seed(5)
    options = {"sample_weight": WEIGHTS, "batch_size": 30, "validation_split": 0.2}
    return fit(make(builder(built=False)), X, Y, shuffle=True, **options)


def evaluated(make):
    model = make(builder("sgd_momentum"))
    logs = [
        *model.train_on_batch(X, Y),
        *model.evaluate(batches(), verbose=0),
        *model.evaluate(X, Y, sample_weight=WEIGHTS, batch_size=7, verbose=0),
    ]
    parts = [
        model.predict(batches(X, size=5).filter(lambda x: True), verbose=0),
        model.predict(X[FEW], verbose=0),
        model.predict_on_batch(X[:3]),
    ]
    return {"logs": logs}, parts


class OwnStep(keras.Sequential):
    """Trains and tests by steps of its own, and returns a number beside its metric."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        weights = self.trainable_weights
        gradients = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.5)[0]
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return self.logged(loss)

    def test_step(self, data):
        x, y = data
        return self.logged(self.compute_loss(y=y, y_pred=self(x)))

    def logged(self, loss):
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result(), "last": loss}


def own_step():
    keras.utils.set_random_seed(3)
    model = OwnStep([keras.Input((8,)), keras.layers.Dense(6), keras.layers.Dense(4)])
    model.tracked = keras.metrics.Mean(name="tracked")
    model.compile(keras.optimizers.Adam(1e-2), LOSS())
    return model


PARITY = {
    "adam, clipped": lambda make: train(make(builder("adam_clipnorm"))),
    "batch normalisation": lambda make: fit(make(normalised), batches()),
    "embeddings, and a smaller batch in equal shares": lambda make: fit(
        make(masked), batches(TOKENS[EVEN], TOKENS[EVEN]), validation_data=batches(TOKENS, TOKENS)
    ),
    "fewer examples than replicas": lambda make: fit(
        make(pooled), batches(X[FEW], Y[FEW], WEIGHTS[FEW])
    ),
    "arrays in a seeded order": shuffled_arrays,
    "steps of an endless data set": lambda make: fit(
        make(builder(steps_per_execution=2)),
        batches().repeat(),
        steps_per_epoch=4,
        validation_data=batches(),
        validation_steps=2,
    ),
    "data of unknown length": unknown_length,
    "own train_step": lambda make: fit(make(own_step), batches(), validation_data=batches()),
    "evaluate and predict": evaluated,
}


def run(names, devices, folder, last):
    """Returns what each case came to on this worker; `last` ends the cluster."""
    if devices > 1:
        dl.split_devices(devices)
    # So long that no worker is taken for lost because of a heartbeat that it has missed.
    strategy, results = dl.make_strategy("multi_worker", heartbeat_secs=600), {}
    for name in names:
        keras.utils.set_random_seed(1)
        if name in PARITY:
            results[name] = PARITY[name](lambda build: dl.distribute(build, strategy))
        else:
            place = pathlib.Path(folder) / name.replace(" ", "_")
            results[name] = ON_WORKERS[name](strategy, place)
    template = "{0.kind} {0.replicas} {0.workers}, chief: {0.is_chief}"
    results["described"] = template.format(dl.describe(strategy))
    results["last"] = last(strategy, pathlib.Path(folder), results)
    return results


def text_of(wrong):
    """The text of the error that `wrong` raises."""
    try:
        wrong()
    except (DistlabError, RuntimeError, ValueError) as error:
        return str(error)
    return "nothing was raised"


def is_second(strategy):
    """Whether this is worker:1, or the worker beside a chief."""
    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    return task["type"] == "worker" and (task["index"] == 1 or "chief" in config["cluster"])


class Counts(keras.callbacks.Callback):
    """What `fit` called, and where this worker alone stops it."""

    def __init__(self, stop=None, **attributes):
        super().__init__()
        self.ends, self.stop = [], stop
        vars(self).update(attributes)

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(batch)
        if self.stop == batch:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.stop == "epoch":
            self.model.stop_training = True


def alike(strategy, folder):
    """Models that each worker would build with other weights; executions of several steps."""
    keras.utils.set_random_seed(strategy.cluster_resolver.task_id)

    def build():
        dropout = keras.layers.Dropout(0.3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), dropout])
        model.compile("sgd", LOSS())
        return model

    model = dl.distribute(build, strategy)
    weights = [weight.numpy() for weight in model.weights]
    counts = Counts(listens_to_executions=True)
    counts.every_steps = 2 if is_second(strategy) else 4
    fast = 1000 if is_second(strategy) else 1  # the chief's clock says how long a step takes
    with mock.patch.object(agreement, "monotonic", lambda: fast * time.monotonic()):
        model.fit(batches(size=8), epochs=3, verbose=0, shuffle=False, callbacks=[counts])
    return counts.ends, [*weights, *(weight.numpy() for weight in model.weights)]


def stopped(strategy, folder):
    """Training that one worker alone stops in its second step: first worker:1, then the chief."""
    ends, model = [], dl.distribute(builder("sgd"), strategy)
    for is_mine in (is_second(strategy), not is_second(strategy)):
        before = int(model.optimizer.iterations.numpy())
        fit(model, batches(), callbacks=[Counts(1)] if is_mine else [])
        ends.append(int(model.optimizer.iterations.numpy()) - before)
    return ends


def written(strategy, folder):
    """What callbacks and `save` write, looked at by all workers as soon as they return."""
    model = dl.distribute(normalised, strategy)
    callbacks = keras.callbacks
    given = [
        callbacks.ModelCheckpoint(folder / "each" / "{epoch}.keras"),
        callbacks.ModelCheckpoint(folder / "best.weights.h5", "loss", save_weights_only=True),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.TensorBoard(folder / "board"),
    ]
    places = []
    look = callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: places.append(given[2].filename)
    )
    if not is_second(strategy):
        folder.mkdir()
    workers_of(strategy).exchange("the folder is there")
    fit(model, batches(), callbacks=[*given, look])
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    model.save(folder / "model.keras")
    model.save_weights(str(folder / "model.weights.h5"))
    model.export(folder / "exported", verbose=False)
    loaded = keras.saving.load_model(folder / "model.keras")
    exported = tf.saved_model.load(folder / "exported")
    predicted = model.predict(X, verbose=0)
    return {
        "files": [re.sub(r"tfevents.*", "tfevents", name) for name in files],
        "csv": (folder / "log.csv").read_text(),
        "loaded": float(np.abs(loaded.predict(X, verbose=0) - predicted).max()),
        "served": float(np.abs(exported.serve(X) - predicted).max()),
        "places": [str(given[0].filepath), str(given[2].filename)],
        "elsewhere": not places[0].startswith(str(folder)),
        "left behind": [place for place in places if pathlib.Path(place).parent.parent.exists()]
        if is_second(strategy)
        else [],
    }


def refused(strategy, folder):
    """Mistakes, each told to all workers alike, after each of which they can train on."""
    second = is_second(strategy)
    model = dl.distribute(builder("sgd"), strategy)
    tf.random.set_seed(None)  # as where nobody has set one
    nan = X.copy()
    nan[BATCH + 20] = np.nan  # the second batch's second half
    mine = np.roll(Y, 1) if second else Y

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            raise RuntimeError("on all of them")

    resume = [dl.Resume(folder)] if second else []
    backup = [keras.callbacks.BackupAndRestore(folder)]
    wrong = {
        "nan": lambda: fit(model, batches(nan, Y)),
        "shuffle": lambda: fit(model, batches().shuffle(3)),
        "arrays": lambda: fit(model, X, Y, shuffle=True),
        "other batches": lambda: fit(model, batches(X, mine)),
        "fewer batches": lambda: fit(model, batches().take(2 if second else 3)),
        "other epochs": lambda: fit(model, batches(), epochs=1 + second),
        "Resume on one": lambda: fit(model, batches(), callbacks=resume),
        "callback": lambda: fit(model, batches(), callbacks=[Fails()]),
        "backup": lambda: fit(model, batches(), callbacks=backup),
    }
    texts = {name: text_of(call) for name, call in wrong.items()}
    return texts, fit(model, batches())[0]["loss"]


def unlike(strategy, folder):
    """What one worker alone loads, restores or changes; and data in another order on each."""
    second, callbacks = is_second(strategy), keras.callbacks
    model = dl.distribute(builder("adam"), strategy)
    start = model.get_weights()

    def change_rate(epoch, logs):
        model.optimizer.learning_rate = 0.005

    def load(factor):
        model.set_weights([weight * (factor if second else 1) for weight in start])
        return model

    rate = [callbacks.LambdaCallback(on_epoch_end=change_rate)] if second else []
    rows = np.roll(X, 1, axis=0) if second else X
    mine = np.roll(Y, 1) if second else Y
    shuffled = batches().unbatch().shuffle(EXAMPLES, seed=1 + second).batch(BATCH)
    wrong = {
        "seeds": lambda: fit(model, shuffled),
        "targets in evaluate": lambda: model.evaluate(X, mine, verbose=0),
        "targets in validation": lambda: fit(model, batches(), validation_data=(X, mine)),
        "rows in predict": lambda: model.predict(rows, verbose=0),
        "rate": lambda: fit(model, batches(), callbacks=rate),
        "weights": lambda: fit(load(factor=2), batches()),
    }
    texts = {name: text_of(call) for name, call in wrong.items()}

    load(factor=1 + 1e-6)  # as rounded on another machine, which is right
    model.optimizer.learning_rate = 0.01
    plateau = callbacks.ReduceLROnPlateau("loss", mode="max", patience=0)
    fit(model, batches(), callbacks=[plateau])
    model.predict(X + 1e-7 * second, verbose=0)
    best = callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(model, batches(), epochs=3, callbacks=[best] if second else [])
    texts["restored by one"] = text_of(lambda: model.evaluate(X, Y, verbose=0))
    return texts, [str(each.message) for each in warned if "workers" in str(each.message)]


def policy(name):
    options = tf.data.Options()
    policies = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policies[name]
    return options


def shared_files(strategy, folder):
    """Records in three files: which examples this worker reads, by default and with FILE."""
    names = [str(folder / f"{number}.tfrecord") for number in range(3)]
    if not is_second(strategy):
        folder.mkdir()
        for name, part in zip(names, np.array_split(np.arange(EXAMPLES), 3), strict=True):
            with tf.io.TFRecordWriter(name) as file:
                for index in part:
                    file.write(tf.io.serialize_tensor(X[index]).numpy())
    seen = []

    def read(record):
        x = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [8])
        return x, tf.reduce_sum(x)[None]

    class Sees(keras.layers.Layer):
        whole_batch = False

        def call(self, x):
            def note(x):  # a worker without an example gets one of zeros, which doesn't count
                seen.extend(x.numpy()[x.numpy().any(1)].sum(1).tolist())

            with tf.control_dependencies([tf.py_function(note, [x], [])]):
                return tf.identity(x)

    def build():
        model = keras.Sequential([keras.Input((8,)), Sees(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    model = dl.distribute(build, strategy)
    workers_of(strategy).exchange("the files are there")
    data = tf.data.TFRecordDataset(names).map(read).batch(BATCH)
    read_by = {}
    for name in ("AUTO", "FILE"):
        seen.clear()
        fit(model, data.with_options(policy(name)), epochs=1)
        read_by[name] = sorted(seen)
    return read_by


BROUGHT = ("fewer examples than replicas", "embeddings, and a smaller batch in equal shares")


def with_tensorflows_sharding(strategy, folder):
    """As where workers have GPUs: TensorFlow brings each its part of the batches."""
    splits, fit_session.splits = fit_session.splits, lambda strategy: False
    try:
        make = functools.partial(dl.distribute, strategy=strategy)
        return {name: PARITY[name](make) for name in BROUGHT}
    finally:
        fit_session.splits = splits


def apart(strategy, folder):
    """The chief saves by itself, in a callback, where the others go on with `fit`."""
    model = dl.distribute(builder("sgd"), strategy)
    save = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: model.save(f"{folder}.keras")
    )
    callbacks = [] if is_second(strategy) else [save]
    return text_of(lambda: fit(model, batches(), callbacks=callbacks))


def parity(strategy, folder):
    """What `check_parity` says on each worker, of weights that each would draw otherwise."""

    def build():
        hidden = keras.layers.Dense(6, "tanh", kernel_regularizer="l2")
        model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dropout(0.5)])
        model.add(keras.layers.Dense(4))
        model.compile(keras.optimizers.Adam(1e-2), LOSS())
        return model

    def by_hand(model, dataset):
        def step(x, y):
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(y, model(x), True)
                loss = tf.reduce_mean(losses) + tf.add_n(model.losses) / 2
            weights = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, weights), weights)

        run = tf.function(lambda batch: strategy.run(step, args=batch))
        for batch in strategy.experimental_distribute_dataset(dataset):
            run(batch)

    def other_data():
        mine = X + 1 if is_second(strategy) else X
        dl.check_parity(build, batches(mine, Y), strategy=strategy)

    found = dl.check_parity(build, batches(), strategy=strategy, steps=3)
    wrong = dl.check_parity(build, batches(), strategy=strategy, train=by_hand, steps=1)
    return repr(found), repr(wrong), text_of(other_data)


ON_WORKERS = {
    "parity": parity,
    "alike": alike,
    "stopped": stopped,
    "written": written,
    "refused": refused,
    "apart": apart,
    "TensorFlow's sharding": with_tensorflows_sharding,
    "files": shared_files,
    "unlike": unlike,
}


class Leaves(keras.callbacks.Callback):
    """After two steps, worker:1 does what it is to do."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.act()


def one_fails(strategy, folder, results):
    """The second worker alone fails; what each is told."""

    def fail():
        if is_second(strategy):
            raise ValueError("this is the reason")

    model = dl.distribute(builder("sgd"), strategy)
    return text_of(lambda: fit(model, batches(), callbacks=[Leaves(fail)]))


def one_is_lost(strategy, folder, results):
    """The second worker ends without a word, its results written; what the first is told."""
    first_is_done = folder / "first is done"

    def leave():
        if not is_second(strategy):
            first_is_done.touch()
            return
        while not first_is_done.exists():  # else it may be in the middle of that step
            time.sleep(0.01)
        (folder / "worker-1.pickle").write_bytes(pickle.dumps(results))
        os._exit(0)

    model = dl.distribute(builder("sgd"), strategy)
    return text_of(lambda: fit(model, batches(), callbacks=[Leaves(leave)]))
