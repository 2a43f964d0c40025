"""Grades folders of submissions: found, read, run, judged, and written into a gradebook."""
