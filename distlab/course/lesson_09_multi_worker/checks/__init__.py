"""Checks of lesson 09: describe a cluster, train, diagnose and repair a hang, and save.

The learner's functions run on two real workers, under a time limit.
"""

from distlab.course.lesson_09_multi_worker.checks.collectives import DIAGNOSE, END_OF_EPOCH, SAVE
from distlab.course.lesson_09_multi_worker.checks.training import REPORTS as REPORTS
from distlab.course.lesson_09_multi_worker.checks.training import TF_CONFIGS, TRAIN

CHECKS = (TF_CONFIGS, TRAIN, DIAGNOSE, END_OF_EPOCH, SAVE)
