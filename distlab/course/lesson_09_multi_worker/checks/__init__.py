"""Checks of lesson 09: describe a cluster, share the data, train, save, and diagnose a hang.

The learner's functions run on two real workers, under a time limit.
"""

from distlab.course.lesson_09_multi_worker.checks.collectives import DIAGNOSE, END_OF_EPOCH, SAVE
from distlab.course.lesson_09_multi_worker.checks.training import MY_PART, TF_CONFIGS, TRAIN
from distlab.course.lesson_09_multi_worker.checks.training import REPORTS as REPORTS

CHECKS = (TF_CONFIGS, MY_PART, TRAIN, SAVE, DIAGNOSE, END_OF_EPOCH)
