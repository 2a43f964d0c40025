"""Where Keras draws random numbers: the functions of its backend, and what fills a new variable."""

from __future__ import annotations

import keras
from keras.src import backend

RANDOM = backend.random  # a module: normal, uniform, dropout, ...
INITIALIZE = "_initialize_with_initializer"
# The class that has this method; it differs between versions.
VARIABLE = next(kind for kind in keras.Variable.__mro__ if INITIALIZE in vars(kind))
