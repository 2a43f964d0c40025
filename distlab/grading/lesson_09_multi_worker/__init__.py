"""Checks of lesson 09: describe a cluster, share the data, train, save, and diagnose a hang.

The learner's functions run on two real workers, under a time limit.
"""

from distlab.grading.lesson_09_multi_worker.configs import CONFIG_CHECKS
from distlab.grading.lesson_09_multi_worker.hangs import HANG_CHECKS
from distlab.grading.lesson_09_multi_worker.parts import PART_CHECKS
from distlab.grading.lesson_09_multi_worker.reports import REPORTS as REPORTS
from distlab.grading.lesson_09_multi_worker.saving import SAVE_CHECKS
from distlab.grading.lesson_09_multi_worker.training_loop import LOOP_CHECKS

CHECKS = (*CONFIG_CHECKS, *PART_CHECKS, *LOOP_CHECKS, *SAVE_CHECKS, *HANG_CHECKS)
