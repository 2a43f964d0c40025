"""Checks of lesson 01: the scope, unequal shares, a variable made in a step, drifting copies."""

from distlab.checks.lesson_01_mirrored_strategy.combine_shares import COMBINE
from distlab.checks.lesson_01_mirrored_strategy.drift import DRIFT
from distlab.checks.lesson_01_mirrored_strategy.example_count import COUNT
from distlab.checks.lesson_01_mirrored_strategy.scope import SCOPE

CHECKS = (SCOPE, COMBINE, COUNT, DRIFT)
