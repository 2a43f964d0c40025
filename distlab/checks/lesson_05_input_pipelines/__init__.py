"""Checks of lesson 05: stages in order, files for workers, a rest of an epoch, times of steps.

No clock is read: the checks judge which examples came, in which order, and how often the functions
of a pipeline were called.
"""

from distlab.checks.lesson_05_input_pipelines.file_shards import SHARD
from distlab.checks.lesson_05_input_pipelines.pipeline_order import ORDER
from distlab.checks.lesson_05_input_pipelines.rest_of_epoch import REST
from distlab.checks.lesson_05_input_pipelines.step_prediction import PREDICT

CHECKS = (ORDER, SHARD, REST, PREDICT)
