"""Runs a learner's own functions on replicas, workers or a new process; holds no check."""
