"""Checks of lesson 15: a loss that XLA compiles, a padded evaluation, and three verdicts."""

from distlab.course.lesson_15_tpu.checks.compiled_loss import COMPILED_LOSS
from distlab.course.lesson_15_tpu.checks.padded_evaluation import EVALUATION
from distlab.course.lesson_15_tpu.checks.tpu_verdicts import VERDICTS

CHECKS = (COMPILED_LOSS, EVALUATION, VERDICTS)
