"""Checks of lesson 11: what a training's state is, to save it, to resume, and to be killed.

Some of the learner's functions run in processes that are killed in the middle of a write, or told
to leave; the last one runs on two workers, of which one is killed.
"""

from distlab.course.lesson_11_fault_tolerance.checks.checkpoints import NEWEST, SAVE
from distlab.course.lesson_11_fault_tolerance.checks.interval import INTERVAL
from distlab.course.lesson_11_fault_tolerance.checks.loops import LEAVE, RESUME
from distlab.course.lesson_11_fault_tolerance.checks.pipeline import RECOVERS
from distlab.course.lesson_11_fault_tolerance.checks.pipeline import REPORTS as REPORTS
from distlab.course.lesson_11_fault_tolerance.checks.state import STATE

CHECKS = (STATE, SAVE, NEWEST, RESUME, LEAVE, INTERVAL, RECOVERS)
