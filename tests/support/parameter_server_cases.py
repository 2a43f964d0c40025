"""What the tasks of test_parameter_server.py run: the coordinator trains, the others serve."""

import functools
import importlib.util
import pathlib
import signal
import tempfile
import time
import traceback
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.training.parameter_server import task_health, worker_feeding
from distlab.training.parameter_server.flight import Flight
from tests.support.distribution import (
    BATCH,
    EXAMPLES,
    LOSS,
    OPTIMIZERS,
    X,
    Y,
    builder,
    shuffled,
    train,
)

IDS = np.arange(EXAMPLES)


def run_cases(names):
    """Returns what each case returned, or its error, by name: one cluster serves many tests."""
    strategy, results = dl.make_strategy("parameter_server"), {}
    for name in names:
        start = time.perf_counter()
        try:
            results[name] = globals()[name](strategy)
        except Exception as error:
            results[name] = error
            traceback.print_exc()
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)  # noqa: T201
    return results


def batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def refusal(call):
    """Returns the error that a call raises, as its type's name and its text."""
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:
        return type(error).__name__, str(error)
    return None


# One worker: as on one device


def optimizers(strategy):
    return {name: train(dl.distribute(builder(name), strategy), shuffled()) for name in OPTIMIZERS}


def fed(strategy):
    """The same training with data of many kinds, here and on one device."""

    def twice(model):
        data = shuffled()
        train(model, data)
        class_weight = {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}
        return train(model, data, validation_data=batches(), class_weight=class_weight)

    def read_before(model):
        data = shuffled()
        if model.distribute_strategy is strategy:  # workers begin with the first order all the same
            next(iter(data))
        return train(model, data)

    def longer(model, **options):
        data = shuffled().unbatch().filter(lambda x, y: True).batch(5)
        history = model.fit(data, verbose=0, **options)
        return history.history, [weight.numpy() for weight in model.trainable_variables]

    kinds = {
        "several steps at once": lambda model: train(model, shuffled()),
        "endless": lambda model: train(model, batches().repeat(), steps_per_epoch=4),
        "shuffled below cache": lambda model: train(model, shuffled().cache()),
        "unknown length": functools.partial(longer, epochs=4),
        "unknown length, some steps an epoch": functools.partial(
            longer, epochs=6, steps_per_epoch=7
        ),
        "arrays": lambda model: train(model, X, y=Y, batch_size=BATCH, validation_data=(X, Y)),
        "fit again": twice,
        "read before": read_before,
    }
    results = {}
    for name, run in kinds.items():
        # Where the end of the data is not known, Keras on one device counts a step too many.
        make = functools.partial(builder, "sgd" if "unknown" in name else "adam")
        options = {"steps_per_execution": 2} if name == "several steps at once" else {}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            here = run(dl.distribute(make(**options), strategy))
        texts = [str(one.message) for one in told if "coordinator reads" in str(one.message)]
        results[name] = here, run(make(**options)()), texts
    return results


def batch_normalization(strategy):
    def build():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile(keras.optimizers.SGD(0.1), loss=LOSS())
        return model

    def run(model):
        train(model, shuffled())
        return [weight.numpy() for weight in model.weights]

    return run(dl.distribute(build, strategy)), run(build())


class Kept(keras.layers.Layer):
    """Drops half of its inputs, and keeps what it has dropped in each batch, by the batch."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=7)
        self.masks = self.add_weight(shape=(3, 8), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        mask = self.dropout(tf.ones((1, 8)), training=training)
        if training:
            which = tf.cast(x[0, 0], tf.int32)
            self.masks.value.scatter_nd_update([[which]], mask)
        return x[:, 1:] * mask


def dropout(strategy):
    """Masks of three batches, of two trainings; and what was left in the seed's variable."""

    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((9,)), Kept(), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.1), loss=LOSS())
        return model

    x = np.concatenate([(IDS // BATCH)[:, None], X], axis=1).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH)
    masks, states = [], []
    for _ in range(2):
        model = dl.distribute(build, strategy)
        model.fit(data, verbose=0)
        masks.append(model.layers[0].masks.numpy())
        states.append(model.layers[0].dropout.seed_generator.state.numpy().tolist())
    return masks, states


def placed(strategy):
    model = dl.distribute(builder("adam"), strategy)
    model.evaluate(batches(), verbose=0)
    return [variable.value.device for variable in model.variables + model.optimizer.variables]


def other_calls(strategy):
    """Everything that is not `fit`, beside one device."""

    def run(model):
        results = {"before": model.evaluate(batches(), verbose=0)}
        results["on batch"] = model.train_on_batch(X[:BATCH], Y[:BATCH])
        results["test"] = model.test_on_batch(X, Y)
        model.fit(batches(), epochs=1, verbose=0)
        results["predict"] = model.predict(batches().map(lambda x, y: x), verbose=0)
        results["arrays"] = model.predict(X, batch_size=10, verbose=0)
        results["one"] = model.predict_on_batch(X[:3])
        results["steps"] = model.evaluate(batches().repeat(), steps=2, verbose=0)
        return results

    model = dl.distribute(builder("adam"), strategy)
    results = run(model), run(builder("adam")())
    with tempfile.TemporaryDirectory() as folder:
        model.save(pathlib.Path(folder, "saved.keras"))
        loaded = keras.models.load_model(pathlib.Path(folder, "saved.keras"))
    saved = [w.numpy() for w in model.weights], [w.numpy() for w in loaded.weights]
    unbuilt = dl.distribute(builder("adam", built=False), strategy)
    return *results, saved, unbuilt.predict(X, verbose=0).shape


class Histogram(keras.metrics.Metric):
    """How often each example was seen: its number is its target."""

    def __init__(self):
        super().__init__(name="seen")
        self.seen = self.add_weight(shape=(EXAMPLES,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        one_hot = tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), EXAMPLES)
        self.seen.assign_add(tf.reduce_sum(one_hot, 0))

    def result(self):
        return tf.reduce_sum(self.seen)


def counting(rate=0.1, **compiled):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(
            keras.optimizers.SGD(rate),
            loss=lambda y, p: tf.square(p - tf.cast(y, tf.float32) / EXAMPLES),
            metrics=[Histogram(), "mae"],
            **compiled,
        )
        return model

    return build


def numbered(*, seed=1):
    data = tf.data.Dataset.from_tensor_slices((X, IDS))
    return data.shuffle(EXAMPLES, seed=seed).batch(5)


class Epochs(keras.callbacks.Callback):
    """What each epoch saw, and how many steps the optimizer had taken after it."""

    def __init__(self):
        super().__init__()
        self.seen, self.iterations = [], []

    def on_epoch_end(self, epoch, logs=None):
        metric = next(m for m in self.model.metrics[1].metrics if isinstance(m, Histogram))
        self.seen.append(metric.seen.numpy())
        self.iterations.append(int(self.model.optimizer.iterations.numpy()))


def out_of_order(strategy):
    """A worker is sent batches that it has passed: others had them, and were lost."""
    take = worker_feeding._ReadByWorkers.take
    model, epochs = dl.distribute(counting(), strategy), Epochs()

    def all_at_once(reading, batches, *, at_once):
        works = take(reading, 15, at_once=at_once)
        return works[3:6] + works[:3] + works[6:]

    with mock.patch.object(worker_feeding._ReadByWorkers, "take", all_at_once):
        model.fit(numbered(), epochs=1, verbose=0, callbacks=[epochs])
    return epochs.seen, epochs.iterations


def too_few(strategy):
    """Workers that see other files than the coordinator, with fewer batches."""
    load = worker_feeding._loader
    model = dl.distribute(counting(), strategy)
    with mock.patch.object(worker_feeding, "_loader", lambda data: load(data.take(14))):
        return refusal(lambda: model.evaluate(numbered(), verbose=0))


class Largest(keras.metrics.Metric):
    """The largest error so far."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = tf.abs(tf.cast(y_true, tf.float32) - tf.reshape(y_pred, [-1]))
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(errors)))

    def result(self):
        return self.largest


def largest(strategy):
    """A metric that does not add up over batches, in `fit` and in `evaluate`."""

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), loss="mse", metrics=["mae", Largest()])
        return model

    model = dl.distribute(build, strategy)
    return (
        refusal(lambda: model.fit(numbered(), verbose=0)),
        refusal(lambda: model.evaluate(numbered(), verbose=0)),
    )


# Several workers


def shared(strategy):
    """What two workers see of data of several kinds, in three epochs."""
    kinds = {
        "seeded": numbered(),
        "without a seed": numbered(seed=None),
        "several steps at once": numbered(),
        "arrays": None,
    }
    results = {}
    for name, data in kinds.items():
        options = {"steps_per_execution": 4} if name == "several steps at once" else {}
        model, epochs = dl.distribute(counting(**options), strategy), Epochs()
        given = {"x": X, "y": IDS, "batch_size": 5} if data is None else {"x": data}
        model.fit(**given, epochs=3, verbose=0, callbacks=[epochs])
        results[name] = epochs.seen, epochs.iterations
    return results


def logs(strategy):
    """With weights that do not move, an epoch's logs are what `evaluate` gives."""
    model = dl.distribute(counting(rate=0.0), strategy)
    history = model.fit(numbered(), epochs=2, verbose=0, validation_data=numbered()).history
    alone = counting(rate=0.0)()
    return (
        history,
        model.evaluate(numbered(), verbose=0, return_dict=True),
        alone.evaluate(numbered(), verbose=0, return_dict=True),
    )


class Batches(keras.callbacks.Callback):
    """Listens to batches, and stops in the middle of the second epoch."""

    def __init__(self):
        super().__init__()
        self.iterations, self.seen = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.iterations.append(int(self.model.optimizer.iterations.numpy()))
        self.seen.append(float(logs["seen"]))
        self.model.stop_training = len(self.iterations) == 20


def listening(strategy):
    model, batches, epochs = dl.distribute(counting(), strategy), Batches(), Epochs()
    history = model.fit(numbered(), epochs=3, verbose=0, callbacks=[batches, epochs])
    return batches.iterations, batches.seen, epochs.seen, history.history


def keras_callbacks(strategy):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        stopping = keras.callbacks.EarlyStopping(
            monitor="val_loss", patience=0, min_delta=10.0, restore_best_weights=True
        )
        callbacks = [
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras"),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
            stopping,
        ]
        model = dl.distribute(builder("sgd"), strategy)
        history = model.fit(
            shuffled(), epochs=5, verbose=0, validation_data=batches(), callbacks=callbacks
        )
        files = sorted(path.name for path in folder.iterdir())
    return files, history.history["learning_rate"], len(history.epoch)


class Interrupting(keras.callbacks.Callback):
    """As Ctrl-C does, while steps are under way."""

    listens_to_executions = True

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            raise KeyboardInterrupt("of the callback")


class Failing(keras.layers.Layer):
    def call(self, x):
        tf.debugging.assert_less(x, 50.0, message="an input of 50 or more")
        return x


def failures(strategy):
    """Errors in a step: each is raised, and the same model trains again after it."""

    def build(*layers, **options):
        def made():
            inner = [layer() for layer in layers]
            model = keras.Sequential([keras.Input((8,)), *inner, keras.layers.Dense(4)])
            model.compile(keras.optimizers.SGD(0.1), loss=LOSS(), **options)
            return model

        return made

    def spoilt(value):
        x = X.copy()
        x[40] = value
        return tf.data.Dataset.from_tensor_slices((x, Y)).batch(8)

    results = {}
    plain, failing = dl.distribute(build(), strategy), dl.distribute(build(Failing), strategy)
    for name, model, data, callbacks in (
        ("not a number", plain, spoilt(np.nan), []),
        ("in a layer", failing, spoilt(99.0), []),
        ("in a callback", plain, spoilt(1.0), [Interrupting()]),
        ("in the data", plain, tf.data.Dataset.from_tensor_slices((X[:, :5], Y)).batch(8), []),
        ("no end", plain, spoilt(1.0).repeat(), []),
        ("no batch", plain, spoilt(1.0).take(0), []),
        ("too short", plain, spoilt(1.0).apply(tf.data.experimental.assert_cardinality(12)), []),
    ):
        told = refusal(lambda: model.fit(data, verbose=0, callbacks=callbacks))  # noqa: B023
        before = int(model.optimizer.iterations.numpy())
        model.fit(spoilt(1.0), verbose=0)
        results[name] = told, int(model.optimizer.iterations.numpy()) - before
    ending = plain.fit(
        spoilt(np.nan), verbose=0, epochs=3, callbacks=[keras.callbacks.TerminateOnNaN()]
    )
    results["TerminateOnNaN"] = len(ending.epoch)
    return results


class OfOneSize(keras.layers.Layer):
    def call(self, x, training=False):
        if training and x.shape[0] is None:
            raise ValueError("a batch of another size")
        return x


def failing_late(strategy):
    """An error that comes while a step is compiled, with others under way; how many were done."""

    def build():
        model = keras.Sequential([OfOneSize(), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.1), loss=LOSS())
        return model

    model = dl.distribute(build, strategy)
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)
    data = whole.concatenate(tf.data.Dataset.from_tensors((X[:1], Y[:1])))
    told = refusal(lambda: model.fit(data.filter(lambda x, y: True), verbose=0))
    return told, int(model.optimizer.iterations.numpy())


class Counting(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.metric = keras.metrics.Mean(name="inside")

    def call(self, x):
        self.metric.update_state(x)
        return x


class Seen(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="seen")
        self.count = tf.Variable(0.0)

    def update_state(self, y, y_pred, sample_weight=None):
        self.count.assign_add(tf.cast(tf.shape(y)[0], tf.float32))

    def result(self):
        return self.count + 0.0


def legacy():
    import tf_keras

    model = tf_keras.Sequential([tf_keras.Input((8,)), tf_keras.layers.Dense(4)])
    model.compile("sgd", loss="mse")
    return model


def lookup():
    layer = keras.layers.StringLookup(vocabulary=["a", "b"], name="words")
    model = keras.Sequential([keras.Input((1,), dtype="string"), layer])
    model.compile("sgd", loss="mse")
    return model


def refusals(strategy):
    def build(optimizer=None, layer=None, **options):
        def made():
            layers = [layer()] if layer else []
            model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(4)])
            model.compile(optimizer or keras.optimizers.SGD(0.1), loss=LOSS(), **options)
            return model

        return made

    def with_own_step():
        own = type("Own", (keras.Sequential,), {"train_step": lambda self, data: {}})
        model = own([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", loss=LOSS())
        return model

    sgd = keras.optimizers.SGD
    models = {
        "own step": with_own_step,
        "eager": build(run_eagerly=True),
        "metric in a layer": build(layer=Counting),
        "table": lookup,
        "accumulation": lambda: build(sgd(gradient_accumulation_steps=2))(),
        "averages": lambda: build(sgd(use_ema=True, ema_overwrite_frequency=2))(),
    }
    if importlib.util.find_spec("tf_keras"):
        models["legacy"] = legacy
    told = {n: refusal(lambda: dl.distribute(m, strategy)) for n, m in models.items()}  # noqa: B023
    model = dl.distribute(builder("sgd"), strategy)
    counting = dl.distribute(build(metrics=[Seen()]), strategy)
    told["metric in TensorFlow's variables"] = refusal(lambda: counting.fit(batches(), verbose=0))
    distributed = strategy.experimental_distribute_dataset(batches())
    told["distributed"] = refusal(lambda: model.fit(distributed, verbose=0))
    return told


def described(strategy):
    return dl.describe(strategy)


# Variables in shards


def partitioned(partitioner):
    """Two raw variables, trained by hand; what is too small stays whole."""
    partitioners = tf.distribute.experimental.partitioners
    made = {
        "fixed": partitioners.FixedShardsPartitioner(num_shards=2),
        "min size": partitioners.MinSizePartitioner(min_shard_bytes=64, max_shards=2),
    }
    strategy = dl.make_strategy("parameter_server", variable_partitioner=made[partitioner])
    told = refusal(lambda: dl.distribute(builder("sgd"), strategy))
    with strategy.scope():
        table = tf.Variable(tf.zeros([9, 4]), name="table")
        small = tf.Variable(tf.zeros([3, 1]), name="small")

    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                rows = tf.nn.embedding_lookup(table, tf.range(9))
                loss = tf.reduce_sum(tf.square(rows - 1.0)) + tf.reduce_sum(
                    tf.square(tf.convert_to_tensor(small) - 1.0)
                )
            parts = [*shards(table), *shards(small)]
            for part, gradient in zip(parts, tape.gradient(loss, parts), strict=True):
                part.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            return loss

        return strategy.run(replica)

    def shards(variable):
        return list(getattr(variable, "variables", [variable]))

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    losses = [coordinator.schedule(step) for _ in range(20)]
    coordinator.join()
    where = {
        name: [(tuple(part.shape), part.device) for part in shards(variable)]
        for name, variable in (("table", table), ("small", small))
    }
    return told, where, [float(loss.fetch()) for loss in losses]


# Tasks that are lost


class Marks(keras.callbacks.Callback):
    """Tells the test how far training is, waits where it is told to, and ends when it is told."""

    def __init__(self, folder, *, wait_after=None):
        super().__init__()
        self.folder, self.wait_after = pathlib.Path(folder), wait_after

    def on_epoch_end(self, epoch, logs=None):
        (self.folder / f"epoch-{epoch + 1}").touch()
        if epoch + 1 == self.wait_after:
            until((self.folder / "go-on").exists)
        if (self.folder / "end").exists():
            self.model.stop_training = True


def until(holds, timeout_secs=180):
    deadline = time.monotonic() + timeout_secs
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def lost_worker(folder, epochs, wait_after):
    """Trains; the test ends workers meanwhile, and starts them again."""
    strategy = dl.make_strategy("parameter_server")
    copy, copies = worker_feeding.WorkerFeed._copy, []

    def counted(feed):
        made = copy(feed)
        copies.append(made)
        pathlib.Path(folder, f"copy-{len(copies)}").touch()
        return made

    with mock.patch.object(worker_feeding.WorkerFeed, "_copy", counted):
        model = dl.distribute(builder("sgd_momentum"), strategy)
        marks = Marks(folder, wait_after=wait_after)
        history = model.fit(shuffled(), epochs=epochs, verbose=0, callbacks=[marks])
    weights = [weight.numpy() for weight in model.trainable_variables]
    return history.history, weights, int(model.optimizer.iterations.numpy())


def gone_for_good(folder):
    """Waits for a worker that does not come back, for less long than is usual."""
    task_health.WORKER_SECS = 1.0
    strategy = dl.make_strategy("parameter_server")
    model = dl.distribute(builder("sgd"), strategy)
    marks = Marks(folder, wait_after=1)
    return refusal(lambda: model.fit(shuffled(), epochs=3, verbose=0, callbacks=[marks]))


def gone_with_a_result(folder):
    """A step has ended, its result is on the worker still, and the worker does not come back."""
    task_health.WORKER_SECS = 1.0
    # When it is deleted, TensorFlow's coordinator would wait for its workers.
    tf.distribute.coordinator.ClusterCoordinator.__del__ = lambda coordinator: None
    strategy = dl.make_strategy("parameter_server")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    flight = Flight(dl.distribute(builder("sgd"), strategy), coordinator)
    step = tf.function(lambda: tf.ones(1))
    ended = coordinator.schedule(step)
    coordinator.join()
    ended._has_fetched_to_local = False
    pathlib.Path(folder, "epoch-1").touch()
    until(pathlib.Path(folder, "go-on").exists)
    coordinator.schedule(step)  # as TensorFlow runs a step again whose result was lost
    return refusal(lambda: flight._result_of(ended))


class Stop(keras.callbacks.Callback):
    """In a step, tells the test to end the parameter server, or asks this process to leave."""

    listens_to_executions = True

    def __init__(self, folder, step, how):
        super().__init__()
        self.folder, self.step, self.how = folder, step, how

    def on_train_batch_end(self, batch, logs=None):
        if self.step is not None and self.model.optimizer.iterations >= self.step:
            self.step = None
            if self.how == "leave":
                signal.raise_signal(signal.SIGTERM)
            else:
                pathlib.Path(self.folder, "now").touch()
                until(pathlib.Path(self.folder, "go-on").exists)


def resumed(folder, how):
    """Trains for 6 epochs of 3 steps; the first time something happens in the 11th step."""
    strategy = dl.make_strategy("parameter_server")
    model = dl.distribute(builder("adam"), strategy)
    resume = dl.Resume(pathlib.Path(folder, "checkpoints"), every_steps=2)
    first = not any(resume.folder.glob("*")) if resume.folder.exists() else True
    stop = Stop(folder, 10 if first and how else None, how)
    history = model.fit(shuffled(), epochs=6, verbose=0, callbacks=[resume, stop])
    weights = [weight.numpy() for weight in model.trainable_variables]
    return history.history, weights, str(resume.resumed_from)
