"""Checks of lesson 03: scale the loss, take an exact step, compile the loop, write it whole.

All are graded by gradients and weights under SGD: Adam would hide a constant factor.
"""

from distlab.course.lesson_03_custom_training_loop.checks.loops import CALLS, TRAIN
from distlab.course.lesson_03_custom_training_loop.checks.losses import EXACT, REPAIR

CHECKS = (REPAIR, EXACT, CALLS, TRAIN)
