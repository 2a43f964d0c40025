"""Processes that have TensorFlow at once: forked from a server that has imported it.

The fork server is the standard library's (`multiprocessing.forkserver`). `process` starts one and
spawns from it, `server` is what runs inside it, and `provisioner` and `ipython_kernel` give
Jupyter its kernels from it.
"""
