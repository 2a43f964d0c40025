"""The process of a `LocalCluster`'s task: sets up devices and server, then a Jupyter kernel.

    python -m distlab.cluster.local.task_process --stacks FILE --devices 2 [--server] -- ARGUMENT...

The arguments are those of the kernel; TF_CONFIG says which task it is.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
from pathlib import Path
from typing import Any

# A server that nothing refers to would be ended.
_servers: list[Any] = []


def main() -> None:
    """Prepares TensorFlow as the cluster asks, then runs the kernel until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stacks", type=Path, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("kernel", nargs="*")
    options = parser.parse_args()
    # First of all, and needing no GIL: a task that hangs can be asked where at any time.
    faulthandler.register(signal.SIGUSR1, file=options.stacks.open("w"), all_threads=True)

    from distlab.environment import load_tensorflow, without_noise

    load_tensorflow()
    from distlab.cluster import heartbeat
    from distlab.devices import split_devices

    with without_noise():
        split_devices(options.devices)
    heartbeat.lengthen()
    if options.server:
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        _servers.append(server)
    from distlab.cluster.local.begin_kernel import begin_kernel
    from distlab.cluster.warm import ipython_kernel

    arguments = [*options.kernel, f"--IPKernelApp.parent_handle={os.getppid()}"]
    ipython_kernel.main(arguments, kernel_class=begin_kernel())


if __name__ == "__main__":
    main()
