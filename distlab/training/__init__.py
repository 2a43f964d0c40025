"""Training: the replica step, the functions that Keras's own `fit` runs, and `distribute`."""
