"""Checks of lesson 14: layers to unfreeze, what a step sends, and a leak."""

from distlab.course.lesson_14_transfer_learning.checks.leaks import LEAK
from distlab.course.lesson_14_transfer_learning.checks.numbers_sent import NUMBERS
from distlab.course.lesson_14_transfer_learning.checks.unfreezing import UNFREEZE

CHECKS = (UNFREEZE, NUMBERS, LEAK)
