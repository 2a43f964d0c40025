"""Measures steps and collectives, and predicts what training on more replicas would cost."""
