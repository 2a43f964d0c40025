"""Checks of lesson 07: the head, the loss scale, a loop, a memory budget, a choice.

What is trained is trained with SGD: Adam would hide a gradient that was never unscaled.
"""

from distlab.course.lesson_07_mixed_precision.checks.loss_scale import REPORTS as REPORTS
from distlab.course.lesson_07_mixed_precision.checks.loss_scale import TRAIN, UPDATE
from distlab.course.lesson_07_mixed_precision.checks.policies import CHOICE, HEAD, MEMORY

CHECKS = (HEAD, UPDATE, TRAIN, MEMORY, CHOICE)
