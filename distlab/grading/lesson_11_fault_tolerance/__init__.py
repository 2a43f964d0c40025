"""Checks of lesson 11: what a training's state is, to save it, to go on, and to be killed.

Some of the learner's functions run in processes that are killed in the middle of a write, or told
to leave; the last one runs on two workers, of which one is killed.
"""

from distlab.grading.lesson_11_fault_tolerance.files import FILE_CHECKS
from distlab.grading.lesson_11_fault_tolerance.interval import INTERVAL_CHECKS
from distlab.grading.lesson_11_fault_tolerance.leaving import LEAVE_CHECKS
from distlab.grading.lesson_11_fault_tolerance.loops import LOOP_CHECKS
from distlab.grading.lesson_11_fault_tolerance.newest import NEWEST_CHECKS
from distlab.grading.lesson_11_fault_tolerance.pipeline import PIPELINE_CHECKS
from distlab.grading.lesson_11_fault_tolerance.reports import REPORTS as REPORTS
from distlab.grading.lesson_11_fault_tolerance.state import STATE_CHECKS

CHECKS = (
    *STATE_CHECKS,
    *FILE_CHECKS,
    *NEWEST_CHECKS,
    *LOOP_CHECKS,
    *LEAVE_CHECKS,
    *INTERVAL_CHECKS,
    *PIPELINE_CHECKS,
)
