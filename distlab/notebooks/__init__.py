"""Notebooks from their plain-text sources: built, checked for drift, linted.

    python -m distlab.notebooks build            # what `make notebooks` runs
    python -m distlab.notebooks check            # is every notebook what its source builds?
    python -m distlab.notebooks lint

A lesson is `lessons/NN_slug/lesson.py`, its exercise `lessons/NN_slug/exercise.py`, both in
jupytext's percent format. The notebooks are generated, so they are never edited by hand.
"""
