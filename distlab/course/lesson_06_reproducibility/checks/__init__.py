"""Checks of lesson 06: two identical runs, a mask for each layer and replica, what can be equal.

They hold in a kernel where op determinism was switched on, which cannot be undone there: before
each run the global streams get a different seed, so what a learner did not seed differs from run
to run, and no operation is refused because a seed is missing.
"""

from distlab.course.lesson_06_reproducibility.checks.equal_runs import EQUAL_RUNS
from distlab.course.lesson_06_reproducibility.checks.expectations import EXPECTATIONS
from distlab.course.lesson_06_reproducibility.checks.replica_masks import REPLICA_MASKS

CHECKS = (EQUAL_RUNS, REPLICA_MASKS, EXPECTATIONS)
