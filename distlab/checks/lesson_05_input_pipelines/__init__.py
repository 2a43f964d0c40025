"""Checks of lesson 05: the order of stages, files for workers, own batches, the time of a step.

No clock is read: the checks judge which examples came, in which order, and how often the functions
of a pipeline were called.
"""

from distlab.checks.lesson_05_input_pipelines.file_shards import SHARD
from distlab.checks.lesson_05_input_pipelines.own_batches import OWN
from distlab.checks.lesson_05_input_pipelines.pipeline_order import ORDER
from distlab.checks.lesson_05_input_pipelines.step_prediction import PREDICT

CHECKS = (ORDER, SHARD, OWN, PREDICT)
