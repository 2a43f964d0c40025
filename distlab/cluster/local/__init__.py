"""A cluster on this machine whose tasks are Jupyter kernels, so that a notebook can talk to it."""

from distlab.environment import require_modules

require_modules("run functions in other processes", "cloudpickle", "jupyter_client", "zmq")
