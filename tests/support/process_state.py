"""What a process has only once, as plain text: taken before and after a call, and compared.

before = process_state()
call()
moved(before, process_state())      # {"random": ..., "warning filters": ...}
"""

import contextlib
import gc
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings

import keras
import matplotlib
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED
from matplotlib import pyplot
from tensorflow.python.eager import context
from tensorflow.python.framework import config as framework_config
from tensorflow_datasets.core.utils import tqdm_utils


def process_state():
    """Returns the states of this process, each under its name."""
    return {name: repr(value) for part in _PARTS for name, value in part().items()}


def moved(before, after):
    """Returns the names of the states that differ."""
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def _generators():
    drawn = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    tensorflow = getattr(context.context(), "_rng", None)
    return {
        "random": hash(random.getstate()),
        "numpy.random": hash(str(np.random.get_state(legacy=False))),
        "tensorflow's seed": context.global_seed(),
        "tensorflow's generator": tensorflow and hash(tensorflow.getstate()),
        "keras's seed": global_state.get_global_attribute(GLOBAL_RANDOM_SEED),
        "keras's generator": drawn and drawn.state.numpy().tolist(),
    }


def _settings():
    keras_settings = {
        "dtype policy": keras.config.dtype_policy().name,
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image data format": keras.config.image_data_format(),
        "traceback filtering": keras.config.is_traceback_filtering_enabled(),
        "interactive logging": keras.config.is_interactive_logging_enabled(),
        "distribution": keras.distribution.distribution(),
    }
    tensorflow_settings = {
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "eager functions": tf.config.functions_run_eagerly(),
        "soft placement": tf.config.get_soft_device_placement(),
        "jit": tf.config.optimizer.get_jit(),
        "optimizer options": tf.config.optimizer.get_experimental_options(),
        "determinism": framework_config.is_op_determinism_enabled(),
        "traceback filtering": tf.debugging.is_traceback_filtering_enabled(),
        "strategy": tf.distribute.has_strategy(),
        "threads": (
            tf.config.threading.get_inter_op_parallelism_threads(),
            tf.config.threading.get_intra_op_parallelism_threads(),
        ),
    }
    return {
        **{f"keras: {name}": value for name, value in keras_settings.items()},
        **{f"tensorflow: {name}": value for name, value in tensorflow_settings.items()},
        "tfds: progress bar": tqdm_utils._active,
        "numpy: errors": np.geterr(),
        "numpy: printing": sorted(np.get_printoptions().items(), key=str),
        "matplotlib: settings": hash(str(dict(matplotlib.rcParams))),
        "matplotlib: open figures": pyplot.get_fignums(),
        "matplotlib: interactive": pyplot.isinteractive(),
    }


def _logs():
    names = sorted(name for name in logging.root.manager.loggerDict if name in _known_loggers())
    loggers = [logging.root, *map(logging.getLogger, names)]
    levels = [(log.name, log.level, log.disabled, log.propagate) for log in loggers]
    listeners = [(log.name, len(log.handlers), len(log.filters)) for log in loggers]
    return {
        "warning filters": warnings.filters,
        "warning printer": warnings.showwarning,
        "log levels": [levels, logging.root.manager.disable],
        "log handlers and filters": listeners,
    }


_loggers = []


def _known_loggers():
    if not _loggers:
        _loggers.extend(logging.root.manager.loggerDict)
    return _loggers


def _python():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with contextlib.suppress(ValueError):  # only the main thread may ask
        handlers["wake up"] = signal.set_wakeup_fd(wake_up := signal.set_wakeup_fd(-1)) or wake_up
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environment": sorted(os.environ.items()),
        "working folder": os.getcwd(),  # noqa: PTH109
        "umask": mask,
        "signal handlers": handlers,
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "timers": [signal.getitimer(kind)[1] for kind in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "limits": [resource.getrlimit(kind) for kind in _LIMITS],
        "standard streams": [sys.stdin, sys.stdout, sys.stderr],
        "what is behind 1 and 2": [os.fstat(1)[:3], os.fstat(2)[:3]],
        "sys.path": sys.path,
        "sys.argv": sys.argv,
        "sys.meta_path": sys.meta_path,
        "hooks": [
            *(sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook),
            *(threading.excepthook, sys.gettrace(), sys.getprofile(), threading.gettrace()),
        ],
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "limits of python": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "locale": locale.setlocale(locale.LC_ALL),
        "socket timeout": socket.getdefaulttimeout(),
    }


_LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE)
_PARTS = (_generators, _settings, _logs, _python)
assert tfds  # imported so that its own import is no entry's
