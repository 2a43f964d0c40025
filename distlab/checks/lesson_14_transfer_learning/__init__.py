"""Checks of lesson 14: layers to unfreeze, what a step sends, and a leak."""

from distlab.checks.lesson_14_transfer_learning.leaks import LEAK
from distlab.checks.lesson_14_transfer_learning.numbers_sent import NUMBERS
from distlab.checks.lesson_14_transfer_learning.unfreezing import UNFREEZE

CHECKS = (UNFREEZE, NUMBERS, LEAK)
