"""Steps of one's own: the guide to customizing fit, distillation, SimSiam, losses of a batch."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import ROWS, batches, draw, family, labels, vectors
from tests.zoo.generative import Tracked, descend
from tests.zoo.vision import CLASSES

WEIGHTS = draw(12).uniform(0.5, 2, ROWS).astype("float32")


def stepping(kind, *, outputs=1, metrics=None, loss="mse"):
    """Returns a `build` of two dense layers in a class with a step of its own."""

    def build():
        keras.utils.set_random_seed(51)
        inputs = keras.Input((8,))
        x = layers.Dense(10, activation="relu")(inputs)
        model = kind(inputs, layers.Dense(outputs)(x))
        model.compile(keras.optimizers.SGD(0.05), loss=loss, metrics=metrics)
        return model

    return build


def regression(*weights):
    return batches(vectors(), vectors(1, seed=13), *weights)


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = self.changed(tape.gradient(loss, self.trainable_variables))
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.logged(loss, x, y, y_pred, sample_weight)

    def logged(self, loss, x, y, y_pred, sample_weight):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def changed(self, gradients):
        return gradients


@family("Customizing fit: a first simple example", core=True)
def own_train_step():
    return stepping(OwnStep, metrics=["mae"]), regression()


class ClipsByHand(OwnStep):
    def changed(self, gradients):
        return tf.clip_by_global_norm(gradients, 0.1)[0]


@family("Customizing fit: gradients clipped by hand")
def clipping_by_hand():
    return stepping(ClipsByHand), regression()


class StepWithoutLoss(keras.Model):
    """Takes nothing from `compile` but the optimizer."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        descend(self, tape, loss)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}


@family("Customizing fit: going lower level")
def step_without_compiled_loss():
    return stepping(StepWithoutLoss, loss=None), regression()


class RawStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
        descend(self, tape, loss)
        return {"loss": loss, "mae": ops.mean(ops.abs(y - y_pred))}


@family("Customizing fit: a step that returns raw tensors")
def raw_tensors():
    return stepping(RawStep, loss=None), regression()


class WeightedSteps(OwnStep):
    """Evaluates by a step of its own, too."""

    def test_step(self, data):
        x, y, sample_weight = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        return self.logged(loss, x, y, y_pred, sample_weight)


class StepWithComputeMetrics(OwnStep):
    """Leaves the metrics to Keras; the loss is logged under a name of its own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cost = keras.metrics.Mean(name="cost")

    def logged(self, loss, x, y, y_pred, sample_weight):
        self.cost.update_state(loss, sample_weight=ops.shape(x)[0])
        logs = self.compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "cost": self.cost.result()}


@family("Customizing fit: compute_loss and compute_metrics")
def step_with_compute_metrics():
    return stepping(StepWithComputeMetrics, metrics=["mae"]), regression(WEIGHTS)


@family(
    "Customizing fit: sample weights and an evaluation step",
    fit=lambda: {"validation_data": regression(WEIGHTS)},
)
def weighted_steps():
    return stepping(WeightedSteps, metrics=["mae"]), regression(WEIGHTS)


class TwoHalves(StepWithoutLoss):
    """Adds up the gradients of the even and the odd examples, then applies them."""

    def train_step(self, data):
        x, y = data
        total = [ops.zeros(weight.shape) for weight in self.trainable_weights]
        loss = 0.0
        for half in (slice(0, None, 2), slice(1, None, 2)):
            with tf.GradientTape() as tape:
                errors = ops.sum(ops.square(y[half] - self(x[half], training=True)))
                part = errors / ops.cast(ops.shape(x)[0], "float32")
            gradients = tape.gradient(part, self.trainable_weights)
            total = [old + new for old, new in zip(total, gradients, strict=True)]
            loss += part
        self.loss_tracker.update_state(loss)
        self.optimizer.apply_gradients(zip(total, self.trainable_weights, strict=True))
        return {"loss": self.loss_tracker.result()}


@family("Gradients of two sub-steps added up by hand", core=True)
def accumulation_by_hand():
    return stepping(TwoHalves, loss=None), regression()


class Adversarial(OwnStep):
    """Trains on what the gradient with respect to the inputs makes worse."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        worse = x + 0.1 * ops.sign(tape.gradient(loss, x))
        return super().train_step((worse, y))


@family("Adversarial training by the signs of the inputs' gradients", core=True)
def adversarial_training():
    return stepping(Adversarial, metrics=["mae"]), regression()


class Distiller(keras.Model):
    """A student learns from the labels and from what a frozen teacher says."""

    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher
        teacher.trainable = False

    def compile(self, *arguments, student_loss_fn, distillation_loss_fn, alpha=0.1, **options):
        super().compile(*arguments, **options)
        self.student_loss_fn, self.distillation_loss_fn = student_loss_fn, distillation_loss_fn
        self.alpha = alpha

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **_):
        said, repeated = (ops.softmax(one / 3) for one in (self.teacher(x), y_pred))
        distillation_loss = self.distillation_loss_fn(said, repeated) * 3**2
        return self.alpha * self.student_loss_fn(y, y_pred) + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


@family("Knowledge distillation")
def distillation():
    def build():
        keras.utils.set_random_seed(53)
        teacher, student = (
            keras.Sequential([keras.Input((8,)), layers.Dense(n, "relu"), layers.Dense(CLASSES)])
            for n in (24, 6)
        )
        model = Distiller(student, teacher)
        model.compile(
            keras.optimizers.Adam(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
            student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            distillation_loss_fn=keras.losses.KLDivergence(),
        )
        return model

    return build, batches(vectors(), labels(CLASSES))


class SimSiam(Tracked):
    """Predicts one noisy view of an example from another, without negative examples."""

    def __init__(self, encoder, predictor):
        super().__init__("loss")
        self.encoder, self.predictor = encoder, predictor

    def train_step(self, data):
        with tf.GradientTape() as tape:
            shape = (ops.shape(data)[0], 8)
            views = [self.encoder(data + 0.1 * self.normal(*shape)) for _ in range(2)]
            found = [self.predictor(view) for view in views]
            one, other = (
                ops.sum(ops.normalize(a, axis=1) * ops.normalize(ops.stop_gradient(b), axis=1), 1)
                for a, b in zip(found, views[::-1], strict=True)
            )
            loss = -ops.mean(one) / 2 - ops.mean(other) / 2
        descend(self, tape, loss)
        return self.logs(loss)


def projection(*widths):
    hidden = []
    for width in widths[:-1]:
        hidden += [layers.Dense(width, use_bias=False), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(widths[-1])])


@family("Self-supervised contrastive learning with SimSiam")
def simsiam():
    def build():
        keras.utils.set_random_seed(54)
        model = SimSiam(projection(12, 12, 8), projection(6, 8))
        rate = keras.optimizers.schedules.CosineDecay(0.03, 6)
        model.compile(keras.optimizers.SGD(rate, momentum=0.6))
        return model

    return build, batches(vectors())


def supervised_contrastive(y_true, features):
    """Draws examples of one class together and those of others apart."""
    features = ops.normalize(features, axis=1)
    scores = ops.matmul(features, ops.transpose(features)) / 0.5
    same = ops.cast(ops.equal(y_true[:, None], y_true[None, :]), "float32")
    likely = ops.sum(same * ops.log_softmax(scores, axis=1), axis=1) / ops.sum(same, axis=1)
    return -ops.mean(likely)


@family("Supervised contrastive learning", core=True)
def contrastive_learning():
    build = stepping(keras.Model, outputs=6, loss=supervised_contrastive)
    return build, batches(vectors(), labels(CLASSES))
