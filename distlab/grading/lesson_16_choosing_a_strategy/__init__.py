"""Checks of lesson 16: six cases to decide and defend, and strategies compared by weights."""

from distlab.grading.lesson_16_choosing_a_strategy.cases import CHOOSE
from distlab.grading.lesson_16_choosing_a_strategy.comparison import COMPARE

CHECKS = (CHOOSE, COMPARE)
