"""Checks of lesson 11: what a training's state is, to save it, to resume, and to be killed.

Some of the learner's functions run in processes that are killed in the middle of a write, or told
to leave; the last one runs on two workers, of which one is killed.
"""

from distlab.checks.lesson_11_fault_tolerance.checkpoints import NEWEST, SAVE
from distlab.checks.lesson_11_fault_tolerance.interval import INTERVAL
from distlab.checks.lesson_11_fault_tolerance.loops import LEAVE, RESUME
from distlab.checks.lesson_11_fault_tolerance.pipeline import RECOVERS
from distlab.checks.lesson_11_fault_tolerance.pipeline import REPORTS as REPORTS
from distlab.checks.lesson_11_fault_tolerance.state import STATE

CHECKS = (STATE, SAVE, NEWEST, RESUME, LEAVE, INTERVAL, RECOVERS)
