"""Checks of lesson 14: layers to unfreeze, rates for fine-tuning, and a leak."""

from distlab.checks.lesson_14_transfer_learning.layer_rates import RATES
from distlab.checks.lesson_14_transfer_learning.leaks import LEAK
from distlab.checks.lesson_14_transfer_learning.unfreezing import UNFREEZE

CHECKS = (UNFREEZE, RATES, LEAK)
