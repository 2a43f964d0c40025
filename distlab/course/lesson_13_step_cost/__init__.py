"""Lesson 13: what a step costs, and why it takes longer."""
