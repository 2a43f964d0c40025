"""Autoencoders, adversarial networks and diffusion, mostly by a train_step of their own."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import ROWS, batches, draw, family, images, labels

LATENT = 4


def descend(model, tape, loss, optimizer=None):
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer = optimizer or model.optimizer
    optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))


class Tracked(keras.Model):
    """Logs the means of named numbers, as a step of one's own does."""

    def __init__(self, *names):
        super().__init__()
        self.trackers = [keras.metrics.Mean(name=name) for name in names]
        self.seed_generator = keras.random.SeedGenerator(7)

    @property
    def metrics(self):
        return self.trackers

    def logs(self, *values):
        for tracker, value in zip(self.trackers, values, strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}

    def normal(self, *shape):
        return keras.random.normal(shape, seed=self.seed_generator)

    def uniform(self, *shape):
        return keras.random.uniform(shape, seed=self.seed_generator)


def encoded(x):
    return layers.Flatten()(layers.Conv2D(4, 3, strides=2, activation="relu")(x))


def decoded(x):
    x = layers.Reshape((4, 4, 2))(layers.Dense(32, activation="relu")(x))
    return layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")(x)


def autoencoding(data):
    def build():
        keras.utils.set_random_seed(41)
        inputs = keras.Input((8, 8, 1))
        model = keras.Model(inputs, decoded(encoded(inputs)))
        model.compile(optimizer="adam", loss="binary_crossentropy")
        return model

    return build, data


@family("Building autoencoders in Keras")
def autoencoder():
    return autoencoding(batches(images(), images()))


@family("Convolutional autoencoder for image denoising", fit=lambda: {"validation_data": noisy()})
def denoising_autoencoder():
    return autoencoding(noisy())


def noisy():
    noise = draw(11).normal(scale=0.2, size=(ROWS, 8, 8, 1)).astype("float32")
    return batches((images() + noise).clip(0, 1), images())


def divergence(mean, log_variance):
    return -0.5 * ops.sum(1 + log_variance - mean**2 - ops.exp(log_variance), axis=1)


class Sampling(layers.Layer):
    """Draws a code for each example; adds the divergence of its distribution if told."""

    def __init__(self, adds_loss=False):
        super().__init__()
        self.adds_loss = adds_loss
        self.mean, self.log_variance = layers.Dense(LATENT), layers.Dense(LATENT)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, x):
        mean, log_variance = self.mean(x), self.log_variance(x)
        if self.adds_loss:
            self.add_loss(0.1 * ops.mean(divergence(mean, log_variance)))
        noise = keras.random.normal((ops.shape(x)[0], LATENT), seed=self.seed_generator)
        return mean, log_variance, mean + ops.exp(0.5 * log_variance) * noise


class VAE(Tracked):
    def __init__(self, encoder, decoder):
        super().__init__("loss", "reconstruction_loss", "kl_loss")
        self.encoder, self.decoder = encoder, decoder

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance, z = self.encoder(data)
            found = keras.losses.binary_crossentropy(data, self.decoder(z))
            reconstruction_loss = ops.mean(ops.sum(found, axis=(1, 2)))
            kl_loss = ops.mean(divergence(mean, log_variance))
            total_loss = reconstruction_loss + kl_loss
        descend(self, tape, total_loss)
        return self.logs(total_loss, reconstruction_loss, kl_loss)


@family("Variational autoencoder")
def vae():
    def build():
        keras.utils.set_random_seed(42)
        inputs, code = keras.Input((8, 8, 1)), keras.Input((LATENT,))
        encoder = keras.Model(inputs, Sampling()(encoded(inputs)))
        model = VAE(encoder, keras.Model(code, decoded(code)))
        model.compile(optimizer=keras.optimizers.Adam())
        return model

    return build, batches(images())


@family("Making new layers and models via subclassing: a VAE by add_loss", core=True)
def vae_by_add_loss():
    def build():
        keras.utils.set_random_seed(43)
        inputs = keras.Input((8, 8, 1))
        model = keras.Model(inputs, decoded(Sampling(adds_loss=True)(encoded(inputs))[2]))
        model.compile(keras.optimizers.SGD(0.05), loss=keras.losses.MeanSquaredError())
        return model

    return build, batches(images(), images())


def generator(width=LATENT):
    inputs = keras.Input((width,))
    x = layers.Reshape((4, 4, 2))(layers.Dense(32, use_bias=False)(inputs))
    x = layers.LeakyReLU(negative_slope=0.2)(layers.BatchNormalization()(x))
    paint = layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid")
    return keras.Model(inputs, paint(x))


def discriminator(channels=1, **options):
    inputs = keras.Input((8, 8, channels))
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="leaky_relu")(inputs)
    x = layers.Dropout(0.2)(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(1, **options)(x))


class GAN(Tracked):
    """Two networks, each with its optimizer; with `classes` both are told the class."""

    def __init__(self, generator, discriminator, classes=0):
        super().__init__("d_loss", "g_loss")
        self.generator, self.discriminator, self.classes = generator, discriminator, classes

    def compile(self, d_optimizer, g_optimizer, loss_fn=None):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, data):
        real, kinds = data if self.classes else (data, None)
        count = ops.shape(real)[0]
        kinds = ops.one_hot(kinds, self.classes) if self.classes else ops.zeros((count, 0))
        planes = ops.broadcast_to(kinds[:, None, None, :], (count, 8, 8, self.classes))

        def judged(pictures):
            return self.discriminator(ops.concatenate([pictures, planes], -1), training=True)

        def generated():
            codes = ops.concatenate([self.normal(count, LATENT), kinds], axis=1)
            return self.generator(codes, training=True)

        drawn = 0.05 * self.uniform(count, 1)
        with tf.GradientTape() as tape:
            scores = ops.concatenate([judged(generated()), judged(real)], axis=0)
            d_loss = self.loss_fn(ops.concatenate([1 - drawn, drawn], axis=0), scores)
        descend(self.discriminator, tape, d_loss, self.d_optimizer)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((count, 1)), judged(generated()))
        descend(self.generator, tape, g_loss, self.g_optimizer)
        return self.logs(d_loss, g_loss)


def adversaries(model, optimizer, loss=None):
    model.compile(optimizer(), optimizer(), loss)
    return model


@family("DCGAN to generate face images")
def dcgan():
    def build():
        keras.utils.set_random_seed(44)
        model = GAN(generator(), discriminator())
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        return adversaries(model, lambda: keras.optimizers.Adam(1e-4), loss)

    return build, batches(images())


@family("Conditional GAN")
def conditional_gan():
    def build():
        keras.utils.set_random_seed(45)
        model = GAN(generator(LATENT + 3), discriminator(1 + 3), classes=3)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        return adversaries(model, lambda: keras.optimizers.SGD(0.05), loss)

    return build, batches(images(), labels(3))


class WassersteinGAN(GAN):
    """Trains the critic twice a step."""

    def penalty(self, real, fake):
        """Returns how far the critic's gradients between both are from a length of one."""
        between = real + self.uniform(ops.shape(real)[0], 1, 1, 1) * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.discriminator(between, training=True)
        gradients = tape.gradient(scores, [between])[0]
        norm = ops.sqrt(ops.sum(ops.square(gradients), axis=[1, 2, 3]) + 1e-12)
        return ops.mean((norm - 1.0) ** 2)

    def train_step(self, real):
        count = ops.shape(real)[0]
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(self.normal(count, LATENT), training=True)
                cost = ops.mean(self.discriminator(fake)) - ops.mean(self.discriminator(real))
                d_loss = cost + 10 * self.penalty(real, fake)
            descend(self.discriminator, tape, d_loss, self.d_optimizer)
        with tf.GradientTape() as tape:
            fake = self.generator(self.normal(count, LATENT), training=True)
            g_loss = -ops.mean(self.discriminator(fake))
        descend(self.generator, tape, g_loss, self.g_optimizer)
        return self.logs(d_loss, g_loss)


@family("WGAN-GP overriding Model.train_step")
def wgan_gp():
    def build():
        keras.utils.set_random_seed(46)
        # A bias of the critic's last layer would fall out of the difference.
        model = WassersteinGAN(generator(), discriminator(use_bias=False))
        return adversaries(model, lambda: keras.optimizers.RMSprop(2e-4))

    return build, batches(images())


class Diffusion(Tracked):
    """Finds the noise in pictures; an average of its weights is for drawing new ones."""

    def __init__(self, network, ema_network, normalizer):
        super().__init__("loss")
        self.network, self.ema_network, self.normalizer = network, ema_network, normalizer
        ema_network.set_weights(network.get_weights())

    def train_step(self, data):
        count = ops.shape(data)[0]
        noises = self.normal(count, 8, 8, 1)
        angles = 0.3 + 1.2 * self.uniform(count, 1, 1, 1)
        noisy = ops.cos(angles) * self.normalizer(data) + ops.sin(angles) * noises
        with tf.GradientTape() as tape:
            found = self.network([noisy, ops.sin(angles) ** 2], training=True)
            loss = self.loss(noises, found)
        descend(self.network, tape, loss, self.optimizer)
        for weight, average in zip(self.network.weights, self.ema_network.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return self.logs(loss)


def denoiser():
    noisy, variance = keras.Input((8, 8, 1)), keras.Input((1, 1, 1))
    waves = layers.Lambda(lambda v: ops.concatenate([ops.sin(3 * v), ops.cos(3 * v)], -1))
    x = layers.Concatenate()([noisy, layers.UpSampling2D(8)(waves(variance))])
    y = layers.BatchNormalization(center=False, scale=False)(x)
    y = layers.Conv2D(6, 3, padding="same", activation="swish")(y)
    x = layers.Add()([layers.Conv2D(6, 1)(x), y])
    return keras.Model([noisy, variance], layers.Conv2D(1, 1)(x))


@family("Denoising diffusion implicit models", core=True)
def diffusion():
    def build():
        keras.utils.set_random_seed(47)
        normalizer = layers.Normalization()
        normalizer.adapt(images())
        model = Diffusion(denoiser(), denoiser(), normalizer)
        model.compile(keras.optimizers.AdamW(1e-3), loss=keras.losses.MeanAbsoluteError())
        return model

    return build, batches(images())
