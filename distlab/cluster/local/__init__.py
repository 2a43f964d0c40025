"""A cluster on this machine whose tasks are Jupyter kernels, so that a notebook can talk to it."""
