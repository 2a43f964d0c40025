"""What the workers of a cluster do for test_distribute_workers.py, each in a process of its own.

`PARITY` are trainings that workers do together and one device alone: `make(build)` distributes the
model or just builds it. `ON_WORKERS` are what only workers do; each returns what the tests look at.
"""

import os
import pathlib
import pickle
import re
import time
import warnings

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.errors import DistlabError
from distlab.training import fitting, splitting
from distlab.training.workers.ending import ended_together
from distlab.training.workers.exchanging import workers_of
from distlab.training.workers.peer_monitor import is_gone
from tests.support.distribution import (
    BATCH,
    EPOCHS,
    EXAMPLES,
    LOSS,
    OPTIMIZERS,
    X,
    Y,
    builder,
    train,
)

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


class Largest(keras.metrics.Metric):
    """Keeps a number beside a count, so it does not add up over the workers."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(name="largest", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred)))
        self.count.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.largest + self.count


def later_batches(make):
    """The loss is a sum, and zero in the first batch."""

    def of_those_that_count(y_true, y_pred):
        return keras.ops.sum(y_true * keras.ops.square(1 - y_pred))

    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-3), of_those_that_count, metrics=[Largest()])
        return model

    counts = np.float32(np.arange(len(X)) >= BATCH)[:, None]
    return fit(make(build), batches(X, counts))


def unknown_length(make):
    """Keras alone takes a step more than there are batches."""
    model, data = make(builder()), batches().take(2)
    if model.distribute_strategy.num_replicas_in_sync > 1:
        data = data.filter(lambda x, y: True)
    return fit(model, data, validation_data=(X, Y))


def shuffled_arrays(make):
    dl.set_seed(5)
    return fit(make(builder(built=False)), X, Y, batch_size=BATCH, shuffle=True)


def evaluated(make):
    model = make(builder())
    loss, accuracy = model.evaluate(batches(), verbose=0)
    again = model.evaluate(X, Y, sample_weight=WEIGHTS, batch_size=7, verbose=0)
    parts = [
        model.predict(X, verbose=0),
        model.predict(batches(X, size=5).filter(lambda x: True), verbose=0),
        model.predict(X[FEW], verbose=0),
        model.predict_on_batch(X[:3]),
    ]
    return {"loss": [loss, again[0]], "accuracy": [accuracy, again[1]]}, parts


class Adapts(keras.layers.Layer):
    """Takes the mean of what it has seen before from its inputs, in inference too."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, x):
        before = tf.identity(self.mean)
        self.mean.assign(0.5 * before + 0.5 * tf.reduce_mean(x, axis=0))
        return x - before


def adapting():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), Adapts(), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1), LOSS())
    return model


def written_in_predict(make):
    model = make(adapting)
    model.predict(X, batch_size=7, verbose=0)
    return fit(model, batches())


def single_batches(make):
    model = make(builder("sgd_momentum"))
    logs = [model.train_on_batch(X, Y), model.test_on_batch(X[:9], Y[:9])]
    return {"logs": logs}, [weight.numpy() for weight in model.weights]


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


def with_random_keys(make):
    """Noise that is other in each epoch, drawn from keys: `fit` reads on in one endless pass.

    The keys follow from the program's seed as well: each process sets the same.
    """
    keras.utils.set_random_seed(1)
    examples = tf.data.Dataset.from_tensor_slices((X, Y)).repeat()
    keyed = tf.data.Dataset.zip(examples, tf.data.Dataset.random(seed=1))

    def with_noise(example, key):
        x, y = example
        return x + tf.random.stateless_normal([8], [key, 0], stddev=0.1), y

    return fit(make(builder()), keyed.map(with_noise).batch(BATCH), steps_per_epoch=4)


PARITY = {
    **{name: lambda make, name=name: train(make(builder(name))) for name in OPTIMIZERS},
    "batch normalisation": lambda make: fit(make(normalised), batches()),
    "masks and metrics": lambda make: fit(make(masked), batches(TOKENS, TOKENS)),
    "embeddings, and a smaller batch in equal shares": lambda make: fit(
        make(masked), batches(TOKENS[EVEN], TOKENS[EVEN]), validation_data=batches(TOKENS, TOKENS)
    ),
    "fewer examples than replicas": lambda make: fit(
        make(pooled), batches(X[FEW], Y[FEW], WEIGHTS[FEW])
    ),
    "arrays with sample weights": lambda make: fit(
        make(builder()), X, Y, sample_weight=WEIGHTS, batch_size=30, validation_split=0.2
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
    "a sum that is zero at first, and a metric of one's own": later_batches,
    "endless data with random keys": with_random_keys,
    "own train_step": lambda make: fit(make(own_step), batches(), validation_data=batches()),
    "losses of layers": lambda make: fit(make(builder("adam", loss="mse")), batches(X, X[:, :4])),
    "evaluate and predict": evaluated,
    "writes in predict": written_in_predict,
    "single batches": single_batches,
    "sgd, in order": lambda make: fit(make(builder("sgd")), batches()),
}


def run(names, devices, folder):
    """Returns what each case came to on this worker."""
    if devices > 1:
        dl.split_devices(devices)
    strategy = dl.make_strategy("multi_worker")
    found = {}
    for name in names:
        keras.utils.set_random_seed(1)
        if name in PARITY:
            found[name] = PARITY[name](lambda build: dl.distribute(build, strategy))
        else:
            found[name] = ON_WORKERS[name](strategy, pathlib.Path(folder) / name.replace(" ", "_"))
    return found


def text_of(wrong):
    """The text of the error that `wrong` raises."""
    try:
        wrong()
    except (DistlabError, RuntimeError, ValueError) as error:
        return str(error)
    return "nothing was raised"


def is_second(strategy):
    return strategy.cluster_resolver.task_id == 1


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
    """Models that each worker would build with other weights; `fit` that each would pace."""
    keras.utils.set_random_seed(strategy.cluster_resolver.task_id)

    def build():
        dropout = keras.layers.Dropout(0.3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), dropout])
        model.compile("sgd", LOSS())
        return model

    model = dl.distribute(build, strategy)
    weights = [weight.numpy() for weight in model.weights]
    counts = Counts(listens_to_executions=True)
    slow = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: time.sleep(0.01))
    callbacks = [counts, slow] if is_second(strategy) else [counts]
    model.fit(batches(size=8), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    return weights, counts.ends, [weight.numpy() for weight in model.weights]


def stopped(strategy, folder):
    """Training that the second worker alone stops, in an epoch or at its end."""
    found = []
    for stop in (1, "epoch"):
        counts = Counts(stop if is_second(strategy) else None)
        fit(dl.distribute(builder("sgd"), strategy), batches(), callbacks=[counts])
        found.append(counts.ends)
    counts = Counts(0)  # only the chief has it, and it listens to every batch
    callbacks = [] if is_second(strategy) else [counts]
    model = dl.distribute(builder("sgd"), strategy)
    fit(model, batches(), callbacks=callbacks)
    return [*found, int(model.optimizer.iterations.numpy())]


def written(strategy, folder):
    """What callbacks and `save` write, looked at by all workers as soon as they return."""
    model = dl.distribute(normalised, strategy)
    callbacks = keras.callbacks
    given = [
        callbacks.ModelCheckpoint(folder / "each" / "{epoch}.keras"),
        callbacks.ModelCheckpoint(folder / "best.weights.h5", "loss", save_weights_only=True),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.TensorBoard(folder / "board"),
        callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False),
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
        "same": np.array_equal(loaded.predict(X, verbose=0), predicted),
        "served": float(np.abs(exported.serve(X) - predicted).max()),
        "places": [str(given[0].filepath), str(given[2].filename), str(given[4]._weights_path)],
        "elsewhere": not places[0].startswith(str(folder)),
        "left behind": [place for place in places if pathlib.Path(place).parent.parent.exists()]
        if is_second(strategy)
        else [],
    }


def restored(strategy, folder):
    """Keras's own backup, of a training that stops after its first epoch."""

    def callbacks(stop):
        backup = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=not stop)
        return [backup, *([Counts("epoch")] if stop else [])]

    fit(dl.distribute(builder("sgd"), strategy), batches(), callbacks=callbacks(stop=True))
    keras.utils.set_random_seed(9)
    model = dl.distribute(builder("sgd"), strategy)
    logs, weights = fit(model, batches(), callbacks=callbacks(stop=False))
    return logs, weights, (folder / "backup").exists()


def refused(strategy, folder):
    """Mistakes, each told to all workers alike, after each of which they can train on."""
    second = is_second(strategy)
    model = dl.distribute(builder("sgd"), strategy)
    tf.random.set_seed(None)  # as where nobody has set one
    shuffled = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES).batch(BATCH)
    in_any_order = batches().map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False)
    nan = X.copy()
    nan[BATCH + 20] = np.nan  # the second batch's second half
    mine = np.roll(Y, 1) if second else Y

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            raise RuntimeError("on all of them")

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    wrong = {
        "nan": lambda: fit(model, batches(nan, Y)),
        "shuffle": lambda: fit(model, shuffled),
        "evaluate": lambda: model.evaluate(shuffled, verbose=0),
        "predict": lambda: model.predict(shuffled, verbose=0),
        "arrays": lambda: fit(model, X, Y, shuffle=True),
        "any order": lambda: fit(model, in_any_order),
        "other batches": lambda: fit(model, batches(X, mine)),
        "fewer batches": lambda: fit(model, batches().take(2 if second else 3)),
        "data that end": lambda: fit(
            model, batches().filter(lambda x, y: True).take(2 if second else 3)
        ),
        "other epochs": lambda: fit(model, batches(), epochs=1 + second),
        "Resume on one": lambda: fit(
            model, batches(), callbacks=[dl.Resume(folder)] if second else []
        ),
        "callback": lambda: fit(model, batches(), callbacks=[Fails()]),
        "files": lambda: fit(model, batches().with_options(options)),
        "sparse": lambda: model.predict(tf.data.Dataset.from_tensors(tf.sparse.eye(8)), verbose=0),
    }
    texts = {name: text_of(one) for name, one in wrong.items()}
    return texts, fit(model, batches())[0]["loss"]


def unlike(strategy, folder):
    """What one worker alone loads, restores or changes; and data in another order on each."""
    second = is_second(strategy)
    callbacks = keras.callbacks

    def make():
        return dl.distribute(builder("adam"), strategy)

    def loaded():
        model = make()
        if second:
            model.set_weights([weight + 1 for weight in model.get_weights()])
        return model

    def change_rate(model):
        model.optimizer.learning_rate = 0.005

    model = make()
    rate = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: change_rate(model))
    # Each worker has a disk of its own, on which the chief alone finds a backup.
    backup = callbacks.BackupAndRestore(folder / str(second), delete_checkpoint=False)
    fit(make(), batches(), callbacks=[backup, Counts("epoch")])
    rows = np.roll(X, 1, axis=0) if second else X
    mine = np.roll(Y, 1) if second else Y
    of_files = pathlib.Path(f"{folder}_{second}")  # the same images on each, at another path
    if not (of_files / "0").exists():
        write_images(of_files)
    image_model = dl.distribute(of_images, strategy)
    shuffled = batches().unbatch().shuffle(EXAMPLES, seed=1 + second).batch(BATCH)

    def images(seed=None):
        data = keras.utils.image_dataset_from_directory
        np.random.seed(10 + second)
        return data(of_files, image_size=(4, 4), batch_size=BATCH, seed=seed, verbose=False)

    wrong = {
        "weights": lambda: fit(loaded(), batches()),
        "weights in evaluate": lambda: loaded().evaluate(batches(), verbose=0),
        "weights in predict": lambda: loaded().predict(X, verbose=0),
        "rate": lambda: fit(model, batches(), callbacks=[rate] if second else []),
        "first epoch": lambda: fit(make(), batches(), epochs=3, callbacks=[backup]),
        "seeds": lambda: fit(make(), shuffled),
        "seeds in evaluate": lambda: make().evaluate(shuffled, verbose=0),
        "seeds in predict": lambda: make().predict(shuffled, verbose=0),
        "images": lambda: image_model.evaluate(images(), verbose=0),
        "targets in evaluate": lambda: make().evaluate(batches(X, mine), verbose=0),
        "arrays in evaluate": lambda: make().evaluate(X, mine, verbose=0),
        "targets in validation": lambda: fit(make(), batches(), validation_data=(X, mine)),
        "rows in predict": lambda: make().predict(rows, verbose=0),
        "later rows in predict": lambda: make().predict(
            batches(np.concatenate([X[: EXAMPLES // 2], rows[EXAMPLES // 2 :]]), size=8), verbose=0
        ),
    }
    found = {name: text_of(one) for name, one in wrong.items()}

    # Right: rounding of another machine, images from another path, another learning rate for all.
    model = make()
    if second:
        model.set_weights([weight * (1 + 1e-6) for weight in model.get_weights()])
    fit(model, batches(), epochs=1)
    model.predict(X + 1e-7 * second, verbose=0)
    image_model.evaluate(images(seed=1), verbose=0)
    plateau = callbacks.ReduceLROnPlateau("loss", mode="max", patience=0)
    fit(model, batches(), callbacks=[plateau])

    best = callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(model, batches(), epochs=3, callbacks=[best] if second else [])
    found["restored by one"] = text_of(lambda: model.evaluate(X, Y, verbose=0))
    return found, [str(one.message) for one in warned if "workers" in str(one.message)]


def write_images(folder):
    for index in range(20):
        place = folder / str(index % 2) / f"{index:02d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(place, np.full((4, 4, 3), index), scale=False)


def of_images():
    model = keras.Sequential(
        [keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile("sgd", LOSS())
    return model


def own_data(strategy, folder):
    """Each worker has 32 examples of its own, with the policy OFF: how many an epoch reads."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    mine = X[:64].reshape(2, 32, 8)[int(is_second(strategy))]
    data = batches(mine, mine[:, :1], size=16).with_options(options)  # 2 batches on each
    seen = []

    def kept(y_true, y_pred):
        tf.py_function(lambda y: seen.extend(y.numpy()[:, 0].tolist()), [y_true], [])
        return tf.zeros(tf.shape(y_true)[0])

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[kept])
        return model

    model = dl.distribute(build, strategy)
    fit(model, data, epochs=1)  # which tries the metric on the first batch
    found = []
    for endless, steps in ((data, None), (data.repeat(), 4)):
        seen.clear()
        fit(model, endless, epochs=1, steps_per_epoch=steps)
        found.append(len(set(seen)) / len(mine))
    return found, text_of(lambda: model.predict(data, verbose=0))


class OwnSave(keras.Sequential):
    def save(self, path):
        super().save(path)

    def save_weights(self, *args, **kwargs):
        super().save_weights(*args, **kwargs)


def saved_by_its_own_method(strategy, folder):
    """What of the paths exists afterwards."""

    def build():
        model = OwnSave([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    model = dl.distribute(build, strategy)
    places = [pathlib.Path(f"{folder}_{is_second(strategy)}_{i}.keras") for i in range(2)]
    model.save(places[0])
    model.save(path=places[1])
    place = pathlib.Path(f"{folder}_{is_second(strategy)}.weights.h5")
    model.save_weights(place)
    return [one.exists() for one in (*places, place)]


def with_tensorflows_sharding(strategy, folder):
    """As where workers have GPUs: TensorFlow brings each its part of the batches."""
    fitting.splits = lambda strategy: False
    found = {}
    for name in ("fewer examples than replicas", "data of unknown length", "own train_step"):
        found[name] = PARITY[name](lambda build: dl.distribute(build, strategy))
    fitting.splits = splitting.splits
    return found


def from_files(strategy, folder):
    """Records in three files, of which each worker reads those that are its own."""
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

    def kept(y_true, y_pred):
        tf.py_function(lambda y: seen.extend(y.numpy()[:, 0].tolist()), [y_true], [])
        return tf.zeros(tf.shape(y_true)[0])

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[kept])
        return model

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    model = dl.distribute(build, strategy)
    workers_of(strategy).exchange("the files are there")
    data = tf.data.TFRecordDataset(names).map(read).batch(BATCH)
    found = []
    fit(model, data, epochs=1)  # which tries the metric on the first batch
    for one in (data, data.with_options(options)):
        seen.clear()
        fit(model, one, epochs=1)
        found.append(sorted(seen))
    return found


def apart(strategy, folder):
    """The chief saves by itself, in a callback, where the others go on with `fit`."""
    model = dl.distribute(builder("sgd"), strategy)
    save = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: model.save(f"{folder}.keras")
    )
    callbacks = [] if is_second(strategy) else [save]
    return text_of(lambda: fit(model, batches(), callbacks=callbacks))


ON_WORKERS = {
    "alike": alike,
    "stopped": stopped,
    "written": written,
    "restored": restored,
    "refused": refused,
    "apart": apart,
    "TensorFlow's sharding": with_tensorflows_sharding,
    "described": lambda strategy, folder: "{0.kind} {0.replicas} {0.workers}".format(
        dl.describe(strategy)
    ),
    "files": from_files,
    "unlike": unlike,
    "own data": own_data,
    "own save": saved_by_its_own_method,
}


def one_fails():
    """The second worker alone fails; returns what each is told."""
    strategy = dl.make_strategy("multi_worker")

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if is_second(strategy) and batch == 1:
                raise ValueError("this is the reason")

    model = dl.distribute(builder("sgd"), strategy)
    return text_of(lambda: fit(model, batches(), callbacks=[Fails()]))


def one_is_lost(folder, *, in_fit):
    """The second worker ends without a word; what the first is told, and after how long.

    A single number goes one way only: no message of TensorFlow's fails before a heartbeat does.
    """
    strategy = dl.make_strategy("multi_worker")
    workers = workers_of(strategy)
    ended = pathlib.Path(folder) / "worker-1.pickle"  # what `run_on_tasks` waits for
    add = tf.function(lambda: strategy.reduce("SUM", tf.constant(1.0), axis=None))
    lost_at, first_has_added = [], pathlib.Path(folder) / "added"

    def leave(step):
        if step < 9:
            return
        if is_second(strategy):
            while not first_has_added.exists():  # else it may be in the middle of that step
                time.sleep(0.01)
            ended.write_bytes(pickle.dumps(None))
            os._exit(0)
        first_has_added.touch()
        while not is_gone(workers.addresses[1]):
            time.sleep(0.01)
        lost_at.append(time.monotonic())

    class Leaves(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            leave(batch)

    def go_on():
        if in_fit:
            model = dl.distribute(builder("sgd"), strategy)
            fit(model, batches(size=4), callbacks=[Leaves()])
        with ended_together(workers, "add"):
            for step in range(99):
                add()
                leave(step)

    return text_of(go_on), time.monotonic() - lost_at[0]


def one_is_lost_in_fit(folder):
    return one_is_lost(folder, in_fit=True)


def one_is_lost_while_adding(folder):
    return one_is_lost(folder, in_fit=False)
