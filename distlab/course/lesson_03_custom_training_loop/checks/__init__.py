"""Checks of lesson 03: scale the loss, take an exact step, compile the loop, write it whole.

All are graded by gradients and weights under SGD: Adam would hide a constant factor.
"""

from distlab.course.lesson_03_custom_training_loop.checks.compiled_loop import CALLS
from distlab.course.lesson_03_custom_training_loop.checks.exact_steps import EXACT
from distlab.course.lesson_03_custom_training_loop.checks.scaled_losses import REPAIR
from distlab.course.lesson_03_custom_training_loop.checks.whole_loop import TRAIN

CHECKS = (REPAIR, EXACT, CALLS, TRAIN)
