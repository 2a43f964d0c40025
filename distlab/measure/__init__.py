"""Measures what training costs: time, bytes, and what a step waits for."""
