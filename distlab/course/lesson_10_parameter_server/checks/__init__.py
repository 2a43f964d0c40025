"""Checks of lesson 10: a coordinator's loop, staleness, shards, and a sum that survives a kill.

Where steps are sent, real workers take them, and one of them is really killed.
"""

from distlab.course.lesson_10_parameter_server.checks.coordinator import COORDINATE, SURVIVE_KILL
from distlab.course.lesson_10_parameter_server.checks.servers import SHARD_ROWS, STALENESS

CHECKS = (COORDINATE, STALENESS, SHARD_ROWS, SURVIVE_KILL)
