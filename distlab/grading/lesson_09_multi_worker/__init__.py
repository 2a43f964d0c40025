"""Checks of lesson 09: describe a cluster, share the data, train, save, and diagnose a hang.

The learner's functions run on two real workers, under a time limit.
"""

from distlab.grading.lesson_09_multi_worker.configs_and_shards import CONFIG_AND_SHARD_CHECKS
from distlab.grading.lesson_09_multi_worker.reports import REPORTS as REPORTS
from distlab.grading.lesson_09_multi_worker.saving_and_hangs import SAVE_AND_HANG_CHECKS
from distlab.grading.lesson_09_multi_worker.training_loop import LOOP_CHECKS

CHECKS = (*CONFIG_AND_SHARD_CHECKS, *LOOP_CHECKS, *SAVE_AND_HANG_CHECKS)
