"""What the tasks of test_parameter_server.py run: the coordinator trains, the others serve."""

import importlib.util
import pathlib
import pickle
import time

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.training.parameter_server import steps
from tests.support.distribution import BATCH, EXAMPLES, LOSS, X, Y, builder, shuffled, train
from tests.support.limits import HANG_SECS

IDS = np.arange(EXAMPLES)


def batches(x=X, size=BATCH):
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(size)


def weights_of(model):
    return [weight.numpy() for weight in model.weights]


def refusal(call):
    """Returns the error that a call raises, as its type's name and its text."""
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:
        return type(error).__name__, str(error)
    return None


# One worker: as on one device


def fitted_twice(make):
    """`fit`, `fit` again with more to do, and all other calls."""
    model, data = make(builder("adam_clipnorm")), shuffled()
    train(model, data)
    options = {"validation_data": batches(), "class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}}
    logs, _ = train(model, data, **options)
    logs["evaluate"] = model.evaluate(batches(), verbose=0)
    logs["on a batch"] = model.train_on_batch(X[:BATCH], Y[:BATCH])
    logs["predict"] = model.predict(X, batch_size=10, verbose=0)
    return logs, weights_of(model)


def arrays(make):
    def build():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile(keras.optimizers.SGD(0.1), LOSS(), steps_per_execution=2)
        return model

    model = make(build)
    logs, _ = train(model, X, y=Y, batch_size=BATCH, validation_data=(X, Y))
    return logs, weights_of(model)


PARITY = {"fit twice": fitted_twice, "arrays": arrays}


class Largest(keras.metrics.Metric):
    """The largest error so far, which does not add up over batches."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(tf.abs(y_pred))))

    def result(self):
        return self.largest


def largest(strategy):
    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", LOSS(), metrics=[Largest()])
        return model

    model = dl.distribute(build, strategy)
    return refusal(lambda: model.fit(batches(), verbose=0))


def placed(strategy):
    """Where the variables are."""
    model = dl.distribute(builder("adam"), strategy)
    model.evaluate(batches(), verbose=0)
    return [variable.value.device for variable in model.variables + model.optimizer.variables]


def saved(strategy, folder):
    model = dl.distribute(builder("sgd"), strategy)
    model.save(folder / "saved.keras")
    return weights_of(model), weights_of(keras.models.load_model(folder / "saved.keras"))


def train_with_one_worker(folder):
    """Writes what came of all that; then trains until the test has ended the server."""
    strategy, folder = dl.make_strategy("parameter_server"), pathlib.Path(folder)
    results = {
        name: run(lambda build: dl.distribute(build, strategy)) for name, run in PARITY.items()
    }
    results["placed"] = placed(strategy)
    results["saved"] = saved(strategy, folder)
    results["largest"] = largest(strategy)
    (folder / "results.pickle").write_bytes(pickle.dumps(results))
    with_resume(strategy, folder, [Waits(folder)])


class Waits(keras.callbacks.Callback):
    """In the fourth step of nine, waits until the test has ended the server."""

    listens_to_executions = True

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations >= 4:
            (self.folder / "now").touch()
            until((self.folder / "go on").exists)


def with_resume(strategy, folder, callbacks):
    model, resume = dl.distribute(builder("adam"), strategy), dl.Resume(folder / "c", every_steps=2)
    options = {"epochs": 3, "callbacks": [resume, *callbacks], "verbose": 0}
    history = model.fit(shuffled(), **options)
    return history.history, weights_of(model), str(resume.resumed_from)


def go_on(folder):
    return with_resume(dl.make_strategy("parameter_server"), pathlib.Path(folder), [])


def until(holds, timeout_secs=HANG_SECS):
    deadline = time.monotonic() + timeout_secs
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)  # between looks at what the test does


# Several workers


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


def counting(rate=0.1):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(
            keras.optimizers.SGD(rate),
            loss=lambda y, p: tf.square(p - tf.cast(y, tf.float32) / EXAMPLES),
            metrics=[Histogram(), "mae"],
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


def shared(strategy):
    """What two workers see of data in a known order and in no known one, in two epochs each."""
    model, epochs = dl.distribute(counting(), strategy), Epochs()
    for seed in (1, None):
        model.fit(numbered(seed=seed), epochs=2, verbose=0, callbacks=[epochs])
    return epochs.seen, epochs.iterations


def logs(strategy):
    """With weights that do not move, an epoch's logs are what `evaluate` gives."""
    model, data = dl.distribute(counting(rate=0.0), strategy), numbered()
    history = model.fit(data, epochs=2, verbose=0, validation_data=data).history
    return history, counting(rate=0.0)().evaluate(data, verbose=0, return_dict=True)


class Batches(keras.callbacks.Callback):
    """Listens to batches, and stops in the middle of the second epoch."""

    def __init__(self):
        super().__init__()
        self.iterations, self.seen = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.iterations.append(int(self.model.optimizer.iterations.numpy()))
        self.seen.append(float(logs["seen"]))
        self.model.stop_training = len(self.iterations) == 20


def callbacks(strategy, folder):
    listening = Batches()
    given = [
        listening,
        keras.callbacks.ModelCheckpoint(folder / "models" / "{epoch}.keras"),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
    ]
    model = dl.distribute(counting(), strategy)
    history = model.fit(numbered(), epochs=3, verbose=0, callbacks=given).history
    files = sorted(path.name for path in (folder / "models").iterdir())
    rows = (folder / "log.csv").read_text().count("\n")
    return listening.iterations, listening.seen, history, files, rows


def failures(strategy):
    """Errors in `fit`, after all of which the same model trains."""

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.1), loss=LOSS())
        return model

    class Interrupting(keras.callbacks.Callback):
        """As Ctrl-C does, while steps are under way."""

        listens_to_executions = True

        def on_train_batch_end(self, batch, logs=None):
            if batch >= 3:
                raise KeyboardInterrupt("of the callback")

    nan = X.copy()
    nan[40] = np.nan
    model = dl.distribute(build, strategy)
    wrong = {
        "not a number": lambda: model.fit(batches(nan, size=8), verbose=0),
        "in a callback": lambda: model.fit(batches(size=8), verbose=0, callbacks=[Interrupting()]),
        "in the data": lambda: model.fit(batches(X[:, :5], size=8), verbose=0),
        "no end": lambda: model.fit(batches().repeat(), verbose=0),
        "no batch": lambda: model.fit(batches().take(0), verbose=0),
    }
    errors = {name: refusal(call) for name, call in wrong.items()}
    before = int(model.optimizer.iterations.numpy())
    model.fit(batches(size=8), verbose=0)
    return errors, int(model.optimizer.iterations.numpy()) - before


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
    def build(optimizer=None, layer=None, kind=keras.Sequential, **options):
        def made():
            layers = [layer()] if layer else []
            model = kind([keras.Input((8,)), *layers, keras.layers.Dense(4)])
            model.compile(optimizer or keras.optimizers.SGD(0.1), loss=LOSS(), **options)
            return model

        return made

    sgd = keras.optimizers.SGD
    own = type("Own", (keras.Sequential,), {"train_step": lambda self, data: {}})
    models = {
        "own step": build(kind=own),
        "eager": build(run_eagerly=True),
        "metric in a layer": build(layer=Counting),
        "table": lookup,
        "accumulation": lambda: build(sgd(gradient_accumulation_steps=2))(),
        "averages": lambda: build(sgd(use_ema=True, ema_overwrite_frequency=2))(),
    }
    if importlib.util.find_spec("tf_keras"):
        models["legacy"] = legacy
    errors = {n: refusal(lambda: dl.distribute(m, strategy)) for n, m in models.items()}  # noqa: B023
    counts = dl.distribute(build(metrics=[Seen()]), strategy)
    errors["metric in variables"] = refusal(lambda: counts.fit(batches(), verbose=0))
    distributed = strategy.experimental_distribute_dataset(batches())
    model = dl.distribute(builder("sgd"), strategy)
    errors["distributed"] = refusal(lambda: model.fit(distributed, verbose=0))
    return errors


def train_with_two_workers(folder):
    """What two workers share; then a training of which the test ends one worker after another."""
    strategy, folder = dl.make_strategy("parameter_server"), pathlib.Path(folder)
    results = {
        "shared": shared(strategy),
        "logs": logs(strategy),
        "callbacks": callbacks(strategy, folder),
        "failures": failures(strategy),
        "refusals": refusals(strategy),
        "described": dl.describe(strategy),
    }
    model, marks, data = dl.distribute(speaking, strategy), Marks(folder), shuffled()
    results["lost"] = refusal(lambda: model.fit(data, epochs=100_000, verbose=0, callbacks=[marks]))
    return results | {"epochs": marks.epochs, "steps": int(model.optimizer.iterations.numpy())}


class Speaks(keras.layers.Layer):
    """Says on which task a step is taken, in that task's log."""

    def call(self, x):
        with tf.control_dependencies([tf.print("a step")]):
            return tf.identity(x)


def speaking():
    model = keras.Sequential([keras.Input((8,)), Speaks(), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1), LOSS())
    return model


class Marks(keras.callbacks.Callback):
    """Tells the test how far training is, and is in no hurry."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.epochs = folder, 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs = epoch + 1
        (self.folder / f"epoch-{self.epochs}").touch()
        if (self.folder / "give up soon").exists():
            steps.WORKER_SECS = 1.0
        time.sleep(0.1)  # spares the processor while tasks start
