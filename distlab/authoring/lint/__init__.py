"""The rules that the course's sources and notebooks must keep, and their tests."""
