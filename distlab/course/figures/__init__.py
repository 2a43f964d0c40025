"""Figures that several lessons draw, or a lesson and a command: a function each."""
