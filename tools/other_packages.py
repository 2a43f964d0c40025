"""What people bring from other packages, on one device and on replicas, in a table.

    python tools/other_packages.py --write       # measures, and writes a table of docs/zoo.md
    python tools/other_packages.py --check       # and fails where the page says something else

`make other-packages` runs it in an environment that has the packages in `PACKAGES`. The words
around the table are the page's own. No case downloads anything: models have random weights.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.parity import BATCH, ROWS, differences
from tools.measured_pages import (
    asked_to_write,
    changes,
    measure_rows,
    read_tables,
    report,
    table,
    write_page,
)
from tools.zoo import PAGE

COLUMN = "`distribute`, 3 replicas"
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, 8)).astype("float32")
Y = DRAW.integers(0, 4, ROWS)
IMAGES = DRAW.normal(size=(ROWS, 32, 32, 3)).astype("float32")
TOKENS = DRAW.integers(1, 20, (ROWS, 6))

Numbers = dict[str, Any]
Make = Callable[[Callable[[], Any]], Any]  # what makes a model of `build`, alone or on replicas
CASES: dict[str, Callable[[Make], Numbers]] = {}


def case(name: str) -> Callable[[Callable[[Make], Numbers]], Callable[[Make], Numbers]]:
    """Enters a training into the table: package first, then what is used of it."""

    def enter(train: Callable[[Make], Numbers]) -> Callable[[Make], Numbers]:
        CASES[name] = train
        return train

    return enter


def compiled(model: Any, **more: Any) -> Any:
    """Returns a model, compiled for classification if nothing else is asked for."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": loss, **more})
    return model


def classifier(*layers: Any, shape: tuple[int, ...] = (8,), **more: Any) -> Any:
    """Returns a compiled stack of layers with a dropout and a head for four classes."""
    import keras

    head = keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(4)
    return compiled(keras.Sequential([keras.Input(shape), *layers, *head]), **more)


def fitted(make: Make, build: Callable[[], Any], *data: Any, **fit: Any) -> Numbers:
    """Returns the logs and the weights of a training of two epochs."""
    import keras

    def seeded() -> Any:
        keras.utils.set_random_seed(3)
        return build()

    model = make(seeded)
    sizes = {"batch_size": BATCH} if data and isinstance(data[0], np.ndarray | dict) else {}
    logs = model.fit(*data, epochs=2, verbose=0, shuffle=False, **sizes, **fit).history
    return {f"log {name}": values for name, values in logs.items()} | weights_of(model)


def weights_of(model: Any) -> Numbers:
    """Returns the weights of a model, but for the states of its generators, by their place."""
    weights = [w for w in model.weights if "seed_generator" not in w.path]
    return {f"weight {place}": w.numpy() for place, w in enumerate(weights)}


# Loaders, which don't tell their length: plain Keras then counts, and draws, one step too many in
# each epoch, so these models draw nothing.


def linear() -> Any:
    """Returns a model without random layers."""
    import keras

    return compiled(keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]))


@case("grain: a `DataLoader`")
def grain_loader(make: Make) -> Numbers:
    import grain.python as grain

    pairs = list(zip(X, Y, strict=True))
    loader = grain.DataLoader(
        data_source=pairs,
        sampler=grain.IndexSampler(ROWS, grain.NoSharding(), shuffle=True, seed=1, num_epochs=1),
        operations=[grain.Batch(BATCH)],
    )
    return fitted(make, linear, loader)


@case("grain: a shuffled `MapDataset` in batches")
def grain_map_dataset(make: Make) -> Numbers:
    import grain.python as grain

    pairs = grain.MapDataset.source(list(zip(X, Y, strict=True)))
    return fitted(make, linear, pairs.shuffle(seed=1).batch(BATCH))


# Tuners and wrappers


@case("keras-tuner: a `RandomSearch`")
def tuner(make: Make) -> Numbers:
    import keras
    import keras_tuner

    def build(trial: Any) -> Any:
        units, rate = trial.Choice("units", [4, 8]), trial.Choice("rate", [0.1, 0.01])

        def seeded() -> Any:
            keras.utils.set_random_seed(3)
            dense = keras.layers.Dense(units, activation="relu")
            return classifier(dense, optimizer=keras.optimizers.SGD(rate))

        return make(seeded)

    with tempfile.TemporaryDirectory() as folder:
        search = keras_tuner.RandomSearch(build, "val_loss", 3, seed=1, directory=folder)
        data = {"batch_size": BATCH, "shuffle": False, "validation_data": (X, Y)}
        search.search(X, Y, epochs=2, verbose=0, **data)
        scores = {trial.trial_id: trial.score for trial in search.oracle.trials.values()}
        return scores | weights_of(search.get_best_models()[0])


@case("scikeras: a `KerasClassifier`")
def scikit_learn(make: Make) -> Numbers:
    import keras
    from scikeras.wrappers import KerasClassifier

    def build() -> Any:
        keras.utils.set_random_seed(3)
        return make(classifier)

    options = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "fit__shuffle": False}
    wrapped = KerasClassifier(build, random_state=3, **options)
    wrapped.fit(X, Y)
    return {"predicted": wrapped.predict(X)} | weights_of(wrapped.model_)


# Layers and models


@case("keras-hub: BERT with dropout")
def bert(make: Make) -> Numbers:
    import keras_hub

    def build() -> Any:
        sizes = {"vocabulary_size": 20, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
        sizes |= {"intermediate_dim": 16, "max_sequence_length": 6}
        backbone = keras_hub.models.BertBackbone(**sizes)
        return compiled(
            keras_hub.models.BertTextClassifier(backbone, num_classes=4, preprocessor=None)
        )

    given = {"token_ids": TOKENS, "segment_ids": TOKENS * 0, "padding_mask": TOKENS * 0 + 1}
    return fitted(make, build, given, Y)


@case("keras-hub: BERT, frozen, with LoRA")
def lora(make: Make) -> Numbers:
    import keras_hub

    def build() -> Any:
        sizes = {"vocabulary_size": 20, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
        sizes |= {"intermediate_dim": 16, "max_sequence_length": 6}
        backbone = keras_hub.models.BertBackbone(**sizes)
        backbone.enable_lora(2)
        return compiled(
            keras_hub.models.BertTextClassifier(backbone, num_classes=4, preprocessor=None)
        )

    given = {"token_ids": TOKENS, "segment_ids": TOKENS * 0, "padding_mask": TOKENS * 0 + 1}
    return fitted(make, build, given, Y)


@case("keras-hub: a ResNet with batch normalization")
def resnet(make: Make) -> Numbers:
    import keras_hub

    def build() -> Any:
        sizes = {"input_conv_filters": [64], "input_conv_kernel_sizes": [3]}
        sizes |= {"stackwise_num_filters": [64, 64], "stackwise_num_blocks": [1, 1]}
        sizes |= {"stackwise_num_strides": [1, 2], "block_type": "basic_block"}
        backbone = keras_hub.models.ResNetBackbone(**sizes, image_shape=(32, 32, 3))
        model = keras_hub.models.ImageClassifier(backbone, num_classes=4, preprocessor=None)
        return compiled(model)

    return fitted(make, build, IMAGES, Y)


@case("keras-hub: GPT-2, which predicts the next token")
def gpt(make: Make) -> Numbers:
    import keras_hub

    def build() -> Any:
        sizes = {"vocabulary_size": 20, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
        sizes |= {"intermediate_dim": 16, "max_sequence_length": 6}
        backbone = keras_hub.models.GPT2Backbone(**sizes)
        return compiled(keras_hub.models.GPT2CausalLM(backbone, preprocessor=None))

    given = {"token_ids": TOKENS[:, :-1], "padding_mask": TOKENS[:, :-1] * 0 + 1}
    return fitted(make, build, given, TOKENS[:, 1:])


@case("keras-rs: `FeatureCross` and `DotInteraction`")
def crosses(make: Make) -> Numbers:
    import keras
    import keras_rs

    def build() -> Any:
        inputs = keras.Input((8,))
        crossed = keras_rs.layers.FeatureCross()(inputs)
        parts = [keras.layers.Dense(3)(part) for part in (inputs, crossed)]
        mixed = keras_rs.layers.DotInteraction()(parts)
        return compiled(keras.Model(inputs, keras.layers.Dense(4)(mixed)))

    return fitted(make, build, X, Y)


@case("keras-rs: two towers, with hard negatives of the batch")
def retrieval(make: Make) -> Numbers:
    import keras
    import keras_rs

    class Retrieval(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.query, self.item = keras.layers.Dense(4), keras.layers.Dense(4)
            self.negatives = keras_rs.layers.HardNegativeMining(num_hard_negatives=2)

        def call(self, inputs: Any) -> Any:
            query, item = self.query(inputs[:, :4]), self.item(inputs[:, 4:])
            scores = keras.ops.matmul(query, keras.ops.transpose(item))
            return self.negatives(scores, keras.ops.eye(keras.ops.shape(scores)[0]))

        def compute_loss(self, *given: Any, y_pred: Any = None, **_: Any) -> Any:
            scores, labels = y_pred or given[2]
            return keras.ops.mean(keras.losses.categorical_crossentropy(labels, scores, True))

    return fitted(make, lambda: compiled(Retrieval(), loss=None), X, Y)


@case("keras-tcn: a `TCN` with dropout")
def tcn(make: Make) -> Numbers:
    from tcn import TCN

    def build() -> Any:
        layer = TCN(4, kernel_size=2, dilations=(1, 2), dropout_rate=0.2, use_batch_norm=True)
        return classifier(layer, shape=(6, 1))

    return fitted(make, build, TOKENS[..., None].astype("float32") / 20, Y)


@case("tensorflow-probability: the likelihood of a mixture as a loss")
def likelihood(make: Make) -> Numbers:
    import keras
    import tensorflow as tf
    import tensorflow_probability as tfp

    def negative_log_likelihood(y: Any, given: Any) -> Any:
        mean, scale, logits = tf.split(given, [3, 3, 3], axis=-1)
        parts = tfp.distributions.Normal(mean, 0.1 + tf.nn.softplus(scale))
        which = tfp.distributions.Categorical(logits)
        mixture = tfp.distributions.MixtureSameFamily(which, parts)
        return -tf.reduce_mean(mixture.log_prob(tf.squeeze(y, -1)))

    def build() -> Any:
        layers = [keras.Input((8,)), keras.layers.Dense(9)]
        optimizer = keras.optimizers.SGD(0.01)
        return compiled(keras.Sequential(layers), loss=negative_log_likelihood, optimizer=optimizer)

    return fitted(make, build, X, X.sum(1, keepdims=True))


@case("tensorflow-text: strings, cut into words inside of a layer")
def words(make: Make) -> Numbers:
    import keras
    import tensorflow as tf
    import tensorflow_text

    class Words(keras.layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            self.table = self.add_weight(shape=(50, 4), name="table")
            self.cut = tensorflow_text.WhitespaceTokenizer()

        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], 4)

        def call(self, text: Any) -> Any:
            numbers = tf.strings.to_hash_bucket_fast(self.cut.tokenize(text), 50)
            rows = tf.ragged.map_flat_values(tf.gather, tf.convert_to_tensor(self.table), numbers)
            return tf.reduce_mean(rows, axis=1)

    def build() -> Any:
        inputs = keras.Input((), dtype="string")
        return compiled(keras.Model(inputs, keras.layers.Dense(4)(Words()(inputs))))

    texts = [" ".join(f"word{number}" for number in row[: 1 + row[0] % 5]) for row in TOKENS]
    data = tf.data.Dataset.from_tensor_slices((texts, Y)).batch(BATCH)
    return fitted(make, build, data)


@case("bayesflow: a flow with a `train_step` of its own")
def flow(make: Make) -> Numbers:
    import bayesflow
    import keras
    import tensorflow as tf

    def build() -> Any:
        model = bayesflow.approximators.ContinuousApproximator(
            adapter=None,
            inference_network=bayesflow.networks.CouplingFlow(
                depth=2, subnet_kwargs={"widths": (8,)}, permutation="swap"
            ),
        )
        model.compile(optimizer=keras.optimizers.SGD(0.01))
        shapes = {"inference_variables": (BATCH, 4), "inference_conditions": (BATCH, 4)}
        model.build(shapes)
        return model

    given = {"inference_variables": X[:, :4], "inference_conditions": X[:, 4:]}
    data = tf.data.Dataset.from_tensor_slices(given).batch(BATCH)
    return fitted(make, build, dataset=data)


# TensorFlow and Keras


@case("TensorFlow: a `TFSMLayer` of a SavedModel")
def saved_model(make: Make) -> Numbers:
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    exported = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, activation="tanh")])
    with tempfile.TemporaryDirectory() as folder:
        exported.export(folder, verbose=False)

        def build() -> Any:
            return classifier(keras.layers.TFSMLayer(folder, call_endpoint="serve"))

        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
        return fitted(make, build, data)


@case("Keras: a callback that predicts and evaluates")
def predicting_callback(make: Make) -> Numbers:
    import keras

    seen = []

    class Predicts(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(self.model.predict(X[:5], verbose=0))
            seen.append(self.model.evaluate(X, Y, verbose=0, batch_size=BATCH))

    numbers = fitted(make, classifier, X, Y, callbacks=[Predicts()])
    return numbers | {f"log seen {place}": each for place, each in enumerate(seen)}


@case("Keras: a callback that compiles the model again")
def compiling_callback(make: Make) -> Numbers:
    import keras

    class Compiles(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            compiled(self.model, optimizer=keras.optimizers.SGD(0.01))

    return fitted(make, classifier, X, Y, callbacks=[Compiles()])


def measure(name: str) -> dict[str, str]:
    """Trains one case in this process, and returns its row."""
    import distlab as dl

    dl.split_devices(4, kind="cpu")
    strategy = dl.make_strategy("mirrored", devices=3)
    ways = lambda build: build(), lambda build: dl.distribute(build, strategy)
    cell = in_words(*(outcome(CASES[name], make) for make in ways))
    print(f"{name}: {cell}", flush=True)
    return {COLUMN: cell}


def outcome(train: Callable[[Make], Numbers], make: Make) -> Numbers | Exception:
    """Returns what a training ended with, or the error that stopped it."""
    try:
        return train(make)
    except Exception as error:
        print(f"  {type(error).__name__}: {error}"[:2000], file=sys.stderr)
        return error


def in_words(device: Numbers | Exception, replicas: Numbers | Exception) -> str:
    """Returns the cell of a case."""
    if isinstance(device, Exception):
        same = isinstance(replicas, Exception)
        return "stops, as on one device" if same else "trains, and one device stops"
    if isinstance(replicas, Exception):
        return f"stops: {type(replicas).__name__}"
    far = max(differences((device, ()), (replicas, ())).values())
    return "equal" if far <= 1e-5 else f"off by {far:.0e}"


def main() -> int:
    """Measures, and writes or compares; returns the exit code."""
    writes, rows = asked_to_write(__doc__), measure_rows(measure, CASES)
    if not writes:
        _, stored = read_tables(PAGE.read_text(encoding="utf-8"))
        return report(changes(stored, rows))
    write_page(PAGE, [table("what is brought", rows)], {})
    return 0


if __name__ == "__main__":
    sys.exit(main())
