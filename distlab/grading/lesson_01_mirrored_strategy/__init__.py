"""Checks of lesson 01: the scope, unequal shares, a variable made in a step, drifting copies."""

from distlab.grading.lesson_01_mirrored_strategy.scope_and_gradients import COMBINE, SCOPE
from distlab.grading.lesson_01_mirrored_strategy.variables import COUNT, DRIFT

CHECKS = (SCOPE, COMBINE, COUNT, DRIFT)
