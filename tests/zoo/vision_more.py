"""Segmentation, detection, text in pictures, points, pairs, applications, a frozen backbone."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import ROWS, batches, draw, family, images, labels
from tests.zoo.generative import Tracked, descend
from tests.zoo.vision import CLASSES, classifier, convolution, normalized, pictures

WEIGHTS = draw(4).uniform(0.5, 2, ROWS).astype("float32")


@family("Image segmentation with a U-Net-like architecture")
def unet():
    def build():
        keras.utils.set_random_seed(21)
        inputs = keras.Input((8, 8, 3))
        first = normalized(inputs, convolution(4))
        x = normalized(layers.MaxPooling2D(2)(first), convolution(6))
        x = layers.Concatenate()([layers.UpSampling2D(2)(x), first])
        x = normalized(x, layers.Conv2DTranspose(4, 3, padding="same", use_bias=False))
        outputs = layers.Conv2D(3, 3, padding="same", activation="softmax")(x)
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return model

    return build, batches(images(8, 3), labels(3, (8, 8)))


@family("Salient objects: a loss function that calls a loss object")
def nested_loss():
    def build():
        keras.utils.set_random_seed(22)
        inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(inputs)
        x = layers.Conv2D(4, 3, dilation_rate=2, padding="same", activation="relu")(x)
        x = layers.UpSampling2D(2, interpolation="bilinear")(x)
        model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
        crossentropy = keras.losses.BinaryCrossentropy()

        def both(y_true, y_pred):
            return crossentropy(y_true, y_pred) + ops.mean(ops.abs(y_true - y_pred))

        metrics = [
            keras.metrics.MeanAbsoluteError(name="mae"),
            keras.metrics.BinaryIoU([1], name="iou"),
        ]
        model.compile(keras.optimizers.SGD(0.05), both, metrics=metrics)
        return model

    return build, batches(images(8, 3), labels(2, (8, 8, 1)).astype("float32"))


@family("Object detection: a class and a box", fit=lambda: {"validation_data": detections()})
def detection():
    def build():
        keras.utils.set_random_seed(34)
        inputs = keras.Input((8, 8, 3), name="image")
        x = layers.MaxPooling2D(2)(normalized(inputs, convolution(6)))
        x = layers.Flatten()(x)
        kind = layers.Dense(CLASSES, activation="softmax", name="kind")(x)
        box = layers.Dense(4, activation="sigmoid", name="box")(x)
        model = keras.Model({"image": inputs}, {"kind": kind, "box": box})
        model.compile(
            optimizer=keras.optimizers.AdamW(3e-4),
            loss={"kind": "sparse_categorical_crossentropy", "box": keras.losses.Huber(0.5)},
            loss_weights={"kind": 1.0, "box": 5.0},
            metrics={"kind": ["accuracy"]},
            weighted_metrics={"box": ["mae"]},
        )
        return model

    return build, detections()


def detections():
    boxes = draw(6).uniform(size=(ROWS, 4)).astype("float32")
    weights = {"kind": WEIGHTS, "box": WEIGHTS[::-1].copy()}
    return batches({"image": images(8, 3)}, {"kind": labels(CLASSES), "box": boxes}, weights)


@family("Keypoint detection with transfer learning", core=True)
def keypoints():
    def build():
        keras.utils.set_random_seed(25)
        inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(6, 3, strides=2, activation="relu")(inputs)
        x = layers.Dropout(0.3)(x)
        x = layers.SeparableConv2D(8, 2, strides=1, activation="relu")(x)
        outputs = layers.SeparableConv2D(6, 2, strides=1, activation="sigmoid")(x)
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
        return model

    places = draw(7).uniform(size=(ROWS, 1, 1, 6)).astype("float32")
    return build, batches(images(8, 3), places)


def read(inputs):
    """Returns a distribution over five letters and the blank for each column of a picture."""
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.Reshape((8, 32))(layers.Permute((2, 1, 3))(x))
    return layers.Dense(6)(layers.LSTM(6, return_sequences=True)(x))


@family("Handwriting recognition: CTC as a compiled loss")
def ocr_with_ctc():
    def build():
        keras.utils.set_random_seed(26)
        inputs = keras.Input((8, 8, 1))
        model = keras.Model(inputs, read(inputs))
        model.compile(keras.optimizers.SGD(0.05), loss=keras.losses.CTC())
        return model

    return build, batches(images(), 1 + labels(5, (3,)))


class AddCTC(layers.Layer):
    """Adds the loss of what it is given and returns that, as a model for inference needs it."""

    def call(self, text, scores):
        letters = ops.full_like(text[:, 0], text.shape[1])
        columns = ops.full_like(text[:, 0], scores.shape[1])
        self.add_loss(ops.mean(ops.nn.ctc_loss(text, scores, letters, columns, mask_index=0)))
        return scores


@family("OCR model for reading captchas")
def ocr_with_add_loss():
    def build():
        keras.utils.set_random_seed(27)
        image = keras.Input((8, 8, 1), name="image")
        text = keras.Input((3,), name="text", dtype="int32")
        model = keras.Model([image, text], AddCTC()(text, read(image)))
        model.compile(keras.optimizers.SGD(0.05))
        return model

    return build, batches({"image": images(), "text": 1 + labels(5, (3,))})


class Orthogonal(keras.regularizers.Regularizer):
    """Keeps the matrices of a batch close to rotations."""

    def __init__(self, size, strength=0.01):
        self.size, self.strength = size, strength

    def __call__(self, x):
        x = ops.reshape(x, (-1, self.size, self.size))
        products = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return ops.sum(self.strength * ops.square(products - ops.eye(self.size)))


def over_points(x, width):
    x = normalized(x, layers.Dense(width, use_bias=False))
    return layers.GlobalMaxPooling1D()(x)


@family("Point cloud classification with PointNet")
def point_cloud():
    def build():
        keras.utils.set_random_seed(28)
        inputs = keras.Input((16, 3))
        rotation = layers.Dense(
            9,
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant([1, 0, 0, 0, 1, 0, 0, 0, 1]),
            activity_regularizer=Orthogonal(3),
        )(over_points(inputs, 6))
        x = layers.Dot(axes=(2, 1))([inputs, layers.Reshape((3, 3))(rotation)])
        outputs = layers.Dense(CLASSES)(layers.Dropout(0.3)(over_points(x, 8)))
        return classifier(inputs, outputs, keras.optimizers.SGD(0.05))

    points = draw(8).normal(size=(ROWS, 16, 3)).astype("float32")
    return build, batches(points, labels(CLASSES))


def embedder():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(6, use_bias=False),  # A bias would fall out of every difference.
        ]
    )


def distance(one, other):
    return ops.sqrt(ops.sum(ops.square(one - other), axis=1, keepdims=True) + 1e-7)


@family("Image similarity with a Siamese network and contrastive loss", core=True)
def siamese():
    def build():
        keras.utils.set_random_seed(29)
        embed = embedder()
        inputs = [keras.Input((8, 8, 1), name=name) for name in ("one", "other")]
        apart = layers.Lambda(lambda pair: distance(*pair))([embed(x) for x in inputs])
        apart = layers.BatchNormalization()(apart)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(apart))

        def contrastive(y_true, y_pred):
            near = ops.square(y_pred)
            far = ops.square(ops.maximum(1.0 - y_pred, 0))
            return ops.mean((1 - y_true) * near + y_true * far)

        model.compile(keras.optimizers.RMSprop(3e-4), contrastive, metrics=["accuracy"])
        return model

    pairs = (images(), images(seed=9))
    return build, batches(pairs, labels(2, (1,)).astype("float32"))


class Triplets(Tracked):
    """Trains on an anchor, a picture like it and one unlike it, without targets."""

    def __init__(self, embed, margin=0.5):
        super().__init__("loss")
        self.embed, self.margin = embed, margin

    def train_step(self, data):
        with tf.GradientTape() as tape:
            anchor, like, unlike = (self.embed(x) for x in data)
            near, far = (ops.sum((anchor - other) ** 2, axis=-1) for other in (like, unlike))
            loss = ops.mean(ops.maximum(near - far + self.margin, 0.0))
        descend(self, tape, loss)
        return self.logs(loss)


@family("Image similarity with a Siamese network and triplets")
def triplets():
    def build():
        keras.utils.set_random_seed(30)
        model = Triplets(embedder())
        model.compile(optimizer=keras.optimizers.SGD(0.05), weighted_metrics=[])
        return model

    return build, batches(images(), images(seed=9), images(seed=10))


def application(make, last, *, first=None, **options):
    """Returns a `build` of some blocks of an application, with random weights.

    The other blocks repeat them. Batch normalizations one after another let rounding grow a
    thousandfold, on one device too, so only float64 shows whether two trainings are the same.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        whole = make(weights=None, input_shape=(32, 32, 3), include_top=False, **options)
        x = layers.GlobalAveragePooling2D()(whole.get_layer(last).output)
        x = layers.Dense(CLASSES, activation="softmax")(layers.Dropout(0.1)(x))
        blocks = keras.Model(whole.get_layer(first).output if first else whole.input, x)
    finally:
        keras.config.set_dtype_policy(before)

    def build():
        keras.utils.set_random_seed(31)
        model = keras.models.clone_model(blocks)
        optimizer = keras.optimizers.SGD(1e-3, momentum=0.9, clipnorm=1.0)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


@family("Keras Applications: MobileNetV2")
def mobilenet_v2():
    """Its first block with a residual, on what the blocks before give."""
    make, first = keras.applications.MobileNetV2, "block_1_project_BN"
    return application(make, "block_2_add", first=first, alpha=0.35), pictures(8, 8)


@family("Keras Applications: MobileNet")
def mobilenet():
    make = keras.applications.MobileNet
    return application(make, "conv_pw_2_relu", alpha=0.25), pictures(32, 3)


@family("Transfer learning and fine-tuning")
def frozen_backbone():
    def build():
        keras.utils.set_random_seed(32)
        inputs = keras.Input((8, 8, 3))
        x = normalized(normalized(inputs, convolution(4)), convolution(8, strides=2))
        backbone = keras.Model(inputs, x, name="backbone")
        backbone.trainable = False
        x = backbone(layers.Rescaling(2.0, offset=-1)(inputs), training=False)
        x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
        return classifier(inputs, layers.Dense(CLASSES)(x), keras.optimizers.SGD(0.05))

    return build, pictures(channels=3)
