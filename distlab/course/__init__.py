"""The course: what a cell of a notebook calls, and a folder for each lesson."""
