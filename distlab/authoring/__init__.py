"""Notebooks from their plain-text sources: built, checked for drift, linted.

    python -m distlab.authoring build            # what `make notebooks` runs
    python -m distlab.authoring check            # is every notebook what its source builds?
    python -m distlab.authoring lint

A lesson is `lesson.py` in `distlab/course/lesson_NN_slug/`, its exercise `exercise.py` beside it,
both in jupytext's percent format. The notebooks are generated, so they are never edited by hand.
"""
