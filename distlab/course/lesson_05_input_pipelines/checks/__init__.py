"""Checks of lesson 05: stages in order, files for workers, times of steps, a rest of an epoch.

No clock is read: the checks judge which examples came, in which order, and how often the functions
of a pipeline were called.
"""

from distlab.course.lesson_05_input_pipelines.checks.pipelines import ORDER, PREDICT
from distlab.course.lesson_05_input_pipelines.checks.shards import REST, SHARD

CHECKS = (ORDER, SHARD, PREDICT, REST)
