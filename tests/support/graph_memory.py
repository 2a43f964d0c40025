"""Keeps a test process small, though TensorFlow keeps graphs until the process ends.

TensorFlow registers every `tf.custom_gradient` by a name of its own, and with it the graph around
it: a test process grew to 10 GB. A gradient is asked for while its graph is traced, so after a
test no entry is needed.
"""

import gc

MOST = 300


def forget_graphs(*, most: int = 0) -> None:
    """Lets go of the graphs of custom gradients.

    Args:
        most: How many custom gradients may stay: with fewer, nothing is done.
    """
    from tensorflow.python.framework import ops

    kept = ops.gradient_registry._registry
    names = [name for name in kept if name.startswith("CustomGradient-")]
    if len(names) > most:
        for name in names:
            del kept[name]
        gc.collect()
