"""Checks of lesson 10: a coordinator's loop, staleness, shards, and a sum that survives a kill.

Where steps are sent, real workers take them, and one of them is really killed.
"""

from distlab.course.lesson_10_parameter_server.checks.coordinator_loop import COORDINATE
from distlab.course.lesson_10_parameter_server.checks.shards import SHARD_ROWS
from distlab.course.lesson_10_parameter_server.checks.staleness import STALENESS
from distlab.course.lesson_10_parameter_server.checks.survived_kill import SURVIVE_KILL

CHECKS = (COORDINATE, STALENESS, SHARD_ROWS, SURVIVE_KILL)
