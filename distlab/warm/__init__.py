"""The warm process: pay for the imports once, fork every task from it, and keep them all.

    from distlab.warm.process import WarmProcess
    with WarmProcess() as warm:                          # imports TensorFlow, uses none of it
        task = warm.spawn(["-m", "my_module", "--epochs", "3"])
        task.wait(timeout_secs=60)

`process` starts one and `client` asks one for tasks; `server` is the process itself, `task` makes
a fork look like a fresh process, and `provisioner` and `kernel` give Jupyter its kernels from it.
"""
