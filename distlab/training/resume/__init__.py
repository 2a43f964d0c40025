"""`Resume`: checkpoints of a training, written while it runs, and going on from the newest."""
