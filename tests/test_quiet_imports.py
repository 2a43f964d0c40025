"""No red lines while TensorFlow loads, in a fresh kernel of `distlab lab` with a cold cache."""

from __future__ import annotations

import logging
import os
import time

from jupyter_client.manager import start_new_kernel

from distlab import quiet_imports
from distlab.course.lab import lab_environ
from tests.support.limits import HANG_SECS

# The reader's own imports come before any helper of distlab.
CELLS = [
    "import keras",
    "import tensorflow as tf; strategy = tf.distribute.MirroredStrategy(['CPU:0'])",
    "assert 'distlab' not in dir(); import distlab as dl; dl.show('replicas', 1)",
    "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()",
    "list(tf.data.Dataset.range(2))",
    # Holds that a red line would be seen, from C++ as well.
    "import os; os.write(2, b'red')",
]


def test_a_notebook_that_imports_tensorflow_first_shows_no_red_line(tmp_path):
    # ipykernel would not show what C++ writes to stderr if it took itself for a test.
    left_out = {"PYTEST_CURRENT_TEST", "TF_CPP_MIN_LOG_LEVEL", "PYTHONSTARTUP"}
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    cold = {name: str(tmp_path / name) for name in ("MPLCONFIGDIR", "KERAS_HOME", "IPYTHONDIR")}
    manager, client = start_new_kernel(env=lab_environ(environ) | cold)
    try:
        red = [stderr_of(client, cell) for cell in CELLS]
        deadline = time.monotonic() + 60
        while not red[-1] and time.monotonic() < deadline:  # what C++ writes comes by itself
            red[-1] = stderr_of(client, "import time; time.sleep(0.1)")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert red == [*[""] * (len(CELLS) - 1), "red"]


def stderr_of(client, code):
    red = []

    def take(message):
        if message["msg_type"] == "stream" and message["content"]["name"] == "stderr":
            red.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=take, timeout=HANG_SECS)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(red)


def test_only_the_word_of_the_font_cache_is_held_back(caplog):
    logger = logging.getLogger("matplotlib.font_manager")
    before = list(logger.filters)
    try:
        quiet_imports._hush_font_cache(None)
        logger.warning("Matplotlib is building the font cache; this may take a moment.")
        logger.warning("findfont: Font family 'x' not found.")
    finally:
        logger.filters[:] = before
    assert caplog.messages == ["findfont: Font family 'x' not found."]
