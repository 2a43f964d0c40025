"""Checks of lesson 16: cases to decide, strategies compared by weights, and by measured time."""

from distlab.course.lesson_16_choosing_a_strategy.checks.cases import CHOOSE
from distlab.course.lesson_16_choosing_a_strategy.checks.comparison import COMPARE
from distlab.course.lesson_16_choosing_a_strategy.checks.measurements import WORTH_IT

CHECKS = (CHOOSE, COMPARE, WORTH_IT)
