"""Data sets: the digits, always there, and any TFDS name where the network allows."""
