"""Checks of lesson 03: scale the loss, take an exact step, compile the loop, write it whole.

All are graded by gradients and weights under SGD: Adam would hide a constant factor.
"""

from distlab.grading.lesson_03_custom_training_loop.loss_scaling import LOSS_CHECKS
from distlab.grading.lesson_03_custom_training_loop.training_loop import LOOP_CHECKS

CHECKS = (*LOSS_CHECKS, *LOOP_CHECKS)
