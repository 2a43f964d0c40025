"""Checks of lesson 05: stages in order, files for workers, a rest of an epoch, times of steps.

No clock is read: the checks judge which examples came, in which order, and how often the functions
of a pipeline were called.
"""

from distlab.course.lesson_05_input_pipelines.checks.file_shards import SHARD
from distlab.course.lesson_05_input_pipelines.checks.pipeline_order import ORDER
from distlab.course.lesson_05_input_pipelines.checks.rest_of_epoch import REST
from distlab.course.lesson_05_input_pipelines.checks.step_prediction import PREDICT

CHECKS = (ORDER, SHARD, REST, PREDICT)
