"""Checks of lesson 01: the scope, unequal shares, a variable made in a step, drifting copies."""

from distlab.course.lesson_01_mirrored_strategy.checks.combine_shares import COMBINE
from distlab.course.lesson_01_mirrored_strategy.checks.drift import DRIFT
from distlab.course.lesson_01_mirrored_strategy.checks.example_count import COUNT
from distlab.course.lesson_01_mirrored_strategy.checks.scope import SCOPE

CHECKS = (SCOPE, COMBINE, COUNT, DRIFT)
