"""Checks of lesson 01: the scope, unequal shares, a variable made in a step, drifting copies."""

from distlab.grading.lesson_01_mirrored_strategy.counting import COUNT
from distlab.grading.lesson_01_mirrored_strategy.drifting import DRIFT
from distlab.grading.lesson_01_mirrored_strategy.scope_and_gradients import COMBINE, SCOPE

CHECKS = (SCOPE, COMBINE, COUNT, DRIFT)
