"""Checks of lesson 13: a timer, efficiencies, alpha and beta, the fastest number of replicas."""

from distlab.checks.lesson_13_performance.alpha_beta import ALPHA_BETA
from distlab.checks.lesson_13_performance.efficiencies import EFFICIENCIES
from distlab.checks.lesson_13_performance.efficiencies import REPORTS as REPORTS
from distlab.checks.lesson_13_performance.knees import KNEE
from distlab.checks.lesson_13_performance.timers import TIMER

CHECKS = (TIMER, EFFICIENCIES, ALPHA_BETA, KNEE)
