"""What the sources and the notebooks of the course must keep to."""
