"""Predictions: a question before an experiment, and what came out beside what was predicted.

    copies = dl.predict("How many copies?", ["one", "one for each replica"])
    ...                                                          # the experiment
    copies.reveal("one for each replica", {"one": "Then every replica would have to ask for it."})

    recap()                                                      # how many came true

In JupyterLab a question is a control, and the kernel keeps the answer; in `distlab lab` so does
the notebook, for the next kernel. Where no person can answer (a build, a test, a terminal)
questions and answers are text, the same bytes each time.
"""

from distlab.course.predictions.prediction import Prediction, predict, recap

__all__ = ["Prediction", "predict", "recap"]
