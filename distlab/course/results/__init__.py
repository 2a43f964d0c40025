"""What a learner's function gave: plain values, or an error at the learner's own lines."""
