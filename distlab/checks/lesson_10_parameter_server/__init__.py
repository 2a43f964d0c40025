"""Checks of lesson 10: a coordinator's loop, staleness, shards, and a sum that survives a kill.

Where steps are sent, real workers take them, and one of them is really killed.
"""

from distlab.checks.lesson_10_parameter_server.coordinator_loop import COORDINATE
from distlab.checks.lesson_10_parameter_server.shards import SHARD_ROWS
from distlab.checks.lesson_10_parameter_server.staleness import STALENESS
from distlab.checks.lesson_10_parameter_server.survived_kill import SURVIVE_KILL

CHECKS = (COORDINATE, STALENESS, SHARD_ROWS, SURVIVE_KILL)
