"""Checks of lesson 13: a timer, efficiencies, alpha and beta, the fastest number of replicas."""

from distlab.course.lesson_13_performance.checks.alpha_beta import ALPHA_BETA
from distlab.course.lesson_13_performance.checks.efficiencies import EFFICIENCIES
from distlab.course.lesson_13_performance.checks.efficiencies import REPORTS as REPORTS
from distlab.course.lesson_13_performance.checks.knees import KNEE
from distlab.course.lesson_13_performance.checks.timers import TIMER

CHECKS = (TIMER, EFFICIENCIES, ALPHA_BETA, KNEE)
