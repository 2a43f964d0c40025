"""Checks of lesson 12: reduce-scatter by halving, all-gather by doubling, routes, messages."""

from distlab.checks.lesson_12_ring_all_reduce.doubling import GATHER
from distlab.checks.lesson_12_ring_all_reduce.gradient_messages import MESSAGES
from distlab.checks.lesson_12_ring_all_reduce.halving import SCATTER
from distlab.checks.lesson_12_ring_all_reduce.routes import ROUTE

CHECKS = (SCATTER, GATHER, ROUTE, MESSAGES)
