"""Checks of lesson 11: what a training's state is, to save it, to resume, and to be killed.

Some of the learner's functions run in processes that are killed in the middle of a write, or told
to leave; the last one runs on two workers, of which one is killed.
"""

from distlab.course.lesson_11_fault_tolerance.checks.checkpoints import NEWEST, SAVE, STATE
from distlab.course.lesson_11_fault_tolerance.checks.loops import INTERVAL, LEAVE, RESUME
from distlab.course.lesson_11_fault_tolerance.checks.recovery import RECOVERS
from distlab.course.lesson_11_fault_tolerance.checks.recovery import REPORTS as REPORTS

CHECKS = (STATE, SAVE, NEWEST, RESUME, LEAVE, INTERVAL, RECOVERS)
