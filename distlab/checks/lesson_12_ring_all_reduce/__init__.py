"""Checks of lesson 12: reduce-scatter on a ring, all-gather by doubling, routes, messages."""

from distlab.checks.lesson_12_ring_all_reduce.doubling import GATHER
from distlab.checks.lesson_12_ring_all_reduce.gradient_messages import MESSAGES
from distlab.checks.lesson_12_ring_all_reduce.ring_scatter import SCATTER
from distlab.checks.lesson_12_ring_all_reduce.routes import ROUTE

CHECKS = (SCATTER, GATHER, ROUTE, MESSAGES)
