"""Counts and measures what distributed training costs: bytes, steps and time."""
