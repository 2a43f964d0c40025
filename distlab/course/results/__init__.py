"""Results of a learner's function: plain values, or an error at the learner's own lines."""
