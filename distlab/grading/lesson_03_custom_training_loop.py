"""Checks of lesson 03: scale the loss, take an exact step, compile the loop, write it whole.

All are graded by gradients and weights under SGD: Adam would hide a constant factor.
"""

from distlab.grading.loss_scaling_03 import LOSS_CHECKS
from distlab.grading.training_loop_03 import LOOP_CHECKS

CHECKS = (*LOSS_CHECKS, *LOOP_CHECKS)
