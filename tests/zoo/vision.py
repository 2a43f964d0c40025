"""Image classifiers: convolutions, attention and mixers, with schedules and callbacks."""

import tempfile
from pathlib import Path

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import batches, family, images, labels, vectors

CLASSES = 4


def classifier(inputs, outputs, optimizer=None):
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
    return model


def pictures(size=8, channels=1):
    return batches(images(size, channels), labels(CLASSES))


def normalized(x, layer):
    """Returns `layer` without a bias, batch normalisation and a ReLU."""
    return layers.ReLU()(layers.BatchNormalization()(layer(x)))


def convolution(filters, size=3, **options):
    return layers.Conv2D(filters, size, padding="same", use_bias=False, **options)


def small_convnet(x):
    for filters in (4, 8):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    return layers.Dense(CLASSES)(x)


@family("Simple MNIST convnet", core=True)
def convnet():
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((8, 8, 1))
        return classifier(inputs, small_convnet(inputs))

    return build, pictures()


@family("Residual networks in the functional API guide")
def residual_net():
    def build():
        keras.utils.set_random_seed(12)
        inputs = keras.Input((8, 8, 3))
        x = normalized(inputs, convolution(6))
        shortcut = convolution(6, 1, strides=2)(x)
        y = normalized(x, convolution(6, strides=2))
        y = layers.BatchNormalization()(convolution(6)(y))
        x = layers.ReLU()(layers.add([y, shortcut]))
        outputs = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
        return classifier(inputs, outputs, keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True))

    return build, pictures(channels=3)


@family("Image classification from scratch")
def separable_net():
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((8, 8, 3))
        x = normalized(layers.Rescaling(2.0, offset=-1)(inputs), convolution(4, strides=2))
        before = convolution(6, 1, strides=2)(x)
        separable = layers.SeparableConv2D(6, 3, padding="same", use_bias=False)
        x = layers.BatchNormalization()(separable(layers.Activation("relu")(x)))
        x = layers.add([layers.MaxPooling2D(3, strides=2, padding="same")(x), before])
        x = layers.Dropout(0.25)(layers.GlobalAveragePooling2D()(x))
        return classifier(inputs, layers.Dense(CLASSES)(x), keras.optimizers.SGD(0.05))

    return build, pictures(channels=3)


def patches(x, size=2):
    """Cuts pictures into squares and lists the pixels of each."""
    x = layers.Lambda(lambda x: ops.image.extract_patches(x, size))(x)
    return layers.Reshape((-1, x.shape[-1]))(x)


class AddPlaces(layers.Layer):
    """Projects patches and adds what an embedding has learned about their places."""

    def __init__(self, places, width):
        super().__init__()
        self.places = places
        self.project = layers.Dense(width)
        self.embed = layers.Embedding(places, width)

    def call(self, x):
        return self.project(x) + self.embed(ops.arange(self.places))


def feed_forward(x, widths, rate=0.1):
    for width in widths:
        x = layers.Dropout(rate)(layers.Dense(width, activation="gelu")(x))
    return x


@family("Image classification with Vision Transformer")
def vision_transformer():
    def build():
        keras.utils.set_random_seed(4)
        inputs = keras.Input((8, 8, 1))
        x = AddPlaces(16, 8)(patches(inputs))
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.add([layers.MultiHeadAttention(2, 4, dropout=0.1)(y, y), x])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.add([feed_forward(y, (16, 8)), x])
        x = layers.Dropout(0.5)(layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x)))
        return classifier(inputs, layers.Dense(CLASSES)(x), keras.optimizers.SGD(0.02))

    return build, pictures()


def mix(x):
    """Mixes over the patches, then over the channels."""
    y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
    x = layers.add([x, layers.Permute((2, 1))(feed_forward(y, (12, x.shape[1])))])
    return layers.add([x, feed_forward(layers.LayerNormalization()(x), (12, x.shape[2]))])


@family("Image classification with modern MLP models", core=True)
def mlp_mixer():
    def build():
        keras.utils.set_random_seed(5)
        inputs = keras.Input((8, 8, 1))
        x = layers.Dense(8)(patches(inputs))
        x = mix(x)
        x = layers.Dropout(0.2)(layers.GlobalAveragePooling1D()(x))
        optimizer = keras.optimizers.SGD(0.05, weight_decay=1e-2)
        return classifier(inputs, layers.Dense(CLASSES)(x), optimizer)

    return build, pictures()


@family("Image classification with ConvMixer")
def conv_mixer():
    def build():
        keras.utils.set_random_seed(6)
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(6, 2, strides=2, activation="gelu")(inputs)
        x = layers.BatchNormalization()(x)
        y = layers.DepthwiseConv2D(3, padding="same", activation="gelu")(x)
        x = layers.add([layers.BatchNormalization()(y), x])
        x = layers.BatchNormalization()(layers.Conv2D(6, 1, activation="gelu")(x))
        outputs = layers.Dense(CLASSES)(layers.GlobalAvgPool2D()(x))
        return classifier(inputs, outputs, keras.optimizers.AdamW(1e-3, weight_decay=1e-4))

    return build, pictures()


class Places(layers.Layer):
    def build(self, shape):
        self.places = self.add_weight(shape=shape[1:], initializer="random_normal", name="places")

    def call(self, x):
        return x + self.places


class SequencePooling(layers.Layer):
    """Returns the average of a sequence by weights that it learns."""

    def __init__(self):
        super().__init__()
        self.score = layers.Dense(1, use_bias=False)

    def call(self, x):
        weights = ops.softmax(self.score(x), axis=1)
        return ops.squeeze(ops.matmul(ops.transpose(weights, (0, 2, 1)), x), axis=1)


@family("Compact Convolutional Transformers")
def compact_transformer():
    def build():
        keras.utils.set_random_seed(7)
        inputs = keras.Input((8, 8, 1))
        x = layers.MaxPooling2D(2)(convolution(8, activation="relu")(inputs))
        x = Places()(layers.Reshape((-1, 8))(x))
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x = layers.add([layers.MultiHeadAttention(2, 4)(y, y), x])
        y = feed_forward(layers.LayerNormalization(epsilon=1e-5)(x), (8,))
        x = layers.add([y, x])
        outputs = layers.Dense(CLASSES)(SequencePooling()(x))
        return classifier(inputs, outputs, keras.optimizers.SGD(0.05, weight_decay=1e-2))

    return build, pictures()


# Optimizers that follow a schedule or keep averages, and callbacks


def dense_classifier(optimizer):
    inputs = keras.Input((8,))
    x = layers.Dense(12, activation="relu")(inputs)
    return classifier(inputs, layers.Dense(CLASSES)(layers.Dropout(0.2)(x)), optimizer)


@family("Learning rate schedules: cosine decay after a warm-up")
def cosine_decay():
    def build():
        keras.utils.set_random_seed(8)
        rate = keras.optimizers.schedules.CosineDecay(1e-4, 6, warmup_target=1e-2, warmup_steps=2)
        return dense_classifier(keras.optimizers.AdamW(rate, weight_decay=1e-2))

    return build, batches(vectors(), labels(CLASSES))


@family(
    "Optimizers that keep a moving average of the weights",
    fit=lambda: {"callbacks": [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]},
)
def moving_average():
    def build():
        keras.utils.set_random_seed(10)
        return dense_classifier(keras.optimizers.Adam(1e-2, use_ema=True, ema_momentum=0.6))

    return build, batches(vectors(), labels(CLASSES))


def many_callbacks():
    used = keras.callbacks
    stops = used.EarlyStopping("loss", mode="max", patience=0, restore_best_weights=True)
    several = [
        used.LearningRateScheduler(lambda epoch, rate: rate * 0.5**epoch),
        used.ReduceLROnPlateau("val_loss", factor=0.2, patience=1, min_delta=10.0),
        used.CSVLogger(Path(tempfile.mkdtemp()) / "log.csv"),
        used.TerminateOnNaN(),
        stops,  # After two epochs, with the weights after the first one.
    ]
    return {"callbacks": several, "validation_data": pictures()}


@family("Training with the built-in methods: callbacks", fit=many_callbacks, core=True)
def callbacks_of_fit():
    return convnet()


class HeatMap(keras.callbacks.Callback):
    """Logs how much each place of the last convolution adds to the first class."""

    def on_epoch_end(self, epoch, logs=None):
        layer = [one for one in self.model.layers if isinstance(one, layers.Conv2D)][-1]
        both = keras.Model(self.model.inputs, [layer.output, self.model.output])
        with tf.GradientTape() as tape:
            found, scores = both(images()[:5])
            score = ops.sum(scores[:, 0])
        weights = ops.mean(tape.gradient(score, found), axis=(1, 2), keepdims=True)
        logs["heat"] = float(ops.mean(ops.relu(ops.sum(weights * found, axis=-1))))


@family("Grad-CAM class activation", fit=lambda: {"callbacks": [HeatMap()]})
def activation_map():
    return convnet()


def dice(y_true, y_pred):
    both = ops.sum(y_true * y_pred)
    return 1 - (2 * both + 1) / (ops.sum(y_true) + ops.sum(y_pred) + 1)


@family("Segmentation by a Dice loss")
def dice_loss():
    def build():
        keras.utils.set_random_seed(13)
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
        model = keras.Model(inputs, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))
        model.compile(keras.optimizers.SGD(0.05), loss=dice)
        return model

    return build, batches(images(), labels(2, (8, 8, 1)).astype("float32"))
