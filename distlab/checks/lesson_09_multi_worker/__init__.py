"""Checks of lesson 09: describe a cluster, share the data, train, save, and diagnose a hang.

The learner's functions run on two real workers, under a time limit.
"""

from distlab.checks.lesson_09_multi_worker.collectives import DIAGNOSE, END_OF_EPOCH, SAVE
from distlab.checks.lesson_09_multi_worker.configs import TF_CONFIGS
from distlab.checks.lesson_09_multi_worker.parts import MY_PART
from distlab.checks.lesson_09_multi_worker.training_loop import REPORTS as REPORTS
from distlab.checks.lesson_09_multi_worker.training_loop import TRAIN

CHECKS = (TF_CONFIGS, MY_PART, TRAIN, SAVE, DIAGNOSE, END_OF_EPOCH)
