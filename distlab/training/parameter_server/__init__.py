"""Training on parameter servers by Keras's own `fit`: what the coordinator and the workers do.

The coordinator (chief) runs `fit`. Each of its steps is sent to a worker, which reads the weights
from the parameter servers, and adds its update to them there without waiting for other workers.
"""
