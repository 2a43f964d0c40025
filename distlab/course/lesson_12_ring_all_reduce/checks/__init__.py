"""Checks of lesson 12: reduce-scatter by halving, all-gather by doubling, routes, messages."""

from distlab.course.lesson_12_ring_all_reduce.checks.doubling import GATHER
from distlab.course.lesson_12_ring_all_reduce.checks.gradient_messages import MESSAGES
from distlab.course.lesson_12_ring_all_reduce.checks.halving import SCATTER
from distlab.course.lesson_12_ring_all_reduce.checks.routes import ROUTE

CHECKS = (SCATTER, GATHER, ROUTE, MESSAGES)
