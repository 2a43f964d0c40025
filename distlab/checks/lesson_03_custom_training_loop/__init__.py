"""Checks of lesson 03: scale the loss, take an exact step, compile the loop, write it whole.

All are graded by gradients and weights under SGD: Adam would hide a constant factor.
"""

from distlab.checks.lesson_03_custom_training_loop.compiled_loop import CALLS
from distlab.checks.lesson_03_custom_training_loop.exact_steps import EXACT
from distlab.checks.lesson_03_custom_training_loop.scaled_losses import REPAIR
from distlab.checks.lesson_03_custom_training_loop.whole_loop import TRAIN

CHECKS = (REPAIR, EXACT, CALLS, TRAIN)
